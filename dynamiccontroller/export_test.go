package dynamiccontroller

import (
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/feed"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/shards"
)

// Leftovers returns a function. The function describes what the controller still holds for the registration that was
// the type's current one when Leftovers was called. It returns "" if nothing is left.
func (c *DynamicController) Leftovers(gvr schema.GroupVersionResource) func() string {
	reg, err := c.registry.registrationOf(gvr)
	if err != nil {
		return err.Error
	}
	return func() string {
		queued := reg.group.Stats()
		inRun := slices.Contains(c.registry.servedByRuns(), reg)
		c.registry.mu.RLock()
		_, registered := c.registry.types[gvr]
		_, ending := c.registry.ending[gvr]
		c.registry.mu.RUnlock()
		reg.mu.Lock()
		defer reg.mu.Unlock()
		kept := len(reg.running) + reg.attempts.Len() + reg.active
		inQueue := queued.Live + queued.Background + queued.Delayed + queued.Running
		if inQueue+kept == 0 && !registered && !ending && !inRun && typewatch.IsClosed(reg.ended) {
			return ""
		}
		return fmt.Sprintf("queued %+v, %d kept, registered %v, ending %v, in the run %v",
			queued, kept, registered, ending, inRun)
	}
}

// WatchesOf returns the number of watches of a type.
func (c *DynamicController) WatchesOf(gvr schema.GroupVersionResource) int {
	return c.pool.Watches(gvr)
}

// AddWatchesLate calls AddWatches. It calls the function stop once AddWatches has found the registration.
func (c *DynamicController) AddWatchesLate(gvr schema.GroupVersionResource, stop func(), watches ...Watch) error {
	reg, err := c.registry.registrationOf(gvr)
	if err != nil {
		return err
	}
	stop()
	var sources []*feed.Source
	for _, w := range watches {
		sources = append(sources, w.options.asFeed)
	}
	return <-reg.feed.AddWatches(sources, feed.Caller{})
}

// HoldReadLock locks the registry for reading until unlock is called.
func (c *DynamicController) HoldReadLock() (unlock func()) {
	c.registry.mu.RLock()
	return c.registry.mu.RUnlock
}

// BlockChanges makes later changes to the watches of a type wait until unblock is called.
func (c *DynamicController) BlockChanges(gvr schema.GroupVersionResource) (unblock func()) {
	reg, err := c.registry.registrationOf(gvr)
	if err != nil {
		return func() {}
	}
	return reg.feed.BlockChanges()
}

// SetServer sets the API server to which writes are waited for, as NewForConfig does.
func (c *DynamicController) SetServer(server string) { c.server = server }

// TouchLocks locks and unlocks each of the controller's own locks, except those of standalone watches, which no read
// takes. It blocks while one of them is held.
func (c *DynamicController) TouchLocks() {
	touch := func(l sync.Locker) {
		l.Lock()
		defer l.Unlock()
	}
	for _, l := range []sync.Locker{&c.registry.mu, &c.crews.mu, &c.sessions.mu, &c.waits.checks, &c.waits.mu} {
		touch(l)
	}
	for reg := range c.registry.registered() {
		touch(&reg.mu)
	}
	if r, _ := c.registry.runOf(shards.Whole); r != nil {
		touch(&r.mu)
		touch(&r.meter.mu)
	}
}
