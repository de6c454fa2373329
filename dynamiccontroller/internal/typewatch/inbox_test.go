package typewatch

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

// hangingHandler returns an event handler whose functions hang from their first call until release is called. called is
// closed at the first call.
func hangingHandler() (handler EventHandler, called <-chan struct{}, release func()) {
	begun, over := make(chan struct{}), make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	hang := func() { begin(); <-over }
	return EventHandler{
		Known: func([]*Object) { hang() }, Synced: func() {}, Changed: func(Change) { hang() },
	}, begun, sync.OnceFunc(func() { close(over) })
}

// While the event handler of a subscription hangs, other subscriptions to the watch receive changes and can be
// attached, detached, replaced and closed, and the pool can be stopped and started.
func TestS3_HungHandlerBlocksNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer("a")
		p := newTestPool(srv)
		stop := p.Start()
		hung := p.Subscribe(blocking(options(Full)), nil)
		synctest.Wait()
		handler, called, release := hangingHandler()
		hung.Attach(handler)
		<-called
		for name, o := range map[string]Options{"b": options(Full), "c": blocking(options(Full))} {
			s := p.Subscribe(o, nil)
			r := attachRecorder(s)
			r.expect(t, "the existing object", "known ns/a", "synced")
			srv.put(name)
			synctest.Wait()
			r.expect(t, "a change", "ns/"+name+" ->"+srv.versions()["ns/"+name])
			s.Detach()
			r.attach(s)
			r.expect(t, "after Detach and Attach", "known ns/a", "known ns/"+name, "synced")
			replaced := false
			s.Replace(selecting(Full), noop, func() { replaced = true })
			synctest.Wait()
			if got := len(r.take()); got != 2 || !replaced {
				t.Errorf("%d events after a replacement, want two deletions; replaced: %t", got, replaced)
			}
			closeAndWait(s)
			srv.delete(name)
			synctest.Wait()
		}
		stop()
		stop = p.Start()
		synctest.Wait()
		if !hung.HasSynced() {
			t.Error("the watch has not synced in the next run")
		}
		hung.Close()
		synctest.Wait()
		if IsClosed(hung.Ended()) {
			t.Error("the subscription has ended while its handler runs")
		}
		release()
		<-hung.Ended()
		stop()
	})
}

