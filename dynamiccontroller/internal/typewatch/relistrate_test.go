package typewatch

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// All watches of a controller can share one connection. If it is cut, the relists of all types must not come at once, and events
// must not wait for them.
func TestRelistsOfAllTypesAreSpaced(t *testing.T) {
	const types = 100
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.put("a")
		p := newTestPool(s)
		var needs []*Need
		var ears []*ear
		for i := range types {
			want := wantDepth(Full)
			want.GVR.Resource = fmt.Sprint("widgets", i)
			n, e := p.Acquire(want), &ear{}
			n.Attach(e.sink())
			needs, ears = append(needs, n), append(ears, e)
		}
		runs(p, func() {
			time.Sleep(2 * time.Second)
			first := len(s.listed())
			s.closeWatches()
			time.Sleep(20 * time.Millisecond)
			if relists := len(s.listed()) - first; relists > relistBurst {
				t.Errorf("%d relists at once, want at most %d", relists, relistBurst)
			}
			for _, e := range ears {
				e.take()
			}
			s.setSpec("other")
			s.put("b")
			synctest.Wait()
			for i, e := range ears {
				if heard := e.take(); len(heard) != 1 {
					t.Fatalf("type %d: the new object was not reported while the relist is pending: %v", i, heard)
				}
			}
			before := len(s.listed())
			for range types / relistsPerSecond {
				time.Sleep(time.Second)
				now := len(s.listed())
				if now-before > relistsPerSecond {
					t.Errorf("%d relists within a second, want at most %d", now-before, relistsPerSecond)
				}
				before = now
			}
			time.Sleep(time.Second)
			if relists := len(s.listed()) - first; relists != types {
				t.Errorf("%d relists, want one for each of %d types", relists, types)
			}
			time.Sleep(time.Hour)
			if relists := len(s.listed()) - first; relists != types {
				t.Errorf("%d relists after an hour, want %d", relists, types)
			}
		})
		for _, n := range needs {
			release(n)
		}
	})
}

// Only the schema of a custom resource can change, and its group has at least one dot.
func TestBuiltInTypesAreNotRelistedAfterTheirWatchIsClosedEarly(t *testing.T) {
	for _, group := range []string{"", "apps", "batch"} {
		t.Run(group, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer()
				s.put("a")
				p := newTestPool(s)
				n, e := p.Acquire(Want{Spec: Spec{GVR: schema.GroupVersionResource{Group: group, Version: "v1", Resource: "things"}, Depth: Full}}), &ear{}
				n.Attach(e.sink())
				runs(p, func() {
					e.take()
					for range 20 {
						time.Sleep(10 * time.Second)
						s.closeWatches()
						s.put("b")
					}
					time.Sleep(time.Second)
					if heard := e.take(); len(heard) != 20 {
						t.Errorf("%d of 20 events: %v", len(heard), heard)
					}
					if lists := s.listed(); len(lists) != 1 {
						t.Errorf("%d lists, want only the first", len(lists))
					}
				})
				release(n)
			})
		})
	}
}
