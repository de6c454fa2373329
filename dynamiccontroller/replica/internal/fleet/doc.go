// Package fleet decides what the members of a fleet do. A fleet is the set of replicas that share shards. Each shard
// has a Lease of its own, and package election decides which replica holds it. Four files of this package ensure that
// replicas with different numbers of shards, or without shards, do not lead at the same time: layout.go,
// layoutchange.go, lease.go and exclusion.go. The rest is advice: a wrong plan or an outdated view costs time or
// balance.
//
// The decisions are functions of values, without a client or a clock:
//
//	layout.go     the number of shards, which the fleet's Lease records, and how it changes
//	shard.go      the life of one shard in a member: warming, campaigning, leading, draining, handing over
//	orphan.go     which member leads a shard that has no living copy
//	heartbeat.go  whether the watch of the Leases delivers changes
//	readiness.go  when a member is ready
//	changes.go    which members come and go too often, and when the fleet has settled
//	suspects.go   which shards are held back, because their leaders crash
//	load.go       what a shard costs its leader
//
// Package plan decides which member should lead which shard; its weights.go compares loads. exclusion.go is the
// certainty on which the terms of shards depend. holder.go and state.go are formats. The other files read and write
// Leases:
//
//	view.go, watch.go   observe the Leases of all members and shards
//	lease.go            translates the records of the fleet's own Lease, in which the members elect their leader
//	membership.go       publishes the state of a member in a Lease of its own
//	planner.go          runs on the fleet's leader: publishes the plan, and deletes the Leases of members that are gone
//	layoutchange.go     runs on the fleet's leader: waits until no shard is led, and removes the layout
//
// # Leases
//
//	NAME             the layout and the leader of the fleet: shards=8/IDENTITY    see Holder
//	NAME-plan        the plan                                                     see package plan
//	NAME-member-...  one for each member: what it keeps warm, whether it leaves   see State
//	NAME-shard-N     the leader of a shard
//
// The Lease NAME is also that of replicas without shards. While it names a layout, they do not lead; see [Exclusion].
package fleet