// The inbox of a subscription whose handler hangs has at most one entry for each object. When the handler continues, it
// receives the difference.
func TestInbox_IsBoundedByTheNumberOfObjects(t *testing.T) {
	combineFrom(t, 0)
	p := newTestPool(newServer())
	s := p.Subscribe(blocking(options(Metadata)), nil)
	w := s.watch().reflectors[0]
	m := &model{t: t, subscription: s}
	m.known = map[string]string{}
	handler := m.handler()
	hang, changed := make(chan struct{}), handler.Changed
	handler.Changed = func(c Change) { <-hang; changed(c) }
	s.Attach(handler)
	if err := w.Replace([]any{object("first", "1")}, "1"); err != nil {
		t.Fatal(err)
	}
	s.settle()
	versions := map[string]string{"ns/first": "1"}
	for i := range 10_000 {
		name, version := strconv.Itoa(i%10), strconv.Itoa(i+2)
		var err error
		if _, exists := versions["ns/"+name]; exists && rand.N(3) == 0 {
			delete(versions, "ns/"+name)
			err = w.Delete(object(name, version))
		} else {
			versions["ns/"+name] = version
			err = w.Update(object(name, version))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s.inbox.mu.Lock()
	if n := s.inbox.changes.entries.Len(); n > 11 {
		t.Errorf("the inbox has %d entries for 11 objects", n)
	}
	s.inbox.mu.Unlock()
	close(hang)
	s.settle()
	if diff := m.diff(versions); diff != "" {
		t.Error(diff)
	}
	closeAndWait(s)
}

// Calls for one subscription never overlap, although its options change between blocking and non-blocking ones.
func TestInbox_CallsNeverOverlap(t *testing.T) {
	p := newTestPool(newServer())
	s := p.Subscribe(options(Metadata), nil)
	w := s.watch().reflectors[0]
	m := &model{t: t, subscription: s}
	m.known = map[string]string{}
	handler := m.handler()
	var running, calls atomic.Int64
	changed := handler.Changed
	handler.Changed = func(c Change) {
		if running.Add(1) > 1 {
			t.Error("two calls at the same time")
		}
		if calls.Add(1)%10 == 0 {
			runtime.Gosched()
		}
		changed(c)
		running.Add(-1)
	}
	s.Attach(handler)
	if err := w.Replace(nil, "1"); err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for i := range 5000 {
		if rand.N(20) == 0 {
			s.Update(nil, i%2 == 0, nil)
		}
		name, version := strconv.Itoa(i%50), strconv.Itoa(i+2)
		versions["ns/"+name] = version
		if err := w.Update(object(name, version)); err != nil {
			t.Fatal(err)
		}
	}
	s.settle()
	if diff := m.diff(versions); diff != "" {
		t.Error(diff)
	}
	closeAndWait(s)
}

// If the event handler ends its goroutine, everything else is delivered.
func TestInbox_ContinuesAfterGoexit(t *testing.T) {
	p := newTestPool(newServer())
	s := p.Subscribe(blocking(options(Metadata)), nil)
	w := s.watch().reflectors[0]
	var list []any
	for i := range 600 {
		list = append(list, object(fmt.Sprint(i), "1"))
	}
	if err := w.Replace(list, "1"); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	known, changed, synced := map[string]bool{}, map[string]bool{}, false
	s.Attach(EventHandler{
		Known: func(batch []*Object) {
			mu.Lock()
			defer mu.Unlock()
			for _, o := range batch {
				if synced {
					t.Error("Known was called after Synced")
				}
				if o.GetName() == "300" {
					runtime.Goexit()
				}
				known[o.Key()] = true
			}
		},
		Synced: func() {
			mu.Lock()
			defer mu.Unlock()
			synced = true
			runtime.Goexit()
		},
		Changed: func(c Change) {
			mu.Lock()
			defer mu.Unlock()
			changed[c.Key] = true
			runtime.Goexit()
		},
	})
	s.settle()
	if len(known) != 599 || !synced {
		t.Errorf("%d objects are known, want 599; synced: %t", len(known), synced)
	}
	for i := range 10 {
		if err := w.Update(object(fmt.Sprint(i), "2")); err != nil {
			t.Fatal(err)
		}
	}
	s.settle()
	if len(changed) != 10 {
		t.Errorf("%d changes, want 10", len(changed))
	}
	closeAndWait(s)
}

// Detach waits until the running function of the subscription has returned. No other function is called afterwards.
func TestDetach_WaitsForItsOwnFunction(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		for i := range 600 {
			srv.put(strconv.Itoa(i))
		}
		s := p.Subscribe(blocking(options(Full)), nil)
		calls, called, hang := 0, make(chan struct{}), make(chan struct{})
		s.Attach(EventHandler{
			Known:  func([]*Object) { calls++; close(called); <-hang },
			Synced: func() { calls++ }, Changed: func(Change) { calls++ },
		})
		<-called
		srv.put("1")
		detached := make(chan struct{})
		go func() { s.Detach(); close(detached) }()
		synctest.Wait()
		if IsClosed(detached) {
			t.Error("Detach returned while a function was running")
		}
		close(hang)
		<-detached
		srv.put("2")
		synctest.Wait()
		if calls != 1 {
			t.Errorf("%d calls, want 1", calls)
		}
		r := attachRecorder(s)
		if n := len(r.take()); n != 601 {
			t.Errorf("%d events after Attach, want 601", n)
		}
		closeAndWait(s)
	})
}

// A new handler is not called while a function of the former one is running.
func TestAttach_WaitsForTheFormerHandler(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		s := p.Subscribe(blocking(options(Full)), nil)
		handler, called, release := hangingHandler()
		s.Attach(handler)
		<-called
		r := &recorder{}
		s.Attach(r.handler())
		synctest.Wait() // until the pass has begun
		srv.put("b")
		synctest.Wait()
		r.expect(t, "while the former handler is running")
		release()
		synctest.Wait()
		r.expect(t, "when it has returned", "known ns/a", "synced", "ns/b ->2")
		closeAndWait(s)
	})
}

