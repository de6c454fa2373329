package dynamiccontroller

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Leftovers returns a func that tells what the controller still holds of the type's present registration, "" for
// nothing. Status does not show what is not served any more.
func (c *DynamicController) Leftovers(gvr schema.GroupVersionResource) func() string {
	reg, err := c.registrationOf(gvr)
	if err != nil {
		return err.Error
	}
	return func() string {
		queued := reg.group.Stats()
		c.limits.mu.RLock()
		_, limited := c.limits.byType[gvr]
		c.limits.mu.RUnlock()
		c.mu.RLock()
		_, known := c.registrations[gvr]
		_, ending := c.ending[gvr]
		c.mu.RUnlock()
		reg.mu.Lock()
		defer reg.mu.Unlock()
		kept := len(reg.calls) + len(reg.failures) + len(reg.parked) + len(reg.missed) + reg.watches
		if queued.Live+queued.Background+queued.Delayed+queued.Running+kept == 0 && !limited && !known && !ending && isClosed(reg.ended) {
			return ""
		}
		return fmt.Sprintf("queued %+v, %d kept, limiter %v, registered %v, ending %v", queued, kept, limited, known, ending)
	}
}

// WatchesOf is the number of watches of a type, whoever needs them.
func (c *DynamicController) WatchesOf(gvr schema.GroupVersionResource) int {
	return c.pool.Watches(gvr)
}
