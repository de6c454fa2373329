package integration

import (
	"fmt"
	"testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// In every cache mode, a standby receives the initial list without calling the handler. Each promotion of the standby
// must then cause exactly one call per object.
func TestD4_InitialListCausesOneCallPerObject(t *testing.T) {
	const objects = 100
	h := newHarness(t)
	gvr := h.widgets()
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
				t.Fatalf("got %d calls before Run, want none", n)
			}
			for run := 1; run <= 3; run++ {
				stop := h.run(c)
				calls.waitForTotal(run * objects)
				last := fmt.Sprintf("last-%s-%d", name, run)
				h.apply(gvr, last, 0)
				calls.waitFor(h.id(gvr, last), 1)
				h.noError(stop())
				h.delete(gvr, last)
				h.eventually("the cache removes the deleted object", func() error {
					if n := c.Status()[0].Objects; n != objects {
						return fmt.Errorf("got %d objects, want %d", n, objects)
					}
					return nil
				})
				for id, n := range calls.counts() {
					if want := run; n != want && id != h.id(gvr, last) {
						t.Errorf("got %d calls for %s after %d runs, want %d", n, id, run, want)
					}
				}
				calls.forget(h.id(gvr, last))
			}
			h.noError(watches())
		})
	}
}

// forget removes an object's calls from the recorder.
func (r *recorder) forget(id dynamiccontroller.ObjectIdentifiers) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total -= r.calls[id]
	delete(r.calls, id)
}
