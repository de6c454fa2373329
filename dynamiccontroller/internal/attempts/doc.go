// Package attempts records how the recent reconciles of a type's objects ended: consecutive failures, requeues, parked
// objects, and objects that the next run must reconcile. It also computes the default backoff.
//
// A key has an entry only while there is something to remember:
//
//	                Failed                  Park
//	no entry ────────────────▶ failing ──────────────▶ parked
//	    ▲                        │                        │
//	    └────── Succeeded ───────┴─── Started (again) ────┘
//
// Keep marks a key in any state, so that the next run reconciles it although it is not in the cache. Started removes
// the mark.
//
// The package knows keys only. It does not know the objects, the queue or the cache.
package attempts
