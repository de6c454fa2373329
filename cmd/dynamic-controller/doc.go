// Dynamic-controller is a small platform on top of the library: it serves the types that its users define while it
// runs.
//
//	dynamic-controller run [--kubeconfig FILE] [--context NAME]
//
// serves Blueprints (platform.example.com/v1alpha1), which it defines itself. A Blueprint says what a type is, or names one,
// and what each object of that type becomes: other objects, as templates with expressions (CEL) on it and on each other.
// kubectl get and kubectl describe tell how Blueprints and instances stand, and what is wrong.
//
//	kubectl explain blueprint.spec
//
// When a Blueprint is deleted, its instances, what they became and the type stay, or with spec.deletionPolicy: Delete are
// deleted with it.
//
// Several replicas of it may run. All of them watch; the one that holds the lease reconciles, and another takes over when
// it ends or fails (--leader-elect and what begins like it). It logs who leads, and in which term it does itself. On
// --health-probe-bind-address, :8081 by default, are /livez and /readyz: a replica is ready when it could lead with a warm
// cache, whether it leads or not. On --metrics-bind-address, nowhere by default, is /metrics.
//
// A replica keeps within the memory limit of its container. The garbage collector's limit, GOMEMLIMIT, is derived from it.
// Blueprints together may take --max-blueprint-memory, by an estimate of what serving them takes: the next one is refused,
// with the reason BudgetExceeded, until there is room for it. Those that are served keep their places. Objects of more than 64
// KiB are cached without their content and read from the API server when they are needed. Requests to the API server are
// limited with --kube-api-qps and --kube-api-burst; by default they are not.
//
// It ends on SIGTERM and SIGINT once the reconciles that run have ended, within --shutdown-timeout, and gives the lease
// back; a second signal ends it at once. Its exit code is 0 if nothing was left undone, and 1 if something was or it could
// not start.
//
// What it needs to be allowed: get, list, watch and patch blueprints.platform.example.com and patch their status; get, list,
// watch, create, update, patch and delete customresourcedefinitions.apiextensions.k8s.io; list and watch
// apiservices.apiregistration.k8s.io; get, create and update leases.coordination.k8s.io in the namespace of its lease. What
// Blueprints take besides, of instances get, list, watch and patch, and patch of their status, and of what they become get,
// list, watch, create, patch and delete, is for whoever runs it to grant: a Blueprint that takes more is refused, and says
// so. Who may write Blueprints may do through them all that the platform may.
package main
