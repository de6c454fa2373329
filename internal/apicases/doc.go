// Package apicases contains operations of the Kubernetes API whose answers are the same for all custom resources, as a
// table. Tests of package controllertest and test/integration run the table against the server in memory and against
// kube-apiserver, and compare the answers. [Differences] lists the operations for which they are known to differ.
//
// An answer contains the reason, the code and the causes of an error, or the returned object. The answers of an
// operation end with the objects that are stored afterwards. UIDs and resourceVersions are numbered in the order in
// which they appear, so that answers show which of them are equal. Times and random characters of names are replaced.
package apicases
