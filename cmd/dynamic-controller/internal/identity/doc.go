// Package identity determines the ServiceAccount that a Blueprint runs as, and provides clients that act as it.
//
// [Manager.Resolve] returns the [Identity] for an instance, or a [Rejection] whose message describes what to do. A
// ServiceAccount is used only if it exists, is not protected, and allows the Blueprint with the annotation
// [AllowedBlueprints].
//
// [Manager.Client] returns a client that impersonates the identity, so that the API server checks the permissions of
// the identity. [Manager.CanRead] reports whether the identity can read a resource, for objects that the platform has
// cached with its own permissions.
//
// Only the user name is impersonated. The API server adds the groups of the ServiceAccount. Naming the groups in the
// request would require the permission to impersonate groups, which is cluster-wide.
package identity
