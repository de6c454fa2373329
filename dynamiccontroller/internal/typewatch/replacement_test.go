package typewatch

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// inBubble runs a test with a running pool in a synctest bubble.
func inBubble(t *testing.T, test func(t *testing.T, srv *server, p *Pool)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv := newServer()
		p := newTestPool(srv)
		stop := p.Start()
		test(t, srv, p)
		stop()
		if n := p.Watches(widgets); n > 0 {
			t.Errorf("%d watches are still in the pool after the test", n)
		}
	})
}

// selecting returns options for objects with the label x=1.
func selecting(projection Projection) Options {
	o := options(projection)
	o.LabelSelector = "x=1"
	return o
}

// noop is passed to Replace by tests that do not use its callbacks.
func noop() {}

var x1 = map[string]string{"x": "1"}

func TestReplace_DeliversOneDifferenceAfterReplaced(t *testing.T) {
	for name, test := range map[string]struct {
		from, to Options
		want     []string // the events after the call to onReplace
	}{
		"a narrower selector":             {options(Full), selecting(Full), []string{"ns/b 2>-"}},
		"a wider selector":                {selecting(Full), options(Full), []string{"ns/b ->2"}},
		"a narrower selector of keys":     {options(Keys), selecting(Keys), []string{"ns/b >-"}},
		"a wider selector and metadata":   {selecting(Full), options(Metadata), []string{"ns/b ->2"}},
		"a wider projection":              {options(Metadata), options(Full), []string{"ns/a 1>1"}},
		"a transform of the same objects": {options(Full), transformed(Full), []string{"ns/a 1>1"}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, srv *server, p *Pool) {
				srv.putWith("a", x1)
				srv.put("b")
				s := p.Subscribe(test.from, nil)
				r := attachRecorder(s)
				synctest.Wait()
				r.take()
				if test.from.LabelSelector == test.to.LabelSelector {
					srv.setLabel("a", "changed") // at the same version
				}
				s.Replace(test.to, func() {
					if got := s.View().Options().Key; got != test.to.Key {
						t.Errorf("View has options %v when onReplace is called", got)
					}
					r.record("replaced")
				}, func() { r.record("delivered") })
				time.Sleep(time.Second)
				want := slices.Concat([]string{"replaced"}, test.want, []string{"delivered"})
				if diff := cmp.Diff(want, r.take()); diff != "" {
					t.Error(diff)
				}
				if n := p.Watches(widgets); n != 1 {
					t.Errorf("got %d watches after the switch", n)
				}
				srv.putWith("a", x1)
				synctest.Wait()
				if got := r.take(); len(got) != 1 {
					t.Errorf("an event after the switch was delivered as %v", got)
				}
				closeAndWait(s)
			})
		})
	}
}

// After a change to the schema, a watch with a wider projection can end before it has listed again. The next watch has
// the new content.
func TestS6_MoveDeliversContentThatChangedAtTheSameVersion(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		deep := p.Subscribe(options(Complete), nil)
		s := p.Subscribe(options(Full), nil)
		r := attachRecorder(s)
		synctest.Wait()
		r.take()
		srv.setSpec("defaulted")
		closeAndWait(deep)
		time.Sleep(time.Second)
		if diff := cmp.Diff([]string{"ns/a 1>1"}, r.take()); diff != "" {
			t.Error(diff)
		}
		closeAndWait(s)
	})
}

// A move to another watch can be redirected to the watch that the subscription already uses.
func TestReplacement_CanLeadToTheCurrentWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		s := p.Subscribe(options(Metadata), nil)
		m := attachModel(t, s)
		synctest.Wait()
		replaced := false
		p.mu.Lock()
		r := s.replaceLocked(options(Metadata), s.current.Load().at, func() { replaced = true }, noop)
		p.mu.Unlock()
		r.run()
		if _, pending := s.Replacement(); pending || !replaced || p.Watches(widgets) != 1 {
			t.Errorf("pending: %t, replaced: %t, watches: %d", pending, replaced, p.Watches(widgets))
		}
		srv.put("b")
		srv.delete("a")
		synctest.Wait()
		if diff := m.diff(srv.versions()); diff != "" {
			t.Error(diff)
		}
		m.close()
	})
}

func TestReplace_KeepsTheOldWatchUntilTheNewOneHasSynced(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		observed := &phaseLog{}
		s := p.Subscribe(options(Metadata), observed.observe)
		m := attachModel(t, s)
		synctest.Wait()
		srv.set(func() {
			srv.refuseLists[Full] = apierrors.NewForbidden(widgets.GroupResource(), "", errors.New("not allowed"))
		})
		replaced := false
		s.Replace(options(Full), func() { replaced = true }, noop)
		time.Sleep(time.Hour)
		srv.put("b")
		srv.delete("a")
		synctest.Wait()
		if diff := m.diff(srv.versions()); diff != "" {
			t.Error(diff)
		}
		state, pending := s.Replacement()
		if !pending || state.Phase != Forbidden || state.Message == "" {
			t.Errorf("replacement: %+v, pending: %t", state, pending)
		}
		if replaced || !s.HasSynced() || s.State().Phase != Synced || s.View().Options().Projection != Metadata {
			t.Errorf("replaced: %t, state: %+v", replaced, s.State())
		}
		if want := []Phase{Syncing, Synced}; !slices.Equal(observed.all(), want) {
			t.Errorf("observed %v, want %v", observed.all(), want)
		}
		srv.set(func() { clear(srv.refuseLists) })
		time.Sleep(time.Minute)
		if _, pending := s.Replacement(); pending || !replaced || s.View().Options().Projection != Full {
			t.Errorf("pending: %t, replaced: %t", pending, replaced)
		}
		srv.put("a")
		synctest.Wait()
		if diff := m.diff(srv.versions()); diff != "" {
			t.Error(diff)
		}
		m.close()
	})
}

