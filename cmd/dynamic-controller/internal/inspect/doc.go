// Package inspect reads a Blueprint or an instance from a cluster, together with its children and events, with the
// permissions of a user. Package explain describes the result.
//
// The children of an instance are found by the metadata that the platform adds: the inventory of the instance contains
// the kinds and namespaces, and the children have a label with its UID. Objects that the user cannot read do not fail
// an inspection: they are listed in [explain.Object].Unread. Only the metadata of Secrets is read.
package inspect
