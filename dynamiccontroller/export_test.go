package dynamiccontroller

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// Leftovers returns a function. The function describes what the controller still holds for the registration that was
// the type's current one when Leftovers was called. It returns "" if nothing is left.
func (c *DynamicController) Leftovers(gvr schema.GroupVersionResource) func() string {
	reg, err := c.registrationOf(gvr)
	if err != nil {
		return err.Error
	}
	return func() string {
		queued := reg.group.Stats()
		c.mu.RLock()
		_, registered := c.registrations[gvr]
		_, ending := c.ending[gvr]
		inRun := false
		if c.current != nil {
			_, inRun = c.current.registrations[reg]
		}
		c.mu.RUnlock()
		reg.mu.Lock()
		defer reg.mu.Unlock()
		kept := len(reg.running) + len(reg.records) + reg.active
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
	reg, err := c.registrationOf(gvr)
	if err != nil {
		return err
	}
	stop()
	var options []*secondaryOptions
	for _, w := range watches {
		options = append(options, w.options)
	}
	<-reg.subscriptions.apply(change{f: func() { reg.subscriptions.addWatches(options, true, nil) }})
	return nil
}

// HoldReadLock locks the controller's lock for reading until unlock is called.
func (c *DynamicController) HoldReadLock() (unlock func()) {
	c.mu.RLock()
	return c.mu.RUnlock
}

// BlockChanges makes later changes to the watches of a type wait until unblock is called.
func (c *DynamicController) BlockChanges(gvr schema.GroupVersionResource) (unblock func()) {
	reg, err := c.registrationOf(gvr)
	if err != nil {
		return func() {}
	}
	blocked := make(chan struct{})
	reg.subscriptions.apply(change{f: func() { <-blocked }})
	return func() { close(blocked) }
}
