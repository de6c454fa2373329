package dynamiccontroller

import (
	"sync"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// gate holds what is queued of a type until the lists that it begins with have been told, so that each object is called
// for once: the type's own, and those of the types watched beside it unless they cannot be had.
type gate struct {
	group group

	mu       sync.Mutex // guards what follows, and the order of Hold and Release
	primary  any
	waiting  map[any]*time.Timer // what is waited for; the timer runs while that fails
	patience *time.Timer
}

// secondaryPatience is for how long a type that has synced waits for those beside it. One that cannot be listed says so,
// and is waited for less; this is for one whose list hangs.
const secondaryPatience = 10 * time.Second

// A secondary that fails is waited for a little: mostly it has just come, and its list would call for the same owners again.
// After its CRD was established a type is not found for about 14 ms; forbidden is what RBAC takes some ten milliseconds to
// permit. Too many requests are asked to come back in a second.
const (
	absentPatience  = 250 * time.Millisecond
	failingPatience = 1100 * time.Millisecond
)

// patienceFor is for how long a watch in the state is still waited for, counted from when it came into it.
func patienceFor(state typewatch.State) (patience time.Duration, fails bool) {
	switch state.Phase {
	case typewatch.NotFound, typewatch.Forbidden:
		return absentPatience, true
	case typewatch.Failing:
		return failingPatience, true
	default:
		return 0, false
	}
}

// observe tells how one of what is waited for stands: it passes when it has failed for too long.
func (g *gate) observe(one any, state typewatch.State) {
	g.mu.Lock()
	defer g.mu.Unlock()
	timer, waited := g.waiting[one]
	if !waited {
		return
	}
	if timer != nil {
		timer.Stop()
		g.waiting[one] = nil
	}
	patience, fails := patienceFor(state)
	if !fails {
		return
	}
	patience -= time.Since(state.Since)
	if patience <= 0 {
		g.passLocked(one)
		return
	}
	timer = time.AfterFunc(patience, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if timer != nil && g.waiting[one] == timer {
			g.passLocked(one)
		}
	})
	g.waiting[one] = timer
}

// exchange waits for another in the place of one that is waited for.
func (g *gate) exchange(one, another any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	timer, waited := g.waiting[one]
	if !waited {
		return
	}
	if timer != nil {
		timer.Stop()
	}
	delete(g.waiting, one)
	g.waiting[another] = nil
}

// shut holds the queue until pass was called for each of what is waited for.
func (g *gate) shut(primary any, others ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopTimers()
	g.primary, g.waiting = primary, map[any]*time.Timer{primary: nil}
	for _, other := range others {
		g.waiting[other] = nil
	}
	g.group.Hold()
}

// pass says that one of what is waited for has come, or is given up. What is not waited for any more is ignored.
func (g *gate) pass(one any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.passLocked(one)
}

func (g *gate) passLocked(one any) {
	timer, waited := g.waiting[one]
	if !waited {
		return
	}
	if timer != nil {
		timer.Stop()
	}
	delete(g.waiting, one)
	if len(g.waiting) == 0 {
		g.openLocked()
		return
	}
	if _, waited := g.waiting[g.primary]; !waited && g.patience == nil {
		var timer *time.Timer
		timer = time.AfterFunc(secondaryPatience, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.patience == timer {
				g.openLocked()
			}
		})
		g.patience = timer
	}
}

func (g *gate) openLocked() {
	g.stopTimers()
	g.waiting = nil
	g.group.Release()
}

func (g *gate) stopTimers() {
	for _, timer := range g.waiting {
		if timer != nil {
			timer.Stop()
		}
	}
	if g.patience != nil {
		g.patience.Stop()
		g.patience = nil
	}
}

// close forgets all, and leaves the queue as it is.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopTimers()
	g.waiting = nil
}
