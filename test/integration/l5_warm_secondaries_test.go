package integration

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// otherThan returns the name of an object with another name.
func otherThan(name string) string {
	if name == "p29" {
		return "p28"
	}
	return "p29"
}

// A standby keeps the caches of served and owned types up to date. After the standby is promoted, it reconciles each
// object once, starting with objects that have new events.
func TestL5_PromotionSendsNoListOrWatchRequests(t *testing.T) {
	const objects = 30
	h := newHarness(t)
	child := h.widgets()
	parents := []gvrType{h.widgets(), h.widgets()}
	for _, parent := range parents {
		for i := range objects {
			h.apply(parent, fmt.Sprintf("p%d", i), 0)
			if i%3 == 0 {
				h.apply(child, fmt.Sprintf("%s-p%d", parent.Group[:4], i), 0, h.owned(h.id(parent, fmt.Sprintf("p%d", i))))
			}
		}
	}
	w := &wire{}
	c := w.through(h).controller(dynamiccontroller.Config{Workers: 1})
	watches := h.start(c.RunWatches)
	var order []string // object names in the order of the calls; no lock is needed, because there is only one worker
	first, hold := make(chan string, 1), make(chan struct{})
	var once sync.Once
	calls := newRecorder(t, func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		order = append(order, id.Name())
		once.Do(func() { first <- id.Name() })
		<-hold
		return nil
	})
	for _, parent := range parents {
		h.serve(c, parent, calls.handle, dynamiccontroller.Owns(child))
		h.synced(c, parent)
	}
	for i, parent := range parents {
		h.eventuallyWatches(w, parent, 1) // Unless the initial list is streamed, the watch is opened after it.
		h.eventually("the children are cached", func() error {
			if s := c.Status()[i].Secondaries[0]; !s.Synced || s.Objects != 2*objects/3 {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
	}
	h.eventuallyWatches(w, child, 1)
	var requests atomic.Int64
	w.set(func(r *http.Request, send send) (*http.Response, error) {
		if isFor(r, child) || isFor(r, parents[0]) || isFor(r, parents[1]) {
			requests.Add(1)
			t.Errorf("unexpected request %s %s", r.Method, r.URL)
		}
		return send(r)
	})
	stop := h.run(c)
	calls.waitForTotal(1)
	changed := otherThan(<-first) // the only worker is now blocked by this object, which can be any
	h.apply(child, "live", 0, h.owned(h.id(parents[0], changed)))
	h.apply(child, "live-2", 0, h.owned(h.id(parents[1], changed)))
	h.eventually("both events are queued", func() error {
		live := 0
		for _, s := range c.Status() {
			live += s.Live
		}
		if live < 2 {
			return fmt.Errorf("%d live keys", live)
		}
		return nil
	})
	close(hold)
	calls.waitForTotal(2 * objects)
	for _, parent := range parents {
		h.fence(parent, calls)
	}
	h.noError(stop())
	for id, n := range calls.counts() {
		if n != 1 {
			t.Errorf("got %d calls for %s, want 1", n, id)
		}
	}
	if order[1] != changed || order[2] != changed {
		t.Errorf("the objects with new events were not reconciled first: %v", order[:4])
	}
	h.noError(watches())
}