// Before Synced, changes that waited behind the existing objects of an earlier pass are not delivered.
func TestInbox_ANewPassReplacesAnEarlierOneWithItsChanges(t *testing.T) {
	s, w := newTestWatch(Full)
	s.Update(nil, true, nil)
	r, called, hang := &recorder{}, make(chan struct{}, 2), make(chan struct{})
	handler := r.handler()
	known := handler.Known
	handler.Known = func(batch []*Object) { called <- struct{}{}; <-hang; known(batch) }
	s.Attach(handler)
	err := w.Replace([]any{object("a", "1"), object("b", "1")}, "1")
	<-called
	err = errors.Join(err, w.Update(object("a", "2")), w.Delete(object("b", "3")), w.Update(object("c", "4")))
	w.endRun()
	err = errors.Join(err, w.Replace([]any{object("a", "2"), object("c", "4")}, "4"))
	for w.isPassing() {
		runtime.Gosched()
	}
	close(hang)
	s.settle()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"known ns/a", "known ns/b", "ns/b 1>-", "known ns/a", "known ns/c", "synced"}
	if got := r.take(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	closeAndWait(s)
}

// A deletion that was found by the first list of a run is delivered before the existing objects, also if the handler is
// still busy with the former run.
func TestInbox_DeliversDeletionsBeforeExistingObjects(t *testing.T) {
	s, w := newTestWatch(Full)
	s.Update(nil, true, nil)
	r, hang := &recorder{}, make(chan struct{})
	handler := r.handler()
	changed := handler.Changed
	handler.Changed = func(c Change) { <-hang; changed(c) }
	s.Attach(handler)
	err := w.Replace([]any{object("a", "1"), object("b", "1")}, "1")
	s.settle()
	r.take()
	err = errors.Join(err, w.Update(object("a", "2")), w.Update(object("b", "3")))
	w.endRun()
	err = errors.Join(err, w.Replace([]any{object("a", "4"), object("c", "5")}, "5"))
	for w.isPassing() {
		runtime.Gosched()
	}
	err = errors.Join(err, w.Update(object("c", "6")))
	close(hang)
	s.settle()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"ns/a 1>2", "ns/b 1>3", "ns/b 3>-", "known ns/a", "known ns/c", "synced", "ns/c 5>6"}
	if got := r.take(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	closeAndWait(s)
}

func (r *reflector) isPassing() bool {
	r.watch.delivery.Lock()
	defer r.watch.delivery.Unlock()
	return r.watch.pass != nil
}

// The difference is delivered with the old and the new view. onDelivered is called afterwards, or after ten seconds if
// the handler hangs.
func TestReplace_DeliversTheDifferenceWithBothViews(t *testing.T) {
	combineFrom(t, 0)
	for name, hangs := range map[string]bool{"a handler that returns": false, "a handler that hangs": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, srv *server, p *Pool) {
				srv.put("a")
				old, next := blocking(options(Metadata)), blocking(options(Full))
				old.Value, next.Value = "old", "next"
				s := p.Subscribe(old, nil)
				hang := make(chan struct{})
				var changes []Change
				s.Attach(EventHandler{Known: func([]*Object) {}, Synced: func() {}, Changed: func(c Change) {
					<-hang
					changes = append(changes, c)
				}})
				synctest.Wait()
				srv.put("first") // its change occupies the handler
				synctest.Wait()
				srv.put("a")
				var delivered time.Duration
				began := time.Now()
				s.Replace(next, noop, func() { delivered = time.Since(began) })
				time.Sleep(time.Second)
				srv.put("a")
				synctest.Wait()
				if hangs {
					time.Sleep(time.Minute)
				}
				close(hang)
				synctest.Wait()
				if want := map[bool]time.Duration{false: time.Second, true: maxDelivery}[hangs]; delivered != want {
					t.Errorf("onDelivered was called after %s, want %s", delivered, want)
				}
				last := changes[len(changes)-1]
				if last.Key != "ns/a" || last.Old.View.Value() != "old" || last.New.View.Value() != "next" ||
					last.Old.View.SameForm(last.New.View) || last.Old.GetResourceVersion() != "1" ||
					last.New.GetResourceVersion() != "4" {
					t.Errorf("the changes are %v", changes)
				}
				closeAndWait(s)
			})
		})
	}
}

