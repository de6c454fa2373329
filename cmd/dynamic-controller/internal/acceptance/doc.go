// Package acceptance turns a Blueprint into a served revision. It validates the Blueprint, stores its spec, applies its
// CustomResourceDefinition, and starts and stops reconciling its instances, which is implemented in package instances.
//
//	            every replica                                 the leader
//	Blueprint ─▶ definition reconcile: claim, compile,  ─▶ registry ─▶ blueprint reconcile: store the spec, apply the
//	            access review, memory budget                           CustomResourceDefinition, status, teardown
//	                 ▲                                                              │
//	                 └── the stored revision is served once the cache holds it ◀────┘
//
// The definition reconcile runs on every replica, so that a standby replica has warm caches. It does not write to the
// API server.
//
// # Types
//
// The platform creates the type of a Blueprint, or the Blueprint names an existing one with spec.type.crd. A
// CustomResourceDefinition that the platform created has the Blueprint's name and UID as annotations. The platform
// never changes any other CustomResourceDefinition. It serves a type that it did not create only if the annotation
// platform.example.com/allowed-blueprint names the Blueprint. If the annotation is removed, only deletions of instances
// are processed.
//
// If several Blueprints claim the same type, the type belongs to the Blueprint for which it was created. A retained
// type is reserved for Blueprints of the same name. A type that does not exist yet belongs to a previously accepted
// Blueprint, or otherwise to the oldest Blueprint that is not rejected for other reasons. A Blueprint that has never
// been accepted does not block others, and cannot take a type from another Blueprint.
//
// The schema of a type can change only in compatible ways: every valid object stays valid and keeps its fields. Other
// changes are rejected, and the previously accepted generation remains served. The annotation
// platform.example.com/allow-incompatible-schema, set to the number of a generation, allows that generation to change
// the schema in any way.
//
// # Revisions
//
// An accepted spec is stored in a ControllerRevision in the platform's namespace before it is served. While the newest
// generation of a Blueprint is rejected, the last stored revision remains served. A replica that starts during that
// time reads the revision from the API server and validates it like a new generation. If the revision is rejected, only
// deletions of instances are processed, and the Serving condition reports the reason.
//
// Only revisions with the UID of the Blueprint are served, and nothing in a status is ever executed. Each spec is
// stored only once: if the same spec is applied again, its revision gets the highest number. The stored revisions
// define which kinds of children are pruned, regardless of an instance's inventory annotation. If a revision beyond the
// history limit has a kind that no newer revision has, it is kept while an inventory names the kind, and for at least
// ten minutes after the newest revision starts to be served.
//
// While a revision is rolled out, instances that have not moved to it are reconciled with the revision that they have:
// see package rollout. The leader counts the instances and finds those revisions. The definition reconcile then reads
// them from the API server, compiles their templates with the type of the newest revision, and serves them as well.
//
// # Deletion
//
// With the deletion policy Retain, the type, the instances, their children and the revisions are kept. The platform
// removes its finalizer from the instances. A later Blueprint of the same name takes them over. With Delete, the
// instances are deleted together with their children. Then the type, if the platform created it, and the revisions are
// deleted. Nothing is deleted with a Blueprint that was never accepted.
package acceptance
