// Package acceptance turns Blueprints into served revisions. It validates a Blueprint, applies its
// CustomResourceDefinition, stores its spec, and starts and stops reconciling its instances. The reconciliation itself
// is implemented in package instances.
//
//	            every replica                                 the leader
//	Blueprint ─▶ definition reconcile: claim, compile,  ─▶ registry ─▶ blueprint reconcile: apply the CustomResource-
//	            access review, memory budget                           Definition, store the spec, status, teardown
//	                 ▲                                                              │
//	                 └── the stored revision is served once the cache contains it ◀─┘
//
// The definition reconcile runs on every replica, so that a standby replica has warm caches. It does not write to the
// API server.
//
// # Types
//
// The platform creates the type of a Blueprint, unless the Blueprint names an existing CustomResourceDefinition in
// spec.type.crd. A CustomResourceDefinition that the platform created has annotations with the name and the UID of its
// Blueprint. The platform never changes any other CustomResourceDefinition. It serves the type of such a
// CustomResourceDefinition only if the annotation platform.example.com/allowed-blueprint names the Blueprint. If the
// annotation is removed later, the platform processes only deletions of instances.
//
// If several Blueprints claim the same type, the type belongs to the Blueprint for which it was created. A type that
// was retained when its Blueprint was deleted is reserved for Blueprints with the same name. If the type does not exist
// yet, it belongs to a Blueprint that has been accepted before. If no Blueprint has been accepted before, the type
// belongs to the oldest Blueprint that would otherwise be accepted. A rejected Blueprint that has never been accepted
// does not block others.
//
// The schema of a type can change only in compatible ways: every valid object must stay valid and keep its fields.
// Other changes are rejected, and the previously accepted generation remains served. To allow a generation to change
// the schema in any way, set the annotation platform.example.com/allow-incompatible-schema to the number of the
// generation.
//
// # Revisions
//
// An accepted spec is stored in a ControllerRevision in the platform's namespace before it is served. It is stored only
// after the API server has accepted its CustomResourceDefinition. The type can therefore be newer than the served
// revision, but never older. While the newest generation of a Blueprint is rejected, by the platform or by the API
// server, the last stored revision remains served. A replica that starts during that
// time reads the revision from the API server and validates it like a new generation. If the revision is rejected, only
// deletions of instances are processed, and the Serving condition reports the reason.
//
// Only revisions with the UID of the Blueprint are served. Templates are never read from a status. Each spec is stored
// once: if the same spec is applied again, its revision gets the highest number.
//
// The kinds in the stored revisions determine which children can be pruned. Kinds that appear only in an instance's
// inventory annotation are ignored. Revisions beyond the history limit are deleted. If such a revision contains a
// kind that no newer revision contains, it is kept until no inventory contains the kind and the newest revision has
// been served for ten minutes.
//
// During a rollout, instances that have not moved to the new revision are reconciled with their current revision: see
// package rollout. The leader counts the instances and finds the revisions that they still use. The definition
// reconcile then reads up to two of these revisions from the API server, compiles their templates with the type of the
// newest revision, and serves them as well. When all instances have moved to a revision, the leader sets an annotation
// on its ControllerRevision. This revision is the base of the next rollout. Only the base and later revisions can be in
// use. The base is loaded first, followed by the revisions to which most instances were allowed to move. The leader
// stores their number in an annotation as well. The statuses of instances, which tenants can write, do not affect this
// order.
//
// # Deletion
//
// With the deletion policy Retain, the type, the instances, their children and the revisions are kept. The platform
// first completes the deletions of instances that were requested, and reconciles no other instances meanwhile. It then
// removes its finalizer from the instances. A later Blueprint with the same name can serve the type again. With Delete,
// the instances and their children are deleted first, followed by the type and the revisions. The type is kept if the
// platform did not create it. If a Blueprint was never accepted, nothing is deleted with it.
package acceptance
