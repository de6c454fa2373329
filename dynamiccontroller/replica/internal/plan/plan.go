package plan

// MaxShards is the maximum number of shards in a plan.
const MaxShards = 4096

// Assignment is the plan for one shard. Members are given by their IDs, which can be empty.
type Assignment struct {
	// Leader should lead the shard. It keeps the shard warm and campaigns for its Lease.
	Leader string
	// Standby keeps the shard warm and campaigns for its Lease. It differs from Leader.
	Standby string
	// Warming keeps the shard warm and does not campaign. It takes the place of Replaces when it has synced.
	Warming string
	// Replaces is Leader or Standby if there is a Warming, and empty otherwise.
	Replaces string
	// From hands the leadership over to Leader. It stops its work, releases the Lease, and leaves the Lease to Leader.
	// Other holders keep the Lease, even if the plan names another Leader: a plan does not contain a standby that has just
	// acquired the Lease after a crash. From is empty when Leader holds the Lease. It is the Standby if the two have
	// swapped, and otherwise no copy.
	From string
	// Swap is set if Leader hands the leadership over to Standby when one of the two has ended another move. Until then,
	// members ignore it.
	Swap bool
	// Unled is the reason if the plan gives the shard no leader although there are members. No member must acquire the
	// Lease of the shard then. If the reason is UnledHeld, its holder must release it.
	Unled Unled
	// Load is the load on which the plan is based. It is kept from plan to plan until the reported load differs from it
	// by more than half; see [Load].
	Load Load
}

// Unled is the reason why a shard has no leader.
type Unled string

const (
	// UnledHeld means that the shard is in Input.Held.
	UnledHeld Unled = "held"
	// UnledCapacity means that no member has room for the shard, even without standbys.
	UnledCapacity Unled = "capacity"
)

// Plan contains the assignments of all shards, by index.
type Plan []Assignment

// Member is a replica that is alive.
type Member struct {
	// ID identifies the process. A process that restarts has another ID. Members without an ID are ignored. Members
	// with the same ID are merged.
	ID string
	// Node is the machine. The copies of a shard prefer different nodes. An unknown node is empty, and differs from all
	// others.
	Node string
	// Warm contains the shards that the member keeps warm and that have synced.
	Warm []int
	// Kept contains the shards that the member leads and that cannot be moved now.
	Kept []int
	// Leaving is set while the member shuts down. It gets nothing, and its shards are handed to their other copies at
	// once.
	Leaving bool
	// New is set for some time after the member has come. Until then, it gets only what nobody else has, and what others
	// have lost.
	New bool
	// Flapping is set if the member's process has ended several times shortly after its start. It gets nothing, unless
	// all other members are flapping or leaving, too.
	Flapping bool
	// Capacity is the maximum number of objects in the member's copies. Zero means no limit. A shard with an unknown load
	// has as many objects as the others on average.
	Capacity int
}

// Input is the state that the next plan depends on. The order of members has no influence.
type Input struct {
	// Shards is the number of shards. Shards from MaxShards on get no assignments.
	Shards int
	// Members are alive.
	Members []Member
	// Holders contains the ID of the member that holds the Lease of each shard, or an empty string.
	Holders []string
	// Settled reports that no member has gone for some time, for example 30 s. Members that flap do not count. Until
	// then, only shards without a copy, and some missing standbys, are assigned. A missing standby is given to a member
	// that is warm, or to a newcomer: a member with less than half the copies of the fullest. A newcomer gets at most the
	// mean, and not more than the fullest has.
	//
	// A rolling restart is therefore cheap. The shards of the replica that is gone are led by their standbys, and the
	// replica that replaces it becomes their standby at once. It would have to list these shards anyway, and no other
	// replica lists anything. The standbys have synced before the next replica restarts. If the replica does not come
	// back before the fleet has settled, the others get its copies.
	Settled bool
	// Vacant contains shards that have had no standby for some time. They get one although the fleet has not settled.
	Vacant []int
	// Loads contains the load of each shard as its leader reports it. Missing loads are unknown.
	Loads []Load
	// Held contains shards that no member must lead now, for example because their last leaders have crashed. They get no
	// copies, and lose those that they have.
	Held []int
	// Previous is the last plan. It can be nil, have another length, and contain members that are not alive.
	Previous Plan
}

// Next returns the plan that follows in.Previous. It accepts any input.
func Next(in Input) Plan {
	s := newState(in)
	for i := range s.shards {
		if !s.held[i] {
			s.update(i, func(c *copies) { s.keep(i, c, in) })
		}
	}
	s.dropExcessWarming()
	if in.Settled {
		s.dropStandbys()
	}
	s.assignLeaders()
	led, copies := s.bands()
	s.assignStandbys(in.Settled, in.Vacant, copies)
	if in.Settled {
		s.moveCopies(copies)
		s.swapLeaders(led)
		s.rearrange(led, copies)
	}
	return s.plan()
}
