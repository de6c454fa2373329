package fleet

import "time"

const (
	// suspectPeriods is the time in which the leader of a shard must crash after it has acquired the Lease, to be counted,
	// in multiples of LeaseDuration. It is also the time for which the shard is first held back.
	suspectPeriods = 4
	// minCrashes is the number of leaders of a shard that must crash in succession before the shard is held back.
	minCrashes = 3
	// maxCrashes limits the time for which it is held back: it doubles with each further crash.
	maxCrashes = minCrashes + 5
)

// suspects records the shards whose leaders crash soon after they have acquired the Lease. One of their types may end
// each process that reconciles it, for example because it needs too much memory. Such a shard is held back, so that the
// other shards of these processes are led. suspects reads no clocks.
//
// A leader has crashed if its Lease expired and its process is gone. An outage of the API server also makes Leases
// expire, but the processes appear again. What is recorded ends with this process, so a shard that ends the processes of
// only two replicas in turn is not held back.
type suspects struct {
	leaseDuration time.Duration
	shards        map[int]suspect
}

type suspect struct {
	holder  string
	since   time.Time // when the holder was first observed
	renewed time.Time // when its last renewal was observed
	crashes int       // of the last leaders in succession
	crashed time.Time // the last one
	missing string    // a leader that may have crashed
	lost    time.Time // when another replica was observed to have its Lease
}

// observe records the holder of a shard's Lease, which is empty if the Lease was released or does not exist. It is
// called for each change of the Lease, also for renewals.
func (s *suspects) observe(index int, holder string, now time.Time) {
	shard := s.shards[index]
	if holder == shard.holder {
		shard.renewed = now
		s.shards[index] = shard
		return
	}
	if before := shard.holder; before != "" {
		expired := holder != "" && now.Sub(shard.renewed) >= s.leaseDuration // otherwise, it was released
		switch {
		case shard.renewed.Sub(shard.since) >= suspectPeriods*s.leaseDuration:
			shard.crashes, shard.missing = 0, ""
		case expired:
			shard.missing, shard.lost = before, now
		}
	}
	shard.holder, shard.since, shard.renewed = holder, now, now
	s.shards[index] = shard
}

// held returns the shards that no member must lead now. A missing leader counts as crashed if it has not appeared for
// LeaseDuration after its Lease was lost. The parameter seen is the time at which a member was last observed.
func (s *suspects) held(now time.Time, seen func(identity string) time.Time) map[int]bool {
	held := map[int]bool{}
	for index, shard := range s.shards {
		switch {
		case shard.missing == "":
		case seen(shard.missing).After(shard.lost):
			shard.missing = ""
		case now.Sub(shard.lost) >= s.leaseDuration:
			shard.crashes, shard.crashed, shard.missing = min(shard.crashes+1, maxCrashes), now, ""
		}
		s.shards[index] = shard
		if shard.crashes >= minCrashes &&
			now.Sub(shard.crashed) < suspectPeriods*s.leaseDuration<<(shard.crashes-minCrashes) {
			held[index] = true
		}
	}
	return held
}

// forget removes all records, because the number of shards has changed.
func (s *suspects) forget() { clear(s.shards) }
