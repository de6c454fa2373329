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
// # Loads
//
// A shard has a [Load], which its leader reports. Its work is what the leadership costs. Its objects are what each copy
// keeps. The two are balanced separately, after a constant for each shard has been added. An unknown load counts as the
// mean of the known ones. weights.go defines all this.
//
// A plan contains the loads on which it is based. A reported load replaces the planned one only if they differ by more
// than half, so that no shard moves because of noise.
//
// # Rules
//
// These rules apply to each shard:
//
//   - A shard in [Input].Held has no copies.
//   - The holder of the Lease remains the leader, unless the plan moves the leadership. A leader that is gone or leaves
//     is replaced by the standby.
//   - A shard that has lost both copies gets a leader at once: a warm member, or else the one that leads least.
//   - A missing standby is assigned at once if that does not make the rest of the fleet list again, and otherwise when
//     the fleet has settled; see [Input].
//
// When the fleet has settled, Next balances it among the members that are not new. It moves copies from the fullest
// members to the emptiest, or exchanges copies of two members, and moves copies apart that are on the same node. It
// swaps leaders and standbys, which costs no lists. If that is not enough, leaders move to other members. A member
// takes part in at most two moves at a time, and a shard in one. Swaps beyond that are planned for later.
//
// # Capacity
//
// [Member].Capacity limits what a member takes, and not what it has:
//
//   - A copy is given to a member only if it has room. Copies that it loses by a move count until the move has ended.
//   - Leaders come before standbys. A shard without copies gets a leader even if members must drop standbys for it. If
//     that is not enough, the shard is unled. The smallest shards are led then.
//   - A member above its capacity, because shards have grown, loses copies to members that have room, standbys first.
//     Standbys for which no member has room are dropped. Leaders remain.
//
// [Assignment].Unled contains the reason for which a shard is not led. Members must not acquire its Lease then.
//
// # Limits
//
// A member needs no balancing if its work, and the objects of its copies, are within a twentieth of the mean. Shards
// that are heavier than the mean are excluded from it, together with the members that have them. The upper limit is
// higher if no distribution reaches it, for example because there are 11 shards for 10 members.
//
// Repeated calls with the same members and loads reach a plan that does not change any more, unless members are new or
// keep shards. Each call that begins a move decreases the first of these numbers that it changes, where lists of loads
// are compared from their greatest one:
//
//  1. The objects above the capacities of members.
//  2. The number of shards without a leader that are not held, and then of those without a standby.
//  3. The loads of copies above the upper limit, in descending order.
//  4. The number of shards with both copies on one node.
//  5. What the loads of copies lack to the lower limit, in descending order.
//  6. The work of the members, in descending order.
//
// They are those after all moves. If all shards have the same load, a member leads at most 1.05 times the mean, or the
// mean rounded up, and likewise for copies. Otherwise, the simulation measures how close the plans come to the best
// distribution. A limit on copies has precedence over different nodes for the copies of a shard.
//
// Two cases are left to the caller, because Next has no clock. The first plan of a fleet should wait until the fleet
// has settled. Otherwise, the member that starts first gets all shards, and they leave it two at a time. A member that
// never syncs a shard blocks the move, and one of the two moves of each member that takes part. The caller can end the
// move: it removes Warming and Replaces from Previous.
package plan
