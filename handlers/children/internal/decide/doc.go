// Package decide decides what is written about a desired child of a parent, and what must not be. It is pure: it has no
// client, no clock and no lock. What the API server answers is an input.
//
//	desired child ──┐
//	seen object ────┼──▶ Decision ──▶ Operation ──▶ package act ──▶ API server
//	known to run ───┘        ▲                                          │
//	                         └───────────────── Answer ◀────────────────┘
//	                         ▼
//	                      Verdict
//
// A [Decision] is about one child in one call. It asks for one [Operation] at a time, and ends with a [Verdict]. What
// it has learned stays in [Known] for later calls of the run.
//
//	the object                                 the decision
//	does not exist                             MayCreate, Create
//	exists, and its claim is Refuse            nothing; the error says why
//	is being deleted                           waits; Delete if the deletion is stuck
//	exists, and its claim is Take              MayAdopt, and then like a child that differs
//	is retained, and has an owner reference    RemoveOwnerReference, and then like a child that differs
//	has its desired state                      nothing
//	was corrected too often                    nothing until the budget allows it
//	differs, and a contested field leaves      HandOver
//	differs: edited keys, other versions       SetManagedFields and Apply
//	differs                                    Apply
//	differs, and the apply is refused          SetManagedFields and Apply, or TryApply to find out why
//	cannot be changed, and has Recreate        TryCreate, Read, ReadParent, Delete, Create, if recreationRules permit it
//
// [BeginDeletion] and [BeginRelease] decide about one child that is not desired, or whose parent is deleted. [Ending]
// decides in which order children are deleted. [PropagationOf] decides whether the marked children of a deleted parent
// are deleted or released. [Record] and [Case] keep a decision, so that it can be made again in a test.
//
// The safety rules are tables: claimRules, deletionRules and recreationRules in rules.go, and propagationRules in
// propagation.go. They say who may be changed, deleted, deleted to be created again, or released, and on what evidence.
package decide
