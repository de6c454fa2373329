// Package identity determines the ServiceAccount that a Blueprint runs as, and provides clients that impersonate it.
//
// [Manager.Resolve] returns the [Identity] for an instance, or a [Rejection] whose message describes what to do. A
// ServiceAccount is used only if it exists, is not reserved for the platform or for Kubernetes, and allows the
// Blueprint with the annotation [AllowedBlueprints].
//
// [Manager.Client] returns a client that impersonates the identity, so that the API server checks the identity's
// permissions. [Manager.CanRead] reports whether the identity can read a resource. The platform fills its caches with
// its own permissions, so CanRead must be called before cached objects are used.
//
// Only the user name is impersonated. The API server adds the groups of the ServiceAccount. Naming the groups in the
// request would require the permission to impersonate groups, which is cluster-wide.
package identity
