package typewatch

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// in returns options for the objects in the namespaces.
func in(namespaces string, projection Projection) Options {
	o := options(projection)
	o.Namespaces = namespaces
	return o
}

func TestNamespaces_EachHasItsOwnRequests(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		for _, name := range []string{"a/1", "b/1", "c/1"} {
			srv.put(name)
		}
		forbidden := apierrors.NewForbidden(widgets.GroupResource(), "", errors.New("not allowed in b"))
		srv.set(func() { srv.refuseIn[""], srv.refuseIn["b"] = errors.New("a list of all namespaces"), forbidden })
		s := p.Subscribe(in("a,b", Full), nil)
		r := attachRecorder(s)
		synctest.Wait()
		srv.put("a/2")
		srv.delete("a/1")
		synctest.Wait()
		r.expect(t, "only one of two namespaces has been listed", "a/1 1>-")
		if state := s.State(); state.Phase != Forbidden || state.Message != forbidden.Error() || s.HasSynced() {
			t.Errorf("the state is %+v, synced: %t", state, s.HasSynced())
		}
		srv.set(func() { delete(srv.refuseIn, "b") })
		time.Sleep(time.Minute)
		r.expect(t, "both namespaces have been listed", "known a/2", "known b/1", "synced")
		if state := s.State(); state.Phase != Synced || !s.HasSynced() || s.View().Store().Len() != 2 {
			t.Errorf("the state is %+v, synced: %t", state, s.HasSynced())
		}
		for _, name := range []string{"a/2", "b/2", "c/2"} {
			srv.put(name)
		}
		srv.delete("b/1")
		synctest.Wait()
		r.expect(t, "events", "a/2 4>6", "b/2 ->7", "b/1 2>-")
		for _, list := range srv.listed() {
			if list.namespace != "a" && list.namespace != "b" {
				t.Errorf("a list of namespace %q", list.namespace)
			}
		}
		closeAndWait(s)
	})
}

// The objects of the other namespaces stay in the store.
func TestNamespaces_RelistDetectsDeletionsInItsNamespaceOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer("a/1", "a/2", "b/1", "ab/1")
		p := newTestPool(srv)
		s := p.Subscribe(in("a,ab,b", Metadata), nil)
		stop := p.Start()
		r := attachRecorder(s)
		synctest.Wait()
		stop()
		r.take()
		srv.delete("a/1")
		srv.set(func() { srv.refuseIn["b"] = errors.New("later") })
		stop = p.Start()
		time.Sleep(time.Minute)
		r.expect(t, "while one namespace cannot be listed", "a/1 1>-")
		if s.View().Store().Len() != 3 {
			t.Errorf("the store holds %v", s.View().Store().Keys())
		}
		srv.set(func() { clear(srv.refuseIn) })
		time.Sleep(time.Minute)
		r.expect(t, "after all lists", "known a/2", "known b/1", "known ab/1", "synced")
		stop()
		closeAndWait(s)
	})
}

func TestNamespaces_ReplacementKeepsObjectsOfCommonNamespaces(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		for _, name := range []string{"a/1", "b/1", "c/1"} {
			srv.put(name)
		}
		srv.set(func() { srv.refuseIn["c"] = errors.New("later") })
		s := p.Subscribe(in("a,b", Full), nil)
		r := attachRecorder(s)
		synctest.Wait()
		r.take()
		s.Replace(in("b,c", Full), func() { r.record("replaced") }, noop)
		time.Sleep(time.Minute)
		if _, pending := s.Replacement(); !pending {
			t.Error("the replacement did not wait for all namespaces")
		}
		r.expect(t, "while one of the new namespaces cannot be listed")
		srv.set(func() { clear(srv.refuseIn) })
		time.Sleep(time.Minute)
		r.expect(t, "after the replacement", "replaced", "a/1 1>-", "c/1 ->3")
		srv.put("a/1")
		srv.put("b/1")
		synctest.Wait()
		r.expect(t, "events", "b/1 2>5")
		closeAndWait(s)
	})
}

