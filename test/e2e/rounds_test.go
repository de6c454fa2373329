package e2e

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// perFleet is the number of consecutive rounds that use the same replicas.
const perFleet = 10

// Each round injects one or two random faults of random duration into random replicas, mostly the leader. The round
// ends when all changes have been reconciled. The faults depend only on the seed and the round's number.
func TestL1_L2_L3_Rounds(t *testing.T) {
	inRounds(t, func(t *testing.T, rounds []round) {
		f := newFleet(t)
		for _, round := range rounds {
			f.runRound(round, faults)
		}
		f.finish()
	})
}

func (f *fleet) runRound(round round, faults []fault) {
	f.Helper()
	draw := drawRound(round.random, faults, f.leases())
	f.injectFaults(target{f.awaitReconciles(draw.lease), draw.lease}, round.number, draw)
	f.awaitLeaders()
	f.settle()
	f.load.start()
}

// round is the source of the random choices of a round.
type round struct {
	number int
	random *rand.Rand
}

// inRounds calls run with consecutive rounds that use the same replicas.
func inRounds(t *testing.T, run func(t *testing.T, rounds []round)) {
	t.Helper()
	seed := *seedFlag
	for seed == 0 {
		seed = rand.Uint64()
	}
	for from := *firstRound; from < *firstRound+*rounds; from += perFleet {
		n := min(perFleet, *firstRound+*rounds-from)
		t.Logf("to repeat these rounds: -run %s -seed %d -from %d -rounds %d", t.Name(), seed, from, n)
		var consecutive []round
		for i := from; i < from+n; i++ {
			consecutive = append(consecutive, round{i, rand.New(rand.NewPCG(seed, uint64(i)))})
		}
		if !t.Run("", func(t *testing.T) { run(t, consecutive) }) {
			break
		}
	}
}

// injectFaults injects the faults of a round and repairs them. A second fault can be injected during the first one or
// shortly after it.
func (f *fleet) injectFaults(leader target, n int, draw draw) {
	f.Helper()
	f.wait(draw.after)
	at := leader
	if !draw.onLeader {
		at.member = f.candidate(leader)
	}
	f.recordFault("round %d: %s is led by %s, fault in %s: %s for %s",
		n, leader.lease, leader.processName(), at.processName(), draw.fault.name, draw.duration)
	var injecting sync.WaitGroup
	if draw.second != nil {
		second := target{f.other(f.other(at.member)), at.lease}
		if fleetLeader := f.leader(leaseName, 0); draw.secondInFleetLeader && fleetLeader != nil && fleetLeader != at.member {
			second.member = fleetLeader
		}
		injecting.Go(func() {
			f.wait(draw.secondAfter)
			f.recordFault("round %d: fault in %s: %s for %s", n, second.processName(), draw.second.name, draw.secondDuration)
			draw.second.inject(f, second, draw.secondDuration)
		})
	}
	draw.fault.inject(f, at, draw.duration)
	injecting.Wait()
}

// draw contains the random choices of a round.
type draw struct {
	after    time.Duration // The delay of the fault after the leader has reconciled an object.
	lease    string
	fault    fault
	onLeader bool
	duration time.Duration

	second                      *fault // Usually nil.
	secondAfter, secondDuration time.Duration
	secondInFleetLeader         bool
}

func drawRound(r *rand.Rand, faults []fault, leases []string) draw {
	between := func(lower, upper time.Duration) time.Duration {
		return lower + time.Duration(r.Int64N(int64(upper-lower)))
	}
	const longest = leaseDuration + leaseDuration/2
	d := draw{
		after:    between(0, retryPeriod),
		lease:    leases[0],
		fault:    faults[r.IntN(len(faults))],
		onLeader: r.IntN(4) > 0,
		duration: between(retryPeriod/2, longest),
	}
	if n := len(leases) - 1; n > 0 && r.IntN(3) > 0 {
		d.lease = leases[1+r.IntN(n)]
	}
	if d.fault.isLocal && r.IntN(3) == 0 || d.fault.isMove && r.IntN(2) == 0 {
		var local []fault
		for _, f := range faults {
			if f.isLocal {
				local = append(local, f)
			}
		}
		d.second = &local[r.IntN(len(local))]
		d.secondAfter, d.secondDuration = between(0, longest), between(retryPeriod/2, longest)
		d.secondInFleetLeader = len(leases) > 1 && r.IntN(2) == 0
	}
	return d
}
