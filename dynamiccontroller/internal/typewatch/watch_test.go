package typewatch

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// inRuns runs a test with a stopped pool in a synctest bubble. The function run, which inRuns passes to the test,
// starts the pool, calls its argument and stops the pool.
func inRuns(t *testing.T, test func(t *testing.T, srv *server, s *Subscription, run func(func()))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv := newServer("a")
		p := newTestPool(srv)
		s := p.Subscribe(options(Full), nil)
		test(t, srv, s, func(f func()) {
			stop := p.Start()
			synctest.Wait()
			f()
			stop()
		})
		closeAndWait(s)
	})
}

func TestD3_ListsAreNotOlderThanTheStore(t *testing.T) {
	inRuns(t, func(t *testing.T, srv *server, s *Subscription, run func(func())) {
		srv.lag()
		run(func() {
			srv.put("b")
			synctest.Wait()
		})
		r := attachRecorder(s)
		run(func() { r.expect(t, "the second run", "known ns/a", "known ns/b", "synced") })
		lists := srv.listed()
		last := lists[len(lists)-1]
		if last.ResourceVersion != "2" || last.ResourceVersionMatch != metav1.ResourceVersionMatchNotOlderThan {
			t.Errorf("the second run listed with %+v", last)
		}
	})
}

// An etcd that was restored from a backup has lost the versions and the objects that were created after the backup.
func TestD3_RestoredEtcdReplacesTheStore(t *testing.T) {
	inRuns(t, func(t *testing.T, srv *server, s *Subscription, run func(func())) {
		run(func() {
			srv.put("lost")
			srv.put("a")
			synctest.Wait()
		})
		srv.restore(1)
		r := attachRecorder(s)
		run(func() { r.expect(t, "after the restore", "known ns/a", "ns/lost 2>-", "synced") })
		srv.put("b")
		before := len(srv.listed())
		r.attach(s)
		run(func() { r.expect(t, "the third run", "known ns/a", "known ns/b", "synced") })
		if lists := srv.listed()[before:]; len(lists) != 1 || lists[0].ResourceVersion != "1" {
			t.Errorf("the third run listed with %+v", lists)
		}
	})
}

// If the API server answers with 410, it no longer has the store's version. The watch then lists the most recent
// version.
func TestD3_ExpiredVersionIsFollowedByAListOfTheLatest(t *testing.T) {
	inRuns(t, func(t *testing.T, srv *server, s *Subscription, run func(func())) {
		run(func() {})
		srv.put("b")
		srv.delete("a")
		srv.set(func() { srv.expired = true })
		r := attachRecorder(s)
		before := len(srv.listed())
		run(func() { r.expect(t, "the second run", "known ns/b", "ns/a 1>-", "synced") })
		var versions []string
		for _, list := range srv.listed()[before:] {
			versions = append(versions, list.ResourceVersion)
		}
		if diff := cmp.Diff([]string{"1", ""}, versions); diff != "" {
			t.Errorf("versions that the lists requested: %s", diff)
		}
	})
}

// A type event that arrives before the first attempt of a run does not empty the store. The result of the first list
// determines the content.
func TestS5_EarlyVanishedDoesNotEmptyTheStore(t *testing.T) {
	inRuns(t, func(t *testing.T, srv *server, s *Subscription, run func(func())) {
		run(func() {})
		r := attachRecorder(s)
		s.pool.Vanished(widgets) // between runs
		if state := s.State(); state.Phase != Stopped || !s.View().Store().Has("ns/a") {
			t.Errorf("the state is %+v, and the store has %v", state, s.View().Store().Keys())
		}
		run(func() {
			r.expect(t, "the second run", "known ns/a", "synced")
			if state := s.State(); state.Phase != Synced {
				t.Errorf("%+v", state)
			}
		})
	})
}

func TestS5_VanishedDeletesAllObjects(t *testing.T) {
	inRuns(t, func(t *testing.T, srv *server, s *Subscription, run func(func())) {
		r := attachRecorder(s)
		run(func() {
			r.take()
			srv.set(func() { srv.refuseLists[Full] = errors.New("gone") })
			if !s.pool.Vanished(widgets) {
				t.Error("Vanished returned false for a type with a watch")
			}
			if s.pool.Vanished(schema.GroupVersionResource{Resource: "others"}) {
				t.Error("Vanished returned true for a type without a watch")
			}
			synctest.Wait()
			r.expect(t, "gone", "ns/a 1>-")
			srv.set(func() { clear(srv.refuseLists) })
			time.Sleep(10 * time.Minute)
			r.expect(t, "served again", "ns/a ->1")
		})
	})
}

func TestAppeared_EndsTheBackoff(t *testing.T) {
	inRuns(t, func(t *testing.T, srv *server, s *Subscription, run func(func())) {
		srv.set(func() { srv.refuseLists[Full] = errors.New("not yet") })
		run(func() {
			time.Sleep(10 * time.Minute)
			srv.set(func() { clear(srv.refuseLists) })
			s.pool.Appeared(widgets)
			synctest.Wait()
			if !s.HasSynced() {
				t.Errorf("%+v", s.State())
			}
		})
	})
}

func TestVersion_IsBehindOnlyIfVersionsCanBeCompared(t *testing.T) {
	for name, test := range map[string]struct {
		old, next string
		restored  bool // after the old watch listed
		want      bool
	}{
		"older":                     {"10", "9", false, true},
		"older with fewer digits":   {"100", "99", false, true},
		"equal":                     {"10", "10", false, false},
		"newer":                     {"9", "10", false, false},
		"older, etcd was restored":  {"10", "9", true, false},
		"no version yet":            {"", "9", false, false},
		"no version in the new one": {"9", "", true, false},
		"from an empty server":      {"0", "9", false, false},
		"to an empty server":        {"9", "0", false, true},
		"not a number":              {"b", "a", false, false},
		"no longer a number":        {"9", "a", false, false},
		"a leading zero":            {"010", "9", false, false},
		"more than 64 bits":         {"99999999999999999999", "9", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			old, next := &reflector{}, &reflector{}
			if test.restored {
				next.history.Store(1)
			}
			old.advance(versionNumber(test.old))
			next.advance(versionNumber(test.next))
			if got := next.isBehind(old); got != test.want {
				t.Errorf("got %t", got)
			}
		})
	}
}
