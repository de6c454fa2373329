// Package instances reconciles the instances of Blueprints: it creates, updates and deletes their children and writes
// their status. It serves the revisions that package acceptance has accepted.
//
//	instance ─▶ observed children ─▶ blueprint.Step ─▶ rendered objects ─▶ handlers/children ─▶ API server
//	               ▲                                                             │
//	               └──────────────── created or changed children ◀───────────────┘
//	                                                                         then: status
//
// Each step evaluates the templates against the existing children. Applied objects can provide the inputs of further
// templates, so steps are repeated until nothing changes. Children are read from the engine's caches.
//
// # Revisions
//
// The newest revision has a [Reconciler]. During a rollout, older revisions also have one. [Reconcilers] selects the
// Reconciler for each instance. Package rollout decides when an instance moves to the newest revision.
//
// The newest revision is used only with instances that the API server has read under its schema. After the schema has
// changed, the cache contains other instances for a while, which lack new default values, for example. See
// schemaReader. Older revisions are compiled with the newest schema, and use instances from the cache.
//
// # Existing objects
//
// The objects that an instance refers to are read from the API server with the identity of the instance, once per
// reconcile. The platform also watches the metadata of all objects of their kinds, but only to reconcile the instances
// that refer to a changed object. An index maps objects to these instances. A reconcile adds an object to the index
// before reading the object, so that no change is missed.
//
// # Expansion budget
//
// Children can be instances of other Blueprints, and Blueprints can create instances of each other. Every instance
// therefore has a budget: the number of objects that it can create. The budget is 16,384 for instances that were not
// created by the platform. Children can be instances if their kind has a CustomResourceDefinition. Such children share
// half of their instance's budget, and an annotation on each child contains the child's share. All children of a
// collection together have the share of a single resource. It is divided by 16 or, if there are more than 16 children,
// by a higher power of two. Adding a child to a collection with fewer than 16 children therefore does not reduce the
// budgets of the others. If collections of instances are nested, the instances at the third level have no budget left.
// If an instance has more children than its budget, nothing is created for it. Across all levels, one instance can
// therefore lead to at most 32,768 objects.
//
// # Memory
//
// All reconciles together have a budget of package memory. A reconcile whose memory is not available ends without a
// result, and is repeated later. If it could never get the memory, the instance is refused. Responses to requests for
// instances lack the content of large instances, except where the content is needed. See Reduce.
//
// # Secrets
//
// If a child can contain data from a Secret, messages about it contain no values, neither in statuses nor in logs. The
// API server's message is replaced with the status code, the reason and the names of the fields. Warnings are dropped.
package instances
