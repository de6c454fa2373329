package replica

// Status describes the leadership of a replica.
type Status struct {
	// Leading reports whether the fence is open.
	Leading bool
	// Term is the number of the current or last term. It is 0 before the first term.
	Term int64
	// Leader is the identity of the leader, as of the last request for the lease. It is empty if there is no leader.
	Leader string
	// Identity is the identity of this replica.
	Identity string
	// Shards describes the shards, by index. It is empty without shards, and until the number of shards has been read. The
	// other fields then describe the leader of the fleet.
	Shards []ShardStatus
}

// ShardStatus describes one shard, as this replica observes it.
type ShardStatus struct {
	// Leading reports whether this replica leads the shard.
	Leading bool
	// Term is the number of this replica's current or last term of the shard. It is 0 before the first one.
	Term int64
	// Leader is the identity of the replica that leads the shard. It is empty if no replica does.
	Leader string
	// Warm reports whether this replica keeps the shard warm, and has synced.
	Warm bool
	// Unled is the reason if no replica is to lead the shard: "capacity" if none has the Capacity for it, and "held" if
	// its last three leaders have crashed soon after they had begun to lead it. A shard is held for four LeaseDurations.
	// Each further crash doubles this time, up to 128 LeaseDurations. Otherwise, Unled is empty.
	Unled string
}

// Status returns the current status. It makes no requests.
func (r *Replica) Status() Status {
	s := Status{Identity: r.options.Identity}
	if t := r.leadership.fence.latest(); t != nil {
		s.Leading, s.Term = t.check() == nil, t.number
	}
	switch {
	case r.leadership.elector != nil:
		s.Leader = r.leadership.elector.holder()
	case s.Leading:
		s.Leader = s.Identity
	}
	if r.member != nil {
		s.Shards = r.member.shards.status()
	}
	return s
}
