package dynamiccontroller

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Leftovers returns a function that describes the state that the controller still holds for the type's current
// registration. The function returns "" if there is none.
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
		_, forgetting := c.forgetting[gvr]
		c.mu.RUnlock()
		reg.mu.Lock()
		defer reg.mu.Unlock()
		kept := len(reg.running) + len(reg.records) + reg.active
		inQueue := queued.Live + queued.Background + queued.Delayed + queued.Running
		if inQueue+kept == 0 && !registered && !ending && !forgetting && isClosed(reg.ended) {
			return ""
		}
		return fmt.Sprintf("queued %+v, %d kept, registered %v, ending %v, forgetting %v", queued, kept, registered, ending, forgetting)
	}
}

// WatchesOf returns the number of watches of a type.
func (c *DynamicController) WatchesOf(gvr schema.GroupVersionResource) int {
	return c.pool.Watches(gvr)
}

// HoldReadLock locks the controller's lock for reading until unlock is called.
func (c *DynamicController) HoldReadLock() (unlock func()) {
	c.mu.RLock()
	return c.mu.RUnlock
}