// Objects that a lagging watch with a wider projection has not received yet must not be reported as deleted.
func TestS6_ReplaceWaitsUntilTheNewWatchHasCaughtUp(t *testing.T) {
	for name, catchUp := range map[string]func(*server){
		"by an event": func(srv *server) { srv.set(func() { clear(srv.paused) }) },
		"by a list": func(srv *server) {
			srv.closeWatches()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, srv *server, p *Pool) {
				srv.put("a")
				s, other := p.Subscribe(options(Metadata), nil), p.Subscribe(options(Full), nil)
				r := attachRecorder(s)
				synctest.Wait()
				srv.set(func() { srv.paused[Full] = true })
				srv.put("b")
				synctest.Wait()
				r.take()
				s.Replace(options(Full), func() { r.record("replaced") }, noop)
				time.Sleep(minLag / 2)
				r.expect(t, "while the new watch lags")
				if !s.View().Store().Has("ns/b") {
					t.Error("the view has lost an object")
				}
				catchUp(srv)
				time.Sleep(time.Second)
				r.expect(t, "after it has caught up", "replaced")
				closeAndWait(other)
				closeAndWait(s)
			})
		})
	}
}

// A watch with a selector receives no events for other objects, but it receives bookmarks.
func TestReplace_SwitchesAfterABookmark(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.putWith("a", x1)
		s, other := p.Subscribe(options(Full), nil), p.Subscribe(selecting(Full), nil)
		r := attachRecorder(s)
		synctest.Wait()
		srv.put("b")
		synctest.Wait()
		r.take()
		s.Replace(selecting(Full), noop, noop)
		synctest.Wait()
		r.expect(t, "before the bookmark")
		srv.bookmark()
		synctest.Wait()
		r.expect(t, "after the bookmark", "ns/b 2>-")
		closeAndWait(other)
		closeAndWait(s)
	})
}

// The new watch's first list requests the version of the old watch's newest event.
func TestD3_ReplacementListIsNotOlderThanTheOldStore(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		srv.lag()
		s := p.Subscribe(options(Metadata), nil)
		m := attachModel(t, s)
		synctest.Wait()
		srv.put("b")
		synctest.Wait()
		s.Replace(options(Full), noop, noop)
		synctest.Wait()
		lists := srv.listed()
		if last := lists[len(lists)-1]; last.ResourceVersion != "2" || last.projection != Full {
			t.Errorf("the last list is %+v", last)
		}
		if _, pending := s.Replacement(); pending {
			t.Error("the replacement is still pending")
		}
		if diff := m.diff(srv.versions()); diff != "" {
			t.Error(diff)
		}
		m.close()
	})
}

// After etcd was restored from a backup, the new list is older than the old store for a long time.
func TestD3_ReplaceSwitchesImmediatelyAfterEtcdWasRestored(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		s := p.Subscribe(options(Metadata), nil)
		r := attachRecorder(s)
		synctest.Wait()
		srv.put("lost")
		srv.put("lost")
		synctest.Wait()
		r.take()
		// The old watch cannot recover by itself.
		srv.set(func() {
			srv.refuseLists[Metadata] = errors.New("later")
			srv.refuseWatches[Metadata] = errors.New("later")
		})
		srv.restore(1)
		s.Replace(options(Full), noop, noop)
		time.Sleep(time.Minute)
		r.expect(t, "after the switch", "ns/lost 3>-")
		closeAndWait(s)
	})
}

func TestReplace_SwitchesImmediatelyIfTheOldWatchNeverSynced(t *testing.T) {
	for name, next := range map[string]Options{
		"other objects": selecting(Full), "a transform": transformed(Full), "a wider projection": options(Full),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := newServer()
				srv.putWith("a", x1)
				p := newTestPool(srv)
				s := p.Subscribe(options(Metadata), nil)
				r := attachRecorder(s)
				replaced := false
				s.Replace(next, func() { replaced = true }, noop)
				if !replaced || s.View().Options().Key != next.Key {
					t.Errorf("replaced: %t, options: %+v", replaced, s.View().Options())
				}
				stop := p.Start()
				synctest.Wait()
				r.expect(t, "after the first list", "known ns/a", "synced")
				if n := p.Watches(widgets); n != 1 {
					t.Errorf("got %d watches, want 1", n)
				}
				closeAndWait(s)
				stop()
			})
		})
	}
}