// A change that only the new watch has received has the old view in its old state, whether or not the handler blocks.
func TestReplace_DifferenceHasTheOldAndTheNewView(t *testing.T) {
	for name, blocks := range map[string]bool{"blocking": true, "not blocking": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, srv *server, p *Pool) {
				srv.put("a")
				old, next := options(Metadata), options(Full)
				old.Value, old.Blocking, next.Value, next.Blocking = "old", blocks, "next", blocks
				s := p.Subscribe(old, nil)
				var changes []Change
				s.Attach(EventHandler{Known: func([]*Object) {}, Synced: func() {}, Changed: func(c Change) {
					changes = append(changes, c)
				}})
				synctest.Wait()
				srv.set(func() { srv.paused[Metadata] = true })
				srv.put("a")
				s.Replace(next, noop, noop)
				synctest.Wait()
				if len(changes) != 1 || changes[0].Old.View.Value() != "old" || changes[0].New.View.Value() != "next" ||
					changes[0].Old.View.SameForm(changes[0].New.View) {
					t.Errorf("the changes are %v", changes)
				}
				closeAndWait(s)
			})
		})
	}
}

// Update replaces the value of the newest options, also if a replacement is pending or the pool moves the subscription.
func TestUpdate_AppliesToTheNewestOptions(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		value := func(s *Subscription) any { return s.View().Value() }
		s := p.Subscribe(options(Metadata), nil)
		synctest.Wait()
		s.Update("current", false, nil)
		if got := value(s); got != "current" {
			t.Errorf("the value is %v", got)
		}
		srv.set(func() { srv.hang[Full] = true })
		s.Replace(options(Full), noop, noop)
		s.Update("pending", true, nil)
		if got := value(s); got != "current" {
			t.Errorf("while the replacement is pending, the value is %v", got)
		}
		srv.set(func() { srv.hang[Full] = false })
		time.Sleep(10 * time.Minute)
		if view := s.View(); view.Value() != "pending" || !view.Options().Blocking || view.Options().Projection != Full {
			t.Errorf("after the replacement, the options are %+v", view.Options())
		}
		narrow := p.Subscribe(options(Metadata), nil)
		synctest.Wait()
		srv.set(func() { srv.hang[Metadata] = true })
		s.Close() // the pool moves the other subscription to a watch of the metadata
		<-s.Ended()
		narrow.Update("moved", false, nil)
		if got := value(narrow); got != "moved" {
			t.Errorf("during the move, the value is %v", got)
		}
		srv.set(func() { srv.hang[Metadata] = false })
		time.Sleep(10 * time.Minute)
		if got := narrow.View(); got.Value() != "moved" || p.Watches(widgets) != 1 {
			t.Errorf("after the move, the value is %v, and there are %d watches", got.Value(), p.Watches(widgets))
		}
		closeAndWait(narrow)
	})
}

func TestBusy_ReturnsTheRunningFunction(t *testing.T) {
	s, _ := newTestWatch(Full)
	_ = s.Call("predicate", func() {
		if function, since := s.Busy(); function != "predicate" || time.Since(since) > time.Minute {
			t.Errorf("busy with %q since %s", function, since)
		}
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Call("MapFunc", runtime.Goexit)
	}()
	<-ended
	if function, since := s.Busy(); function != "" || !since.IsZero() {
		t.Errorf("afterwards, busy with %q since %s", function, since)
	}
	closeAndWait(s)
}

func TestInbox_HasNoGoroutineWhileItIsEmpty(t *testing.T) {
	before := goleak.IgnoreCurrent()
	p := newTestPool(newServer())
	var subscriptions []*Subscription
	for i := range 20 {
		o := options(Full)
		o.Blocking = i%2 == 0
		subscriptions = append(subscriptions, p.Subscribe(o, nil))
		attachRecorder(subscriptions[i])
	}
	w := subscriptions[0].watch().reflectors[0]
	if err := errors.Join(w.Replace([]any{object("a", "1")}, "1"), w.Update(object("a", "2"))); err != nil {
		t.Fatal(err)
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
	for _, s := range subscriptions {
		closeAndWait(s)
	}
}
