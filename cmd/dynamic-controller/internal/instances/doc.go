// Package instances reconciles the instances of Blueprints: it creates, updates and deletes their children and writes
// their status. It serves the revisions that package acceptance has accepted.
//
//	instance ─▶ observed children ─▶ blueprint.Step ─▶ rendered objects ─▶ handlers/children ─▶ API server
//	               ▲                                                             │
//	               └──────────────── created or changed children ◀───────────────┘
//	                                                                         then: status
//
// Each step evaluates the templates against the children that exist. Applied objects can make further templates ready,
// so steps are repeated until nothing changes. Children are read from the engine's caches.
//
// # Revisions
//
// There is a [Reconciler] for the newest revision, and during a rollout for older ones. [Reconcilers] selects one for
// each instance, as package rollout decides.
//
// # Expansion budget
//
// Children can be instances of other Blueprints, which can create instances of each other. Therefore, every instance
// has a budget, which is the number of objects that it can create. The budget is 16,384 for instances that were not
// created by the platform. Children whose kind has a CustomResourceDefinition can be instances. They share half of
// their instance's budget, and the share of each child is stored in an annotation. If a Blueprint has more resources
// than the budget of an instance, nothing is created for that instance. Across all levels, one instance can therefore
// lead to at most 32,768 objects.
//
// # Secrets
//
// If a child can contain data of a Secret, messages about it contain no values, either in statuses or in logs. The API
// server's message is replaced with the status code, the reason and the names of the fields, and its warnings are
// dropped.
package instances
