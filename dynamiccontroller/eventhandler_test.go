package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// eventLog records the calls of an event handler.
type eventLog struct {
	mu     sync.Mutex // guards events
	events []string
}

func (l *eventLog) add(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, fmt.Sprintf(format, args...))
}

// take returns the calls since the last call to take.
func (l *eventLog) take() []string {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.events
	l.events = nil
	return taken
}

func (l *eventLog) handler() dynamiccontroller.EventHandler {
	return dynamiccontroller.EventHandler{
		OnAdd: func(_ context.Context, o dynamiccontroller.Object, isInInitialList bool) {
			l.add("add %s %t", o.GetName(), isInInitialList)
		},
		OnUpdate: func(_ context.Context, before, after dynamiccontroller.Object) {
			l.add("update %s %t", after.GetName(), before.GetResourceVersion() != after.GetResourceVersion())
		},
		OnDelete: func(_ context.Context, o dynamiccontroller.Object) { l.add("delete %s", o.GetName()) },
	}
}

func (l *eventLog) want(t *testing.T, when string, want ...string) {
	t.Helper()
	if got := l.take(); !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", when, got, want)
	}
}

func addEventHandler(
	f *fixture, gvr schema.GroupVersionResource, handler dynamiccontroller.EventHandler,
	opts ...dynamiccontroller.WatchesOption,
) *dynamiccontroller.EventHandlerRegistration {
	f.t.Helper()
	r, err := f.controller.AddEventHandler(gvr, handler, opts...)
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

// A handler receives the existing objects in each session, also without a run, and then the changes.
func TestAddEventHandler_DeliversObjectsAndChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr, served := f.types[0], f.types[1]
		f.put(gvr, "a")
		var l eventLog
		r := addEventHandler(f, gvr, l.handler())
		calls := newCalls(succeed)
		f.serve(served, calls.handle)
		l.want(t, "before a session")
		if r.HasSynced() {
			t.Error("HasSynced before a session")
		}
		stop := f.runWatches()
		if err := r.WaitForSync(t.Context()); err != nil {
			t.Error(err)
		}
		l.want(t, "the existing objects", "add a true")
		f.put(gvr, "b")
		f.put(gvr, "a")
		f.delete(gvr, "a")
		l.want(t, "changes", "add b false", "update a true", "delete a")
		if listed, err := r.Lister().List(labels.Everything()); err != nil || len(listed) != 1 {
			t.Errorf("the lister returned %v, %v", listed, err)
		}
		stop()
		if r.HasSynced() {
			t.Error("HasSynced after a session")
		}
		f.put(gvr, "c")
		f.delete(gvr, "b")
		l.want(t, "between sessions")
		stop = f.run()
		l.want(t, "the next session", "delete b", "add c true")
		calls.want(t, "the served type", named())
		if err := r.Remove(t.Context()); err != nil {
			t.Error(err)
		}
		f.put(gvr, "d")
		l.want(t, "after Remove")
		if n := f.controller.WatchesOf(gvr); n != 0 {
			t.Errorf("%d watches are left", n)
		}
		if err := r.WaitForSync(t.Context()); !errors.Is(err, dynamiccontroller.ErrNotServed) {
			t.Errorf("after Remove, WaitForSync returned %v", err)
		}
		stop()
	})
}

// The registration has not synced in a session before the existing objects of that session have been delivered.
func TestAddEventHandler_SyncsInEachSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		f.put(f.types[0], "a")
		var blocks atomic.Bool
		unblock := make(chan struct{})
		r := addEventHandler(f, f.types[0], dynamiccontroller.EventHandler{
			OnAdd: func(context.Context, dynamiccontroller.Object, bool) {
				if blocks.Load() {
					<-unblock
				}
			},
		})
		stop := f.runWatches()
		if err := r.WaitForSync(t.Context()); err != nil {
			t.Fatal(err)
		}
		stop()
		blocks.Store(true)
		stop = f.runWatches()
		time.Sleep(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.WaitForSync(ctx); r.HasSynced() || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("before the objects of the second session are delivered: HasSynced %t, WaitForSync %v", r.HasSynced(), err)
		}
		close(unblock)
		if err := r.WaitForSync(t.Context()); err != nil || !r.HasSynced() {
			t.Errorf("afterwards: HasSynced %t, WaitForSync %v", r.HasSynced(), err)
		}
		if err := r.Remove(t.Context()); err != nil {
			t.Error(err)
		}
		stop()
	})
}

