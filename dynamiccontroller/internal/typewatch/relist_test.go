package typewatch

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The API server closes a watch early after a change to the type's schema. The change itself produces no events.
func TestD1_WatchClosedEarlyIsFollowedByARelist(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		srv.put("b")
		s := p.Subscribe(options(Full), nil)
		r := attachRecorder(s)
		synctest.Wait()
		r.take()
		srv.setSpec("other")
		srv.put("c")
		time.Sleep(time.Second)
		srv.closeWatches()
		time.Sleep(time.Second)
		r.expect(t, "after the relist", "ns/a 1>1", "ns/b 2>2", "ns/c ->3")
		if phase := s.State().Phase; phase != Synced {
			t.Error(phase)
		}
		srv.put("d")
		synctest.Wait()
		r.expect(t, "an event", "ns/d ->4")
		time.Sleep(time.Hour)
		if lists := srv.listed(); len(lists) != 2 {
			t.Errorf("%d lists, want the first one and one relist", len(lists))
		}
		closeAndWait(s)
	})
}

func TestWatch_ResumesWithoutARelistAfterATimeout(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		s := p.Subscribe(options(Full), nil)
		for range 100 {
			time.Sleep(time.Minute)
			srv.put("a")
		}
		if lists := srv.listed(); len(lists) != 1 {
			t.Errorf("got %d lists, want only the first", len(lists))
		}
		closeAndWait(s)
	})
}

// If connections are lost repeatedly, not every lost connection causes a relist. A schema change is still detected.
func TestRelist_IsLimitedForEachType(t *testing.T) {
	const burst, period = 10, 5 * time.Minute
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		s := p.Subscribe(options(Full), nil)
		r := attachRecorder(s)
		began := time.Now()
		for range 120 {
			time.Sleep(30 * time.Second)
			srv.put("a")
			srv.closeWatches()
		}
		most := 1 + burst + int(time.Since(began)/period)
		if lists := len(srv.listed()); lists > most || lists < burst {
			t.Errorf("%d lists, want at most %d", lists, most)
		}
		time.Sleep(time.Second)
		if events := r.take(); len(events) != len([]string{"known", "synced"})+120 {
			t.Errorf("relists of unchanged objects were delivered: %v", events)
		}
		srv.setSpec("other")
		srv.closeWatches()
		time.Sleep(period + time.Second)
		r.expect(t, "after the schema changed", "ns/a 121>121")
		closeAndWait(s)
	})
}

// All watches of a controller can share one connection. If it is lost, the relists of all types must not be sent at the
// same time, and events must not wait for the relists.
func TestRelist_IsLimitedAcrossTypes(t *testing.T) {
	const types, perSecond = 100, 20
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		var subscriptions []*Subscription
		var recorders []*recorder
		for i := range types {
			o := options(Full)
			o.GVR.Resource = fmt.Sprint("widgets", i)
			s := p.Subscribe(o, nil)
			subscriptions, recorders = append(subscriptions, s), append(recorders, attachRecorder(s))
		}
		time.Sleep(2 * time.Second)
		first := len(srv.listed())
		srv.closeWatches()
		time.Sleep(20 * time.Millisecond)
		if relists := len(srv.listed()) - first; relists > perSecond {
			t.Errorf("%d relists at once, want at most %d", relists, perSecond)
		}
		for _, r := range recorders {
			r.take()
		}
		srv.setSpec("other")
		srv.put("b")
		synctest.Wait()
		for _, r := range recorders {
			r.expect(t, "while the relist is pending", "ns/b ->2")
		}
		before := len(srv.listed())
		for range types / perSecond {
			time.Sleep(time.Second)
			now := len(srv.listed())
			if now-before > perSecond {
				t.Errorf("%d relists within a second, want at most %d", now-before, perSecond)
			}
			before = now
		}
		time.Sleep(time.Hour)
		if relists := len(srv.listed()) - first; relists != types {
			t.Errorf("%d relists, want one for each of %d types", relists, types)
		}
		for _, s := range subscriptions {
			closeAndWait(s)
		}
	})
}

// Relists are needed only for custom resources, because only their schemas can change. Their groups contain at least
// one dot.
func TestRelist_IsSkippedForBuiltInTypes(t *testing.T) {
	for _, group := range []string{"", "apps", "batch"} {
		t.Run(group, func(t *testing.T) {
			inBubble(t, func(t *testing.T, srv *server, p *Pool) {
				srv.put("a")
				o := options(Full)
				o.GVR = schema.GroupVersionResource{Group: group, Version: "v1", Resource: "things"}
				s := p.Subscribe(o, nil)
				r := attachRecorder(s)
				synctest.Wait()
				r.take()
				for range 20 {
					time.Sleep(10 * time.Second)
					srv.closeWatches()
					srv.put("b")
				}
				time.Sleep(time.Second)
				if events := r.take(); len(events) != 20 {
					t.Errorf("%d of 20 events: %v", len(events), events)
				}
				if lists := srv.relists(0); len(lists) != 1 {
					t.Errorf("%d lists, want only the first", len(lists))
				}
				closeAndWait(s)
			})
		})
	}
}
