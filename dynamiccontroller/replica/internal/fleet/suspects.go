package fleet

import (
	"slices"
	"time"
)

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
// expire, but the processes appear again. If processes crash for another reason, those crash, too, that do not lead the
// shard. A shard is therefore held back only if three quarters of the processes that have crashed since then were its
// leaders. What is recorded ends with this process, so a shard that ends the processes of only two replicas in turn is
// not held back.
type suspects struct {
	leaseDuration time.Duration
	shards        map[int]suspect
	ends          []time.Time // of members that were not leaving, in order; see maxEnds
}

// maxEnds limits the number of ends that are remembered.
const maxEnds = 256

type suspect struct {
	holder  string
	since   time.Time // when the holder was first observed
	renewed time.Time // when its last renewal was observed
	crashes int       // of the last leaders in succession
	first   time.Time // when the Lease of the first of them was last renewed
	crashed time.Time // when the last one was counted
	missing string    // a leader that may have crashed
	lost    time.Time // when another replica was observed to have its Lease
	ended   time.Time // when it had last renewed it
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
			shard.missing, shard.lost, shard.ended = before, now, shard.renewed
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
			if shard.crashes == 0 {
				shard.first = shard.ended
			}
			shard.crashes, shard.crashed, shard.missing = shard.crashes+1, now, ""
		}
		s.shards[index] = shard
		doublings := min(shard.crashes, maxCrashes) - minCrashes
		if doublings >= 0 && now.Sub(shard.crashed) < suspectPeriods*s.leaseDuration<<doublings &&
			4*shard.crashes >= 3*s.endsSince(shard.first) {
			held[index] = true
		}
	}
	return held
}

// end records that a member is gone although it was not leaving.
func (s *suspects) end(now time.Time) {
	s.ends = append(s.ends, now)
	s.ends = s.ends[max(0, len(s.ends)-maxEnds):]
}

func (s *suspects) endsSince(t time.Time) int {
	first, _ := slices.BinarySearchFunc(s.ends, t, time.Time.Compare)
	return len(s.ends) - first
}

// forget removes all records, because the number of shards has changed.
func (s *suspects) forget() { clear(s.shards) }
