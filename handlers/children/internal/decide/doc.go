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
//	is retained, and has an owner reference    RemoveOwner, and then like a child that differs
//	has its desired state                      nothing
//	was corrected too often                    nothing until the budget allows it
//	differs, and a contested field leaves      HandOver
//	differs, and its managedFields prevent it  ChangeOwners
//	differs                                    Apply
//	differs, and the apply is refused          ChangeOwners and Apply, or TryApply to find out why
//	cannot be changed, and has Recreate        TryCreate, ReadParent, Delete, Create
//
// The safety rules are tables in rules.go: who may be changed, deleted or deleted to be created again, and on what
// evidence.
package decide
