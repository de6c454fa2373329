// Package plan decides which replica should lead each shard, and which one should stand by. A plan is advice. Leases
// decide who leads, so a wrong, old or forged plan costs balance or time, but not correctness.
//
// [Next] derives a plan from the last one. It is a pure function: it uses no clock, does no I/O and keeps no state. The
// caller applies a plan, observes the members and the Leases, and calls Next again.
//
// # Copies
//
// A shard has two copies: a leader and a standby. Both keep the shard's watches warm and campaign for its Lease, so the
// standby takes over after a crash without the planner. [Assignment] describes what each member does.
//
// A copy moves in steps, and the shard is led all the time:
//
//	                   Leader  Standby  Warming  Replaces  From   Lease held by
//	begin              A       B        C        A                A
//	C has synced       C       B                           A      A, which stops and releases it
//	C holds the Lease  C       B                                  C
//
// A copy that does not lead is replaced in the same way, without the second step. If only the leadership moves, leader
// and standby swap, which begins at the second step.
//
// # Rules
//
// These rules apply to each shard:
//
//   - The holder of the Lease remains the leader, unless the plan moves the leadership. A leader that is gone or leaves
//     is replaced by the standby.
//   - A shard that has lost both copies gets a leader at once: a warm member, or else the one that leads least.
//   - A missing standby is assigned at once if that does not make the rest of the fleet list again, and otherwise when
//     the fleet has settled; see [Input].
//
// When the fleet has settled, Next balances it among the members that are not new. It swaps leaders and standbys, which
// costs no lists. It moves copies from the fullest members to the emptiest, and moves copies apart that are on the same
// node. A member takes part in at most two moves at a time, and a shard in one.
//
// # Limits
//
// A member keeps at most 1.1 times the mean number of copies, or the mean rounded up, if that is more. This has
// precedence over different nodes for the copies of a shard. If no member is new, or keeps a shard, repeated calls with
// the same members reach such a plan and then change nothing: each move reduces the copies above the limit, then the
// shards with both copies on one node, then the copies that members have too few, then the sum of the squares of the
// numbers of led shards, and increases none that comes earlier in this list.
//
// All shards have the same weight.
//
// Two cases are left to the caller, because Next has no clock. The first plan of a fleet should wait until the fleet
// has settled. Otherwise, the member that starts first gets all shards, and they leave it two at a time. A member that
// never syncs a shard blocks the move, and one of the two moves of each member that takes part. The caller can end the
// move: it removes Warming and Replaces from Previous.
package plan
