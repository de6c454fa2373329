package typewatch

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// An API server closes a watch early after a change of the type's schema, which produces no events.
func TestD1_WatchClosedEarlyIsFollowedByARelist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.put("a")
		s.put("b")
		p := newTestPool(s)
		n := p.Acquire(wantDepth(Full))
		e := &ear{}
		n.Attach(e.sink())
		runs(p, func() {
			e.take()
			s.setSpec("other")
			s.put("c")
			time.Sleep(time.Second)
			s.closeWatches()
			time.Sleep(time.Second)
			if diff := cmp.Diff([]string{"ns/a 1>1", "ns/b 2>2", "ns/c ->3"}, e.take()); diff != "" {
				t.Error(diff)
			}
			if phase := n.State().Phase; phase != Synced {
				t.Error(phase)
			}
			s.put("d")
			synctest.Wait()
			if diff := cmp.Diff([]string{"ns/d ->4"}, e.take()); diff != "" {
				t.Error(diff)
			}
			time.Sleep(time.Hour)
			if lists := s.listed(); len(lists) != 2 {
				t.Errorf("%d lists, want the first one and one relist", len(lists))
			}
		})
		n.Release()
		n.Leave(nil)
	})
}

// A streaming list that fails is followed by a plain list. The watch after that list does not resume the failed stream.
func TestWatchAfterAListResumesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		r := newRequests(Spec{GVR: widgets, Depth: Full}, s.clients(), newSharedRelists(), newHealth(nil), func() string { return "" })
		r.resumption.begin()
		options := metav1.ListOptions{ResourceVersion: "0", TimeoutSeconds: ptr.To[int64](300)}
		streaming := options
		streaming.SendInitialEvents = ptr.To(true)
		if _, err := r.openWatch(t.Context(), streaming); err != nil {
			t.Fatal(err)
		}
		if _, err := r.listAll(t.Context(), options); err != nil {
			t.Fatal(err)
		}
		if _, err := r.openWatch(t.Context(), options); err != nil {
			t.Fatal(err)
		}
		if _, err := r.openWatch(t.Context(), options); !errors.Is(err, errRelist) {
			t.Errorf("resumed early: %v", err)
		}
		r.join()
	})
}

func TestTimedOutWatchIsResumedWithoutARelist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		p := newTestPool(s)
		n := p.Acquire(wantDepth(Full))
		runs(p, func() {
			for range 100 {
				time.Sleep(time.Minute)
				s.put("a")
			}
			if lists := s.listed(); len(lists) != 1 {
				t.Errorf("%d lists", len(lists))
			}
		})
		n.Release()
		n.Leave(nil)
	})
}

// Connections that are cut all the time must not cost a list each. A change of the schema must be found nevertheless.
func TestRelistsAfterWatchesClosedEarlyAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.put("a")
		p := newTestPool(s)
		n := p.Acquire(wantDepth(Full))
		e := &ear{}
		n.Attach(e.sink())
		runs(p, func() {
			begun := time.Now()
			for range 120 {
				time.Sleep(30 * time.Second)
				s.put("a")
				s.closeWatches()
			}
			most := 1 + maxEarlyRelists + int(time.Since(begun)/earlyRelistPeriod)
			if lists := len(s.listed()); lists > most || lists < maxEarlyRelists {
				t.Errorf("%d lists, want at most %d", lists, most)
			}
			time.Sleep(time.Second)
			if heard := e.take(); len(heard) != len([]string{"known", "synced"})+120 {
				t.Errorf("relists of unchanged objects were reported: %v", heard)
			}
			s.setSpec("other")
			s.closeWatches()
			time.Sleep(earlyRelistPeriod + time.Second)
			if diff := cmp.Diff([]string{"ns/a 121>121"}, e.take()); diff != "" {
				t.Error(diff)
			}
		})
		n.Release()
		n.Leave(nil)
	})
}

func TestD1_ContentChangeAtTheSameVersionIsReported(t *testing.T) {
	for name, test := range map[string]struct {
		depth Depth
		want  []string
	}{
		"full":     {Full, []string{"ns/a 1>1"}},
		"metadata": {Metadata, []string{"ns/a 1>1"}},
		"keys":     {Keys, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s, n := newTestStore(test.depth, nil)
			e := &ear{}
			n.Attach(e.sink())
			list := func(label string) {
				t.Helper()
				changed, same := object("a", "1"), object("b", "2")
				changed.Labels["a"] = label
				same.Kind = label // depends on whether it came with a list or an event
				if err := s.Replace([]any{changed, same}, "2"); err != nil {
					t.Fatal(err)
				}
			}
			list("before")
			e.take()
			list("before")
			if heard := e.take(); heard != nil {
				t.Errorf("an equal list is reported as %v", heard)
			}
			list("after")
			if diff := cmp.Diff(test.want, e.take()); diff != "" {
				t.Error(diff)
			}
			if obj, _ := s.contents.get("ns/a"); test.depth != Keys && obj.(*metav1.PartialObjectMetadata).Labels["a"] != "after" {
				t.Errorf("%+v is stored", obj)
			}
			if !slices.Contains(s.contents.keys(), "ns/b") {
				t.Error("an unchanged object is lost")
			}
		})
	}
}