// A predicate applies to changes, and several handlers and a served type share one watch.
func TestAddEventHandler_SharesWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := f.types[0]
		var all, updates eventLog
		first := addEventHandler(f, gvr, all.handler(), dynamiccontroller.WithCache(dynamiccontroller.CacheFull))
		second := addEventHandler(f, gvr, dynamiccontroller.EventHandler{OnUpdate: updates.handler().OnUpdate},
			dynamiccontroller.WithPredicate(func(_ context.Context, _, newObj dynamiccontroller.Object) bool {
				return newObj != nil && newObj.GetName() == "b"
			}), dynamiccontroller.WithCache(dynamiccontroller.CacheFull))
		f.serve(gvr, succeed)
		stop := f.run()
		for _, name := range []string{"a", "a", "b", "b"} {
			f.put(gvr, name)
		}
		all.want(t, "all changes", "add a false", "update a true", "add b false", "update b true")
		updates.want(t, "accepted updates", "update b true")
		if n := f.controller.WatchesOf(gvr); n != 1 {
			t.Errorf("there are %d watches, want one that is shared", n)
		}
		for _, r := range []*dynamiccontroller.EventHandlerRegistration{first, second} {
			if err := r.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		}
		stop()
	})
}

// A handler that hangs delays neither others nor the removal with a context that is cancelled.
func TestAddEventHandler_MayHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr, hangs := f.types[0], make(chan struct{})
		var cancelled error
		hung := addEventHandler(f, gvr, dynamiccontroller.EventHandler{
			OnAdd: func(ctx context.Context, _ dynamiccontroller.Object, _ bool) {
				<-hangs
				cancelled = ctx.Err()
			},
		})
		var l eventLog
		other := addEventHandler(f, gvr, l.handler())
		calls := newCalls(succeed)
		f.serve(gvr, calls.handle)
		stop := f.run()
		f.put(gvr, "a")
		l.want(t, "another handler", "add a false")
		calls.want(t, "the served type", named("a"))
		time.Sleep(2 * time.Second)
		if running := hung.RunningFunction(); running == nil || !strings.HasPrefix(running.Function, "OnAdd of ") {
			t.Errorf("the running function is %+v", running)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := hung.Remove(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Remove returned %v while a function hangs", err)
		}
		close(hangs)
		if err := hung.Remove(t.Context()); err != nil || cancelled == nil {
			t.Errorf("Remove returned %v; the context of the function: %v", err, cancelled)
		}
		if err := other.Remove(t.Context()); err != nil {
			t.Error(err)
		}
		stop()
	})
}

func TestAddEventHandler_RejectsInvalidArguments(t *testing.T) {
	f := newFixture(t, 1, dynamiccontroller.Config{})
	var l eventLog
	for name, opts := range map[string][]dynamiccontroller.WatchesOption{
		"a bucket label":  {dynamiccontroller.WithBucketLabel("example.com/bucket")},
		"AfterLoss":       {dynamiccontroller.AfterLoss(nil)},
		"only keys":       {dynamiccontroller.WithCache(dynamiccontroller.CacheKeys)},
		"a bad namespace": {dynamiccontroller.WithNamespaces("A")},
	} {
		if _, err := f.controller.AddEventHandler(f.types[0], l.handler(), opts...); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := f.controller.AddEventHandler(f.types[0], dynamiccontroller.EventHandler{}); err == nil {
		t.Error("no functions: no error")
	}
}

// The functions of watches can tell the old state of a change from the new one.
func TestChangeOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 3, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		served, watched, standalone := f.types[0], f.types[1], f.types[2]
		var l eventLog
		record := func(ctx context.Context, o dynamiccontroller.Object) {
			oldObj, newObj, ok := dynamiccontroller.ChangeOf(ctx)
			l.add("%s old %t new %t %t", o.GetName(), o == oldObj, o == newObj, ok)
		}
		f.put(watched, "existing")
		startWatch(f, standalone, func(
			ctx context.Context, o dynamiccontroller.Object,
		) []dynamiccontroller.ObjectIdentifiers {
			record(ctx, o)
			return nil
		})
		f.serve(served, succeed, dynamiccontroller.Watches(watched,
			func(ctx context.Context, o dynamiccontroller.Object) []string {
				record(ctx, o)
				return nil
			}))
		stop := f.run()
		l.want(t, "an existing object", "existing old false new false false")
		for _, gvr := range []schema.GroupVersionResource{watched, standalone} {
			f.put(gvr, "a")
			f.put(gvr, "a")
			f.delete(gvr, "a")
			l.want(t, gvr.Resource, "a old false new true true", "a old true new false true", "a old false new true true",
				"a old true new false true")
		}
		stop()
		if _, _, ok := dynamiccontroller.ChangeOf(t.Context()); ok {
			t.Error("another context has a change")
		}
	})
}
