package integration

import (
	"fmt"
	"testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// One call an object for the initial list, whatever the cache keeps, and for a promotion as well.
func TestD4_OneCallAnObjectForTheInitialList(t *testing.T) {
	const objects = 100
	h := newHarness(t)
	gvr := h.define(h.newType())
	for i := range objects {
		h.apply(gvr, fmt.Sprintf("w%d", i), 0)
	}
	for name, mode := range map[string]dynamiccontroller.CacheMode{
		"full": dynamiccontroller.CacheFull, "metadata": dynamiccontroller.CacheMetadata, "keys": dynamiccontroller.CacheKeys,
	} {
		t.Run(name, func(t *testing.T) {
			h := *h
			h.T = t
			c := h.controller(dynamiccontroller.Config{Workers: 4})
			calls := newRecorder(t, nil)
			h.serve(c, gvr, calls.handle, dynamiccontroller.WithCache(mode))
			watches := h.start(c.RunWatches)
			h.synced(c, gvr)
			if n := calls.sum(); n != 0 {
				t.Fatalf("%d calls while nobody runs", n)
			}
			for term := 1; term <= 3; term++ {
				stop := h.run(c)
				calls.waitForTotal(term * objects)
				last := fmt.Sprintf("last-%s-%d", name, term)
				h.apply(gvr, last, 0)
				calls.waitFor(h.id(gvr, last), 1)
				h.noError(stop())
				h.delete(gvr, last)
				h.eventually("the cache forgets the last object", func() error {
					if n := c.Status()[0].Objects; n != objects {
						return fmt.Errorf("it holds %d", n)
					}
					return nil
				})
				for id, n := range calls.counts() {
					if want := term; n != want && id != h.id(gvr, last) {
						t.Errorf("%d calls for %s after %d terms", n, id, term)
					}
				}
				calls.forget(h.id(gvr, last))
			}
			h.noError(watches())
		})
	}
}

// forget takes an object out of the record.
func (r *recorder) forget(id dynamiccontroller.ObjectIdentifiers) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total -= r.calls[id]
	delete(r.calls, id)
}
