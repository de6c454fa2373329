package references

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// userSelector is a selector with a function that is called by Matches.
type userSelector struct {
	labels.Selector
	matches func()
}

func (s userSelector) Matches(set labels.Labels) bool {
	s.matches()
	return s.Selector.Matches(set)
}

// While user code is running, other objects can declare references.
func TestUserCodeIsCalledWithoutTheLock(t *testing.T) {
	f := newFixture(t)
	id := func(name string) identifiers { return identifiers{GVR: widgets, NamespacedKey: name} }
	var calls atomic.Int32
	called := func(what string) {
		calls.Add(1)
		if run := f.tracker.runs.For(t.Context()); !run.mu.TryLock() {
			t.Error(what + " was called with the lock held")
		} else {
			run.mu.Unlock()
		}
	}
	f.tracker.config.WatchOptions = func(gvr schema.GroupVersionResource) []dynamiccontroller.WatchesOption {
		called("WatchOptions")
		return wholeObjects(gvr)
	}
	selector := userSelector{labels.SelectorFromSet(labels.Set{"app": "x"}), func() { called("Matches") }}
	for _, name := range []string{"a", "b"} {
		if err := f.tracker.Begin(t.Context(), id(name)).Objects(secrets, "default", selector); err != nil {
			t.Fatal(err)
		}
	}
	run := f.tracker.runs.For(t.Context())
	k := run.index.kinds[secrets]
	if ids := run.affected(k, newObject("default", "s", "x")); len(ids) != 0 {
		t.Errorf("before the sync, a change affects %v, want none", ids)
	}
	k.watch.synced = true
	if ids := run.affected(k, newObject("default", "s", "x")); len(ids) != 2 {
		t.Errorf("a change affects %v, want both objects", ids)
	}
	if n := calls.Load(); n != 2 { // equal selectors count once
		t.Errorf("%d calls of user code, want 2", n)
	}
	f.tracker.ForgetType(widgets)
}

// Handlers that declare the first references to a type at the same time start one watch. If starting it takes time,
// other types, and the end of the run, do not wait for it.
func TestStartOfAWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		started := make(chan schema.GroupVersionResource, 10)
		proceed := make(chan struct{})
		f.tracker.config.WatchOptions = func(gvr schema.GroupVersionResource) []dynamiccontroller.WatchesOption {
			started <- gvr
			if gvr == secrets {
				<-proceed
			}
			return wholeObjects(gvr)
		}
		f.serve(widgets)
		f.serve(gadgets)
		results := make(chan error, 10)
		declare := func(_ context.Context, refs *References) error {
			err := refs.Object(secrets, "default", "s")
			results <- err
			return err
		}
		f.on("a", declare)
		f.on("b", declare)
		f.refersTo("g", configMaps, "m")
		f.put(gadgets, "default", "g", "")
		for _, name := range []string{"a", "b"} {
			f.put(widgets, "default", name, "")
		}
		f.fail(secrets, errors.New("on purpose"))
		stop := f.run()
		f.want("the start", "a", "b", "g", "g")
		f.put(configMaps, "default", "m", "")
		f.want("a change to another type", "g")
		close(proceed)
		synctest.Wait()
		if n := len(started); n != 2 {
			t.Errorf("WatchOptions was called %d times, want once for each type", n)
		}
		f.fail(secrets, nil)
		time.Sleep(time.Minute)
		f.want("the sync", "a", "b")
		f.wantWatches("two referrers", secrets, 1)
		stop()
		for close(results); len(results) > 0; {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
	})
}

// A watch that is started while its run ends is stopped. The other watches do not wait for it.
func TestStartOfAWatch_WhileTheRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.controller.RunWatches(ctx) }()
		proceed := make(chan struct{})
		f.tracker.config.WatchOptions = func(gvr schema.GroupVersionResource) []dynamiccontroller.WatchesOption {
			if gvr == secrets {
				<-proceed
			}
			return wholeObjects(gvr)
		}
		f.serve(widgets)
		f.serve(gadgets)
		f.refersTo("g", configMaps, "m")
		f.put(gadgets, "default", "g", "")
		results := make(chan error, 2)
		for _, name := range []string{"a", "b"} {
			f.put(widgets, "default", name, "")
			f.on(name, func(_ context.Context, refs *References) error {
				err := refs.Object(secrets, "default", "s")
				results <- err
				return err
			})
		}
		stop := f.run()
		f.want("the start", "a", "b", "g", "g")
		f.wantWatches("during the run", configMaps, 1)
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			stop()
		}()
		synctest.Wait()
		f.wantWatches("while the start of another watch hangs", configMaps, 0)
		close(proceed)
		<-stopped
		for range 2 {
			if err := <-results; !errors.Is(err, dynamiccontroller.ErrRunEnded) {
				t.Errorf("Object returned %v, want ErrRunEnded", err)
			}
		}
		f.wantWatches("after the run", secrets, 0)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// After a panic of WatchOptions, waiting handlers receive an error, and the next reference tries again.
func TestStartOfAWatch_AfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		var panics atomic.Bool
		panics.Store(true)
		proceed := make(chan struct{})
		f.tracker.config.WatchOptions = func(gvr schema.GroupVersionResource) []dynamiccontroller.WatchesOption {
			<-proceed
			if panics.Load() {
				panic("on purpose")
			}
			return wholeObjects(gvr)
		}
		id := identifiers{GVR: widgets, NamespacedKey: "default/a"}
		declare := func() error { return f.tracker.Begin(t.Context(), id).Object(secrets, "default", "s") }
		results := make(chan any, 2)
		for range 2 {
			go func() {
				defer func() {
					if p := recover(); p != nil {
						results <- p
					}
				}()
				results <- declare()
			}()
		}
		synctest.Wait()
		close(proceed)
		var recovered, failed int
		for range 2 {
			switch result := (<-results).(type) {
			case string:
				recovered++
			case error:
				failed++
				if !strings.Contains(result.Error(), "WatchOptions panicked") {
					t.Errorf("Object returned %v", result)
				}
			default:
				t.Error("Object returned nil")
			}
		}
		if recovered != 1 || failed != 1 {
			t.Errorf("%d calls panicked and %d failed, want one each", recovered, failed)
		}
		panics.Store(false)
		if err := declare(); err != nil {
			t.Errorf("the next reference: %v", err)
		}
		f.tracker.Forget(id)
	})
}
