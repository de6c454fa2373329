// Package platform makes a controller serve the types that users define and label, by means of the controller itself:
// CustomResourceDefinitions are a type like any other, whose handler starts and stops the types that they define.
//
//   - A definition that is Established and carries [Label] is served in one version: the one it stores if that is
//     served, else its newest served one, in Kubernetes' order of versions.
//   - It is released when the definition or its label is gone, and served anew when another version is due.
//   - Every object's status says which generation was reconciled and that it is Ready. Nothing is written when the status
//     says so already.
//   - A type whose objects' status cannot be kept, because it has no status subresource or its schema lacks the fields, is
//     not served. That is said once, and again when something else is in the way.
//   - While the status of a type may not be written its objects wait half a minute at a time; that is said once.
package platform