func TestReplace_WithTheSameWatchTakesEffectImmediately(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		s, keeps := p.Subscribe(options(Full), nil), p.Subscribe(options(Full), nil)
		r := attachRecorder(s)
		synctest.Wait()
		r.take()
		srv.set(func() { srv.refuseLists[Full] = errors.New("later") })
		s.Replace(transformed(Full), func() { t.Error("a cancelled replacement was completed") }, noop)
		replaced := false
		s.Replace(options(Metadata), func() { replaced = true }, noop)
		if !replaced || s.View().Options().Projection != Metadata {
			t.Errorf("replaced: %t, options: %+v", replaced, s.View().Options())
		}
		if _, pending := s.Replacement(); pending {
			t.Error("the earlier replacement is still pending")
		}
		srv.set(func() { clear(srv.refuseLists) })
		time.Sleep(time.Minute)
		r.expect(t, "with the same objects")
		if n := p.Watches(widgets); n != 1 {
			t.Errorf("got %d watches, want 1", n)
		}
		closeAndWait(keeps)
		closeAndWait(s)
	})
}

func TestReplace_CancelsAnEarlierReplacement(t *testing.T) {
	for name, end := range map[string]func(*Subscription){
		"by another one":   func(s *Subscription) { s.Replace(selecting(Full), noop, noop) },
		"by CancelReplace": (*Subscription).CancelReplace,
		"by Close":         (*Subscription).Close,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, srv *server, p *Pool) {
				srv.putWith("a", x1)
				s := p.Subscribe(options(Metadata), nil)
				synctest.Wait()
				srv.set(func() { srv.refuseLists[Full] = errors.New("later") })
				s.Replace(options(Full), func() { t.Error("a cancelled replacement was completed") }, noop)
				synctest.Wait()
				end(s)
				srv.set(func() { clear(srv.refuseLists) })
				time.Sleep(time.Minute)
				want := 1
				if IsClosed(s.Ended()) {
					want = 0
				}
				if n, open := p.Watches(widgets), srv.openWatches(); n != want || open != want {
					t.Errorf("got %d watches in the pool and %d open watches, want %d of each", n, open, want)
				}
				closeAndWait(s)
			})
		})
	}
}

// When CancelReplace returns, the callback replaced is no longer running. Calls to these callbacks do not overlap.
func TestReplace_LaterCallsWaitForReplaced(t *testing.T) {
	for name, call := range map[string]func(s *Subscription, done func()){
		"CancelReplace":             func(s *Subscription, done func()) { s.CancelReplace(); done() },
		"Replace by the same watch": func(s *Subscription, done func()) { s.Replace(options(Full), done, noop) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPool(newServer("a"))
			stop := p.Start()
			s := p.Subscribe(options(Metadata), nil)
			<-s.Synced()
			began, calls := make(chan struct{}), make(chan string, 2)
			s.Replace(options(Full), func() {
				close(began)
				time.Sleep(20 * time.Millisecond) // a slow function
				calls <- "replaced"
			}, noop)
			<-began
			call(s, func() { calls <- name })
			if first, second := <-calls, <-calls; first != "replaced" || second != name {
				t.Errorf("%s returned before %s", first, second)
			}
			closeAndWait(s)
			stop()
		})
	}
}

// The subscription switches before the existing objects have been announced.
func TestReplace_AnnouncesObjectsAfterDeletionsFromTheOldStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer("a", "b")
		p := newTestPool(srv)
		stop := p.Start()
		s := p.Subscribe(options(Metadata), nil)
		synctest.Wait()
		stop()
		srv.delete("a")
		srv.put("b")
		srv.put("c")
		r := attachRecorder(s)
		s.Replace(transformed(Full), func() { r.record("replaced") }, noop)
		if got := r.take(); got != nil {
			t.Errorf("while the pool is not running: %v", got)
		}
		srv.set(func() { srv.hang[Metadata] = true }) // the old watch does not sync in this run
		stop = p.Start()
		time.Sleep(time.Second)
		want := []string{"replaced", "ns/a 1>-", "known ns/b", "known ns/c", "synced"}
		if diff := cmp.Diff(want, r.take()); diff != "" {
			t.Error(diff)
		}
		closeAndWait(s)
		stop()
	})
}

// client-go's fake returns lists without a version, and reports a deletion with the object's last version.
func TestReplace_SwitchesImmediatelyIfListsHaveNoVersion(t *testing.T) {
	s, from := newTestWatch(Metadata)
	r := attachRecorder(s)
	listed := from.Replace([]any{object("a", "5"), object("b", "9")}, "")
	if err := errors.Join(listed, from.Delete(object("b", "9"))); err != nil {
		t.Fatal(err)
	}
	r.take()
	replaced := make(chan struct{})
	s.Replace(transformed(Metadata), func() { close(replaced) }, noop)
	to := s.replacement.to.watch.reflectors[0]
	if err := to.Replace([]any{object("a", "5")}, ""); err != nil {
		t.Fatal(err)
	}
	<-replaced
	closeAndWait(s)
}
