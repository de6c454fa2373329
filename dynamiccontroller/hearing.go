package dynamiccontroller

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
)

// hearing is what a run hears of objects, and who sees to that. The predicates and MapFuncs of an author are called meanwhile:
// if one hangs it holds up neither another type nor the end of the run, which waits for it no longer than ShutdownTimeout.
// The controller's lock guards it, but for workers.
type hearing struct {
	open    bool                  // a run hears, and has not begun to end
	over    <-chan struct{}       // closed when the run ends
	workers sync.WaitGroup        // attach or detach something; nobody is added once it is not open
	of      map[*registration]int // how many of them do so, by whose it is
}

// hearLocked counts in one who is to attach something of the registration, if a run hears. heard counts him out. The
// registration is not over before.
func (c *DynamicController) hearLocked(reg *registration) bool {
	if !c.hearing.open {
		return false
	}
	c.hearing.workers.Add(1)
	c.hearing.of[reg]++
	reg.watchStarted()
	return true
}

func (c *DynamicController) heard(reg *registration) {
	c.mu.Lock()
	c.hearing.of[reg]--
	if c.hearing.of[reg] == 0 {
		delete(c.hearing.of, reg)
	}
	c.mu.Unlock()
	reg.watchEnded()
	c.hearing.workers.Done()
}

// attach makes the queue hear of all the registration's objects, and of what happens to them from now on. Until all of
// them have been told nothing is handed out, so that each is called for once. Whoever calls it was counted in.
func (c *DynamicController) attach(reg *registration) {
	defer c.heard(reg)
	c.mu.RLock()
	reg.shutLocked()
	primary, secondaries := reg.primary, slices.Collect(maps.Values(reg.secondaries))
	c.mu.RUnlock()
	owed := reg.ids(reg.owed())
	for portion := range slices.Chunk(owed, owedPortion) {
		reg.group.Add(fairqueue.Background, portion...)
	}
	c.attachSecondaries(secondaries)
	primary.Attach(reg.sink(func() { reg.gate.pass(primary) }))
}

// owedPortion keeps the queue's lock short.
const owedPortion = 256

func (c *DynamicController) attachSecondaries(secondaries []*secondary) {
	c.mu.RLock()
	over := c.hearing.over
	c.mu.RUnlock()
	for _, s := range secondaries {
		s.need.Attach(s.sink(over))
		s.reg.gate.observe(s, s.need.State()) // it may fail since long
	}
}

// detach makes the queue hear of nothing any more.
func (c *DynamicController) detach(watches *watchTerm) {
	c.mu.Lock()
	c.hearing.open = false
	c.mu.Unlock()
	c.endWatching(watches, true)
	c.hearing.workers.Wait()
	for _, reg := range c.registered() {
		c.detachOne(reg)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reconciling = false
}

func (c *DynamicController) detachOne(reg *registration) {
	c.mu.Lock()
	primary, secondaries := reg.primary, slices.Collect(maps.Values(reg.secondaries))
	c.hearing.of[reg]++ // for who asks what hangs
	c.mu.Unlock()
	primary.Detach()
	for _, s := range secondaries {
		s.need.Detach()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.hearing.of, reg)
}

// stillHearing names what keeps detach from returning.
func (c *DynamicController) stillHearing(watches *watchTerm) (hung []string) {
	if isClosed(watches.ended) {
		for _, gvr := range c.pool.Running() {
			hung = append(hung, "the watch of "+nameOf(gvr))
		}
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	for reg := range c.hearing.of {
		hung = append(hung, "a predicate or MapFunc of "+nameOf(reg.gvr)+", or of who shares a watch with it")
	}
	return hung
}

// goOn runs f, and returns when it has or when ctx ends: then it goes on in its own time.
func goOn(ctx context.Context, f func()) (returned bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}
