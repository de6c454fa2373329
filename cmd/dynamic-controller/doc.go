// Dynamic-controller is a small platform built on the library. It serves resource types that users define at runtime.
//
//	dynamic-controller run [--kubeconfig FILE] [--context NAME]
//
// The command serves Blueprints (platform.example.com/v1alpha1), whose CustomResourceDefinition it applies itself. A
// Blueprint defines a type or refers to an existing one, and contains templates for the objects that are created for
// each instance of the type. Templates can contain CEL expressions that read the instance and the objects of other
// templates. The conditions of Blueprints and instances report their state and problems. When a Blueprint is deleted,
// its type, its instances and their children are kept, unless spec.deletionPolicy is Delete.
//
//	kubectl explain blueprints.spec --recursive
//
// # Replicas
//
// Every replica watches the served types. The replica that holds the Lease reconciles, and another one takes over when
// it shuts down or fails. /livez and /readyz are served on --health-probe-bind-address, and /metrics on
// --metrics-bind-address. A replica is ready when its caches are warm, whether or not it is the leader.
//
// docs/operations.md describes how to run the platform and which permissions it needs, and docs/security.md describes
// the trust model.
package main
