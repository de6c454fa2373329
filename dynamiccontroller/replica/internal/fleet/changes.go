package fleet

import (
	"strings"
	"time"
)

// SettlePeriods is the time without a departure after which a fleet has settled, and the time after which a member is
// no longer new, in multiples of the lifetime of a view.
const SettlePeriods = 2

const (
	// minFlaps is how often the process of a member ends shortly after its start before it counts as flapping.
	minFlaps = 2
	// maxFlaps limits the time for which it must then run: it doubles with each further end.
	maxFlaps = minFlaps + 4
)

// changes records when members come and go.
type changes struct {
	settle time.Duration
	last   time.Time        // when a member came, went, or began to leave
	left   time.Time        // when a member that does not flap went, or began to leave
	flaps  map[string]flaps // by the name of the process, without those that have not flapped
}

// flaps are the ends of the processes with one name.
type flaps struct {
	count int // how many have ended in succession after a short time
	last  time.Time
}

// processOf returns the part of an identity that a process keeps when it restarts, such as the name of a Pod. A random
// part follows it.
func processOf(identity string) string {
	if i := strings.LastIndexByte(identity, '_'); i >= 0 {
		return identity[:i]
	}
	return identity
}

// join records that a member has come.
func (c *changes) join(now time.Time) { c.last = now }

// leave records that a member that has come at the time since has gone, or begins to leave.
func (c *changes) leave(identity string, since, now time.Time) {
	flapping := c.isFlapping(identity, now.Sub(since))
	c.last = now
	if !flapping {
		c.left = now
	}
	for name, f := range c.flaps { // forget processes that no longer exist
		if now.Sub(f.last) > c.penalty(maxFlaps)+c.settle {
			delete(c.flaps, name)
		}
	}
	name := processOf(identity)
	if !flapping && now.Sub(since) >= c.settle {
		delete(c.flaps, name)
		return
	}
	c.flaps[name] = flaps{min(c.flaps[name].count+1, maxFlaps), now}
}

// isFlapping reports whether a member that was observed for the given time is flapping.
func (c *changes) isFlapping(identity string, age time.Duration) bool {
	f := c.flaps[processOf(identity)]
	return f.count >= minFlaps && age < c.penalty(f.count)
}

// penalty returns how long a process must run after it has ended that often, before it no longer counts as flapping.
func (c *changes) penalty(count int) time.Duration { return c.settle << max(count-minFlaps, 0) }
