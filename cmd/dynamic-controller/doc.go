// Dynamic-controller is a small platform on top of the library: it serves the types that its users define while it
// runs.
//
//	dynamic-controller run [--kubeconfig FILE] [--context NAME]
//
// serves every CustomResourceDefinition that carries the label platform.example.com/serve: "true", for as long as it is
// there and carries it. The status of each object of these types says which generation was reconciled
// (status.observedGeneration) and that it is Ready (status.conditions).
//
// It ends on SIGTERM and SIGINT once the reconciles that run have ended, within --shutdown-timeout; a second signal ends
// it at once. Its exit code is 0 if nothing was left undone, and 1 if something was or it could not start.
//
// What it needs to be allowed: list and watch customresourcedefinitions.apiextensions.k8s.io and, of each type that it
// serves, list and watch the objects and patch their status subresource. What it lacks it says, once, and goes on with
// the rest.
package main
