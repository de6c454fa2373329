package status

import (
	"context"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// ParkedKeys contains the keys of all parked objects. The status of an engine contains only the newest ones. It is safe
// for concurrent use, and its zero value is empty.
type ParkedKeys struct {
	total atomic.Int64 // number of keys; it avoids the lock for reconciles while nothing is parked

	mu     sync.Mutex // guards byType
	byType map[schema.GroupVersionResource]map[string]struct{}
}

// Add records that an object has been parked. It can be passed to dynamiccontroller.WithParked.
func (p *ParkedKeys) Add(id dynamiccontroller.ObjectIdentifiers) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys := p.byType[id.GVR]
	if keys == nil {
		if p.byType == nil {
			p.byType = map[schema.GroupVersionResource]map[string]struct{}{}
		}
		keys = map[string]struct{}{}
		p.byType[id.GVR] = keys
	}
	before := len(keys)
	keys[id.NamespacedKey] = struct{}{}
	p.total.Add(int64(len(keys) - before))
}

// Handler returns a handler that calls next. A parked object is no longer parked when its reconcile starts.
func (p *ParkedKeys) Handler(next dynamiccontroller.Handler) dynamiccontroller.Handler {
	return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		p.remove(id)
		return next(ctx, id)
	}
}

func (p *ParkedKeys) remove(id dynamiccontroller.ObjectIdentifiers) {
	if p.total.Load() == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	keys := p.byType[id.GVR]
	before := len(keys)
	delete(keys, id.NamespacedKey)
	p.total.Add(int64(len(keys) - before))
	if len(keys) == 0 {
		delete(p.byType, id.GVR)
	}
}

// Forget removes the keys of a type that is no longer served.
func (p *ParkedKeys) Forget(gvr schema.GroupVersionResource) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total.Add(-int64(len(p.byType[gvr])))
	delete(p.byType, gvr)
}

// All returns the parked objects whose type matches, in no particular order.
func (p *ParkedKeys) All(
	matches func(schema.GroupVersionResource) bool,
) (parked []dynamiccontroller.ObjectIdentifiers) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for gvr, keys := range p.byType {
		if !matches(gvr) {
			continue
		}
		for key := range keys {
			parked = append(parked, dynamiccontroller.ObjectIdentifiers{GVR: gvr, NamespacedKey: key})
		}
	}
	return parked
}

// forgetting calls another Metrics, and forgets the parked objects of types that are no longer served.
type forgetting struct {
	dynamiccontroller.Metrics
	parked *ParkedKeys
}

// Metrics returns a Metrics that calls next, and forgets the parked objects of types that are no longer served.
func (p *ParkedKeys) Metrics(next dynamiccontroller.Metrics) dynamiccontroller.Metrics {
	return forgetting{next, p}
}

// Forget implements [dynamiccontroller.Metrics].
func (f forgetting) Forget(gvr schema.GroupVersionResource) {
	f.Metrics.Forget(gvr)
	f.parked.Forget(gvr)
}