// The new watch must catch up with the old one in the namespaces that they have in common, and only there: no event
// arrives from a quiet namespace.
func TestNamespaces_ReplacementIsComparedByNamespace(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("quiet/1")
		behind := p.Subscribe(in("quiet,third", Metadata), nil)
		s, other := p.Subscribe(in("busy,quiet", Full), nil), p.Subscribe(in("quiet,third", Full), nil)
		r := attachRecorder(s)
		synctest.Wait()
		srv.put("busy/1")
		synctest.Wait()
		r.take()
		lists := len(srv.listed())
		s.Replace(in("quiet,third", Full), noop, noop)
		synctest.Wait()
		r.expect(t, "at once", "busy/1 2>-")
		if n := len(srv.listed()); n != lists {
			t.Errorf("the replacement sent %d lists", n-lists)
		}
		srv.set(func() { srv.paused[Metadata] = true })
		srv.put("quiet/2")
		synctest.Wait()
		r.expect(t, "an event", "quiet/2 ->3")
		closeAndWait(other)
		s.Replace(in("quiet,third", Metadata), noop, noop)
		time.Sleep(minLag / 2)
		r.expect(t, "while the new watch lags: no false deletion")
		srv.set(func() { clear(srv.paused) })
		time.Sleep(time.Minute)
		r.expect(t, "after it has caught up")
		if s.View().Options().Projection != Metadata {
			t.Error("the replacement is still pending")
		}
		closeAndWait(behind)
		closeAndWait(s)
	})
}

func TestNamespaces_VanishedTypeEmptiesAll(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a/1")
		srv.put("b/1")
		s := p.Subscribe(in("a,b", Full), nil)
		r := attachRecorder(s)
		synctest.Wait()
		r.take()
		srv.set(func() { srv.refuseLists[Full] = apierrors.NewNotFound(widgets.GroupResource(), "") })
		p.Vanished(widgets)
		time.Sleep(time.Minute)
		r.expect(t, "the type is gone", "a/1 1>-", "b/1 2>-")
		if state := s.State(); state.Phase != NotFound {
			t.Errorf("%+v", state)
		}
		srv.set(func() { clear(srv.refuseLists) })
		p.Appeared(widgets)
		synctest.Wait()
		r.expect(t, "the type is served again", "a/1 ->1", "b/1 ->2")
		if state := s.State(); state.Phase != Synced {
			t.Errorf("%+v", state)
		}
		closeAndWait(s)
	})
}

// A namespace that a type event has emptied counts as not listed, even if another one has been listed again.
func TestNamespaces_ReplacementWaitsForEachEmptiedNamespace(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a/1")
		srv.put("b/1")
		s := p.Subscribe(in("a,b", Metadata), nil)
		other := p.Subscribe(in("a,b", Full), nil)
		r := attachRecorder(s)
		synctest.Wait()
		to := other.watch()
		srv.set(func() { srv.refuseIn["b"] = errors.New("later") })
		to.state.markVanished() // only the watch that will replace the other one is emptied
		time.Sleep(time.Minute)
		r.take()
		s.Replace(in("a,b", Full), noop, noop)
		time.Sleep(time.Minute)
		r.expect(t, "while a namespace is empty: no false deletion")
		srv.set(func() { clear(srv.refuseIn) })
		time.Sleep(time.Minute)
		r.expect(t, "after the replacement")
		if s.watch() != to {
			t.Error("the replacement is still pending")
		}
		closeAndWait(other)
		closeAndWait(s)
	})
}

func TestNamespaces_StopWaitsForAllAfterATransformEndedItsGoroutine(t *testing.T) {
	for _, namespaces := range []string{"a", "a,b"} {
		t.Run(namespaces, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := newServer("a/1", "b/1")
				srv.linger = time.Minute
				p := newTestPool(srv)
				stop := p.Start()
				options := in(namespaces, Full)
				var exited atomic.Bool
				options.Transform = func(obj any) (any, error) {
					if obj.(metav1.Object).GetName() == "2" && exited.CompareAndSwap(false, true) {
						runtime.Goexit()
					}
					return obj, nil
				}
				s := p.Subscribe(options, nil)
				synctest.Wait()
				srv.put("a/2")
				time.Sleep(srv.linger + time.Second) // until the reflector of namespace a has ended
				stop()
				if n := srv.openWatches(); n > 0 || !exited.Load() {
					t.Errorf("%d watches are open, the transform has ended the goroutine: %t", n, exited.Load())
				}
				stop = p.Start()
				synctest.Wait()
				if !s.HasSynced() {
					t.Errorf("not synced in the next run: %+v", s.State())
				}
				stop()
				closeAndWait(s)
			})
		})
	}
}
