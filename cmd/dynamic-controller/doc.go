// Dynamic-controller is a small platform built on package dynamiccontroller. It serves resource types that users
// define at runtime.
//
//	dynamic-controller run [--config FILE] [--kubeconfig FILE] [--context NAME]
//	dynamic-controller config [--config FILE]
//	dynamic-controller validate FILE...
//	dynamic-controller render BLUEPRINT INSTANCE
//	dynamic-controller why TYPE/NAME
//	dynamic-controller tree TYPE/NAME
//	dynamic-controller status
//	dynamic-controller types
//	dynamic-controller parked [TYPE[/NAME]]
//	dynamic-controller ui
//	dynamic-controller uninstall --namespace NAMESPACE
//	dynamic-controller version
//
// The run command serves Blueprints (platform.example.com/v1alpha1) and applies their CustomResourceDefinition. A
// Blueprint defines a type or refers to an existing one. It contains templates for the objects that are created for
// each instance of the type. Templates can contain CEL expressions that read the instance and the objects of other
// templates. Conditions report the state and the problems of Blueprints and instances. When a Blueprint is deleted, its
// type, its instances and their children are kept unless spec.deletionPolicy is Delete. The following command lists all
// fields:
//
//	kubectl explain blueprints.spec --recursive
//
// All flags of run can be set in a configuration file (config.platform.example.com/v1alpha1). The config command prints
// one with the effective values.
//
// The validate command checks Blueprints and instances before they are applied. The render command prints the children
// of an instance. Neither needs a cluster.
//
// The why command explains why a Blueprint or an instance is not healthy. The tree command prints the children of an
// instance. Both only read from the cluster, with the permissions of the user. The status, types and ui commands show
// the status of the leader. The parked command prints or retries parked objects. If the program is named
// kubectl-blueprint, it is a kubectl plugin.
//
// The uninstall command removes the platform's finalizers and objects from the cluster. Without --yes, it only prints
// what it would do.
//
// # Replicas
//
// Every replica watches the served types. Only the replica that holds the Lease reconciles. When it shuts down or
// fails, another replica takes over. --health-probe-bind-address serves /livez, /readyz and /healthz. A replica is
// ready when its caches are warm, even if it is not the leader. --metrics-bind-address serves the metrics, /statusz,
// /flagz and profiles to users whom the API server permits to read them. With --webhook-bind-address, every replica
// also serves a webhook that rejects invalid Blueprints before they are stored.
//
// docs/operations.md describes how to run the platform, docs/reference.md which permissions it needs, and
// docs/security.md the trust model.
package main
