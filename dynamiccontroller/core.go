package dynamiccontroller

import (
	"sync/atomic"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/protect"
	"github.com/dynamic-controller/engine/internal/writes"
)

// core holds the settings and services that all parts of a controller share. Its fields do not change after the
// controller has been created.
type core struct {
	settings
	log    logr.Logger
	config Config
	queue  *queue
	pool   *typewatch.Pool

	mapperPanicked atomic.Bool // a panic of the REST mapper has been logged
}

func (c *core) logOf(gvr schema.GroupVersionResource) logr.Logger {
	return c.log.WithValues(keyGVR, nameOf(gvr))
}

// kindOf returns the kind of a type according to the mapper, or an empty one.
func (c *core) kindOf(gvr schema.GroupVersionResource) (kind schema.GroupVersionKind) {
	if c.mapper == nil {
		return kind
	}
	if panicked := protect.Call(func() {
		if known, err := c.mapper.KindFor(gvr); err == nil {
			kind = known
		}
	}); panicked != nil && !c.mapperPanicked.Swap(true) {
		c.log.Error(panicked, "REST mapper panicked", keyGVR, nameOf(gvr), keyStack, string(panicked.Stack))
	}
	return kind
}

// isServer reports whether writes to a server are in the caches. Servers that are not known are assumed to be the same.
func (c *core) isServer(server string) bool {
	return server == "" || c.server == "" || server == c.server
}

// setHistories sets the histories to which the versions of the written objects belong.
func (c *core) setHistories(made []writes.Write) {
	for i := range made {
		made[i].History = c.pool.HistoryOf(made[i].Resource.Group)
	}
}
