// Package platform serves Blueprints: it makes their types, and of each instance what its Blueprint says.
//
// It is made of two engines and two halves. The engine of definitions serves Blueprints on every replica and writes
// nothing: it compiles them, decides which of them has a type, and starts and stops types on the engine of instances, whose
// watches run on every replica too. So a standby is as warm as the leader, and promotion asks the API server for nothing.
// The engine of instances reconciles on the leader alone: instances, and Blueprints a second time, to write what follows
// from what was decided.
//
//	            every replica                                 the leader
//	Blueprint ─▶ decide: claim, compile, rights ─▶ registry ─▶ keep: revision, CustomResourceDefinition, status, end
//	                            │
//	                            └─ start, swap, stop ─▶ instances ─▶ children, status
//
// The platform creates a Blueprint's type, or the Blueprint names an existing one with spec.type.crd. A
// CustomResourceDefinition that the platform created has the Blueprint's name and UID as annotations. The platform
// never changes any other CustomResourceDefinition. It serves a type that it did not create only if the annotation
// platform.example.com/allowed-blueprint of the CustomResourceDefinition has the Blueprint's name. If the annotation is
// removed, only deletions of instances are processed.
//
// If several Blueprints claim one type, it belongs to the Blueprint for which it was created. A type that was retained
// is reserved for Blueprints of the same name. A type that does not exist yet belongs to a Blueprint that was accepted
// before or, if there is none, to the oldest Blueprint that is not refused for other reasons. A Blueprint that was
// never accepted does not block others, and cannot take a type from another Blueprint.
//
// Instances may become instances of other Blueprints, which may make each other in a circle, or many of many. So each
// instance has an allowance, how many objects it may become. It is 16,384. Children that may be instances, for their type
// has a CustomResourceDefinition, share half of their instance's, and have their share in an annotation. Of an instance
// whose Blueprint has more resources than its allowance nothing is made. So of one instance come at most 32,768 objects, at
// all levels together.
//
// What templates are checked against are the CustomResourceDefinitions that are watched, and for kinds that have none what the
// API server publishes. While that cannot be read less is checked, and mistakes show when an instance is applied; it is
// looked at again every 30 s.
//
// # Changes of a type
//
// The schema of a type that the platform made can change in compatible ways: every object that was valid stays valid and
// keeps its fields. Other changes are refused with reason IncompatibleSchema, and the generation that was accepted before
// is still served. The annotation platform.example.com/allow-incompatible-schema, with the number of a generation, allows
// that generation to change the schema in any way.
//
// If an instance is not valid under its schema, its status cannot be applied. It is written with a merge patch instead.
//
// # Secrets
//
// Messages about children that can contain data of a Secret contain no values, neither in statuses nor in the log. The
// API server's error is replaced with its code, its reason and the names of the fields, and its warnings are dropped.
//
// # When a Blueprint is deleted
//
// With the deletion policy Retain, which is the default, its type, the instances and their children stay as they are, and
// are nobody's: the platform takes its finalizer off the instances, so that they can be deleted, but then children outside
// their namespace stay behind. A Blueprint of the same name that is made later takes all of it over.
//
// With Delete, instances get no children any more; all that were there are deleted, each when its children are gone (in the
// foreground), and then the type, if the platform made it. What was made meanwhile goes with the type.
//
// A Blueprint that was never accepted deletes nothing: a type that was retained for its name stays retained.
//
// # Revisions
//
// An accepted spec is stored in a ControllerRevision in the platform's own namespace before it is served. The leader
// stores it, and every replica serves it once the revision is in its cache. While the newest generation of a Blueprint
// is refused, the last stored revision remains served. A replica that starts during that time reads the revision from the
// API server, with one request, because the cache holds revisions without their specs. It compiles the revision and checks
// its permissions like those of a new generation. If the revision is refused, the replica only processes
// deletions of instances, and the Serving condition has the reason.
//
// Only revisions with the UID of the Blueprint are served, and nothing in a status is ever executed. A spec is stored
// only once: if it is applied again, its revision gets the highest number. spec.revisionHistoryLimit old revisions are
// kept. With the deletion policy Delete the revisions are deleted with the Blueprint. With Retain they are kept.
//
// The stored revisions also define the kinds of children that are pruned or cleaned up, regardless of the inventory
// annotation of an instance. The kinds of deleted revisions are recorded on the newest revision until no inventory has
// named them for ten minutes.
//
// # Rights
//
// What the platform may do with the types of instances and of children is for whoever runs it to decide. A Blueprint that
// takes more is refused, with the missing right in its status, and looked at again.
//
// Templates cannot create objects that grant permissions or intercept requests, nor objects in the platform's namespace and
// in kube-* namespaces, unless --allow-child-kinds and --allow-child-namespaces allow them.
package platform
