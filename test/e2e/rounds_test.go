package e2e

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// perFleet is how many rounds the same replicas live through.
const perFleet = 10

// Random faults strike random replicas, mostly the leader, for random times, sometimes two at once; each round ends when all
// that was changed is reconciled. A round is drawn from the seed and its number alone.
func TestL1_L2_L3_Rounds(t *testing.T) {
	seed := *firstSeed
	for seed == 0 {
		seed = rand.Uint64()
	}
	for from := *firstOne; from < *firstOne+*rounds; from += perFleet {
		t.Logf("to repeat it: -run Rounds -seed %d -from %d -rounds %d", seed, from, min(perFleet, *firstOne+*rounds-from))
		ok := t.Run("", func(t *testing.T) {
			f := newFleet(t)
			for n := from; n < min(from+perFleet, *firstOne+*rounds); n++ {
				f.round(n, rand.New(rand.NewPCG(seed, uint64(n))))
			}
			f.finish()
		})
		if !ok {
			break
		}
	}
}

// round strikes once or twice, at once or shortly after one another.
func (f *fleet) round(n int, r *rand.Rand) {
	f.Helper()
	draw := drawRound(r)
	leader := f.atWork()
	f.lasts(draw.after)
	target := leader
	if !draw.onLeader {
		target = f.other(leader)
	}
	f.fault("round %d: %s: %s of %s for %s", n, leader.who(), draw.fault.name, target.who(), draw.lasts)
	var striking sync.WaitGroup
	if draw.second != nil {
		other := f.other(f.other(target))
		striking.Go(func() {
			f.lasts(draw.secondAfter)
			f.fault("round %d: %s of %s for %s", n, draw.second.name, other.who(), draw.secondLasts)
			draw.second.strike(f, other, draw.secondLasts)
		})
	}
	draw.fault.strike(f, target, draw.lasts)
	striking.Wait()
	f.awaitLeader(0)
	f.settle()
	f.load.start()
}

// draw is what happens in a round.
type draw struct {
	after    time.Duration // that a leader is at work
	fault    fault
	onLeader bool
	lasts    time.Duration

	second                   *fault // nil mostly
	secondAfter, secondLasts time.Duration
}

func drawRound(r *rand.Rand) draw {
	between := func(least, most time.Duration) time.Duration {
		return least + time.Duration(r.Int64N(int64(most-least)))
	}
	const longest = leaseDuration + leaseDuration/2
	d := draw{
		after:    between(0, retryPeriod),
		fault:    faults[r.IntN(len(faults))],
		onLeader: r.IntN(4) > 0,
		lasts:    between(retryPeriod/2, longest),
	}
	if d.fault.isOwn && r.IntN(3) == 0 {
		var own []fault
		for _, f := range faults {
			if f.isOwn {
				own = append(own, f)
			}
		}
		d.second, d.secondAfter, d.secondLasts = &own[r.IntN(len(own))], between(0, longest), between(retryPeriod/2, longest)
	}
	return d
}
