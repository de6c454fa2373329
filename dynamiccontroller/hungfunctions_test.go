package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A promotion calls a MapFunc with the objects in the cache. Even if the MapFunc hangs, other types are reconciled and
// the run can end.
func TestS3_HungMapFuncBlocksNeitherOtherTypesNorShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 3, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1, ShutdownTimeout: time.Second})
		hanging, watched, other := f.types[0], f.types[1], f.types[2]
		f.put(hanging, "a")
		f.put(watched, "c")
		f.put(other, "x")
		stopWatches := f.runWatches()
		hang := make(chan struct{})
		mapFunc := func(context.Context, dynamiccontroller.Object) []string { <-hang; return nil }
		f.serve(hanging, succeed, dynamiccontroller.Watches(watched, mapFunc))
		began, ended := time.Time{}, time.Time{}
		f.serve(other, func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			began = time.Now()
			<-ctx.Done()
			ended = time.Now()
			return nil
		})
		stop := f.start()
		at := time.Now()
		if !began.Equal(at) {
			t.Error("the handler of the other type was not called immediately")
		}
		err := stop()
		if took := time.Since(at); took > 3*time.Second || !ended.Equal(at) {
			t.Errorf("the run ended after %s, want at most 3 s; the handler's context ended after %s, want 0 s",
				took, ended.Sub(at))
		}
		text := fmt.Sprint(err)
		if !strings.Contains(text, "MapFunc of "+hanging.Resource) || strings.Contains(text, "watch of") {
			t.Errorf("Run returned %q, want an error that lists only the MapFunc", text)
		}
		if err := f.controller.Run(context.Background()); err == nil {
			t.Error("Run started again while the MapFunc was hanging")
		}
		close(hang)
		synctest.Wait()
		f.run()()
		stopWatches()
	})
}

// A run waits for a MapFunc of a type that was stopped during the run. There is no bubble, because the hung MapFunc
// holds a lock.
func TestD11_RunWaitsForAHungMapFuncOfAStoppedType(t *testing.T) {
	f := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1, ShutdownTimeout: time.Second})
	gvr, watched := f.types[0], f.types[1]
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(watched.GroupVersion().WithKind("Type"))
	object.SetName("a")
	must(f.client.Resource(watched).Namespace("default").Create(t.Context(), object, metav1.CreateOptions{}))
	watching, stopWatches := context.WithCancel(context.Background())
	watchesEnded := make(chan error)
	go func() { watchesEnded <- f.controller.RunWatches(watching) }()
	mapping, hang := make(chan struct{}), make(chan struct{})
	var once sync.Once
	mapFunc := func(context.Context, dynamiccontroller.Object) []string {
		once.Do(func() { close(mapping) })
		<-hang
		return nil
	}
	watch := dynamiccontroller.Watches(watched, mapFunc)
	if err := f.controller.StartServingGVK(watching, gvr, succeed, watch); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- f.controller.Run(ctx) }()
	<-mapping
	stopped, cancel := context.WithCancel(context.Background())
	cancel()
	if err := f.controller.StopServiceGVK(stopped, gvr); err == nil {
		t.Error("StopServiceGVK returned nil while a MapFunc was hanging")
	}
	stop()
	if err := <-ended; !strings.Contains(fmt.Sprint(err), "MapFunc of "+gvr.Resource) {
		t.Errorf("Run returned %v, want an error that lists the MapFunc", err)
	}
	if err := f.controller.Run(ctx); !strings.Contains(fmt.Sprint(err), "already running") {
		t.Errorf("while the MapFunc was hanging, Run returned %v", err)
	}
	close(hang)
	if err := f.controller.StopServiceGVK(context.Background(), gvr); err != nil {
		t.Error(err)
	}
	stopWatches()
	if err := <-watchesEnded; err != nil {
		t.Error(err)
	}
}

// A TypeEvents function that hangs delays neither the cancellation of handlers nor the watches, and is reported.
func TestD11_HungTypeEventsDoNotBlockShutdown(t *testing.T) {
	hang := make(chan struct{})
	for name, subscribe := range map[string]dynamiccontroller.TypeEvents{
		"subscribing": func(func(schema.GroupVersionResource, bool)) func() { <-hang; return nil },
		"cancelling":  func(func(schema.GroupVersionResource, bool)) func() { return func() { <-hang } },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hang = make(chan struct{})
				f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1, ShutdownTimeout: time.Second},
					dynamiccontroller.WithTypeEvents(subscribe))
				gvr := f.types[0]
				f.put(gvr, "a")
				stop := f.start()
				cancelled := false
				f.serve(gvr, func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
					<-ctx.Done()
					cancelled = true
					return nil
				})
				began := time.Now()
				err := stop()
				if took := time.Since(began); took > 2*time.Second || !cancelled {
					t.Errorf("the run ended after %s; the handler's context was cancelled: %t", took, cancelled)
				}
				if text := fmt.Sprint(err); !strings.Contains(text, "TypeEvents") {
					t.Errorf("Run returned %q, want an error that lists TypeEvents", text)
				}
				if state := f.status(gvr).State; state != dynamiccontroller.TypeStopped {
					t.Errorf("the state of the type is %s, want %s", state, dynamiccontroller.TypeStopped)
				}
				close(hang)
				synctest.Wait()
				hang = make(chan struct{})
				close(hang)
				f.run()()
			})
		})
	}
}

// When a run ends, MapFuncs are not called with the remaining objects in the cache.
func TestD11_MapFuncsAreNotCalledAfterTheRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1, ShutdownTimeout: time.Minute})
		for _, name := range strings.Split("abcdefgh", "") {
			f.put(f.types[1], name)
		}
		stopWatches := f.runWatches()
		calls := 0
		mapFunc := func(context.Context, dynamiccontroller.Object) []string {
			calls++
			time.Sleep(time.Second)
			return nil
		}
		f.serve(f.types[0], succeed, dynamiccontroller.Watches(f.types[1], mapFunc))
		stop := f.run()
		stop()
		stopWatches()
		if calls != 1 {
			t.Errorf("the MapFunc was called %d times, want once", calls)
		}
	})
}

// While a MapFunc of a type hangs, StartServingGVK, AddWatches and RemoveWatches return at once for another type that
// shares the watch, and the other type is reconciled: when it starts, after events and after a promotion. Only calls
// that end the watch with the hung MapFunc wait.
func TestS3_HungMapFuncOfASharedWatchDoesNotAffectOtherTypes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 3, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1, ShutdownTimeout: time.Second})
		hanging, shared, other := f.types[0], f.types[1], f.types[2]
		f.put(hanging, "h")
		f.put(other, "a")
		f.put(shared, "of-a", f.id(other, "a"))
		hang := make(chan struct{})
		var mu sync.Mutex
		calls := 0
		mapFunc := func(context.Context, dynamiccontroller.Object) []string {
			mu.Lock()
			calls++
			mu.Unlock()
			<-hang
			return nil
		}
		stopWatches := f.runWatches()
		stop := f.start()
		began := time.Now()
		own, c := newCalls(succeed), newCalls(succeed)
		hung := dynamiccontroller.Watches(shared, mapFunc)
		f.serve(hanging, own.handle, hung)
		every := dynamiccontroller.Owns(shared, dynamiccontroller.EveryOwner())
		mapped := dynamiccontroller.Watches(shared, func(_ context.Context, o dynamiccontroller.Object) []string {
			return []string{"default/of-" + o.GetName()}
		})
		f.serve(other, c.handle, dynamiccontroller.Owns(shared), mapped)
		synctest.Wait()
		c.want(t, "the start", named("a", "of-of-a"))
		if err := f.controller.AddWatches(t.Context(), other, every); err != nil {
			t.Error(err)
		}
		c.want(t, "another watch", named("a"))
		if err := f.controller.RemoveWatches(t.Context(), other, every.Key()); err != nil {
			t.Error(err)
		}
		f.put(shared, "of-a", f.id(other, "a"))
		f.put(other, "b")
		f.put(hanging, "i")
		c.want(t, "events", named("a", "b", "of-of-a"))
		if took := time.Since(began); took > 0 {
			t.Errorf("the calls and events took %s, want no waiting", took)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := f.controller.RemoveWatches(short, hanging, hung.Key()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("RemoveWatches returned %v for the hung watch, want DeadlineExceeded", err)
		}
		time.Sleep(10 * time.Second)
		own.want(t, "the type with the hung MapFunc", named("h", "i"))
		mu.Lock()
		if calls != 1 {
			t.Errorf("the hung MapFunc was called %d times, want once", calls)
		}
		mu.Unlock()
		close(hang)
		synctest.Wait()
		if err := stop(); err != nil {
			t.Log("the run returned", err) // its function hangs
		}
		stopWatches()
	})
}

// After a promotion, a type is reconciled at once although a MapFunc of another type hangs with an object of a shared
// watch. The type with the hung MapFunc is reconciled after ten seconds.
func TestS3_HungMapFuncDoesNotDelayThePromotionOfOtherTypes(t *testing.T) {
	testHungPromotion(t, func(hang <-chan struct{}, shared schema.GroupVersionResource) []dynamiccontroller.ServeOption {
		return []dynamiccontroller.ServeOption{dynamiccontroller.Watches(shared,
			func(context.Context, dynamiccontroller.Object) []string { <-hang; return nil })}
	})
}

// The same for a predicate, which is not called with existing objects but with a change.
func TestS3_HungPredicateDoesNotDelayOtherTypes(t *testing.T) {
	testHungPromotion(t, func(hang <-chan struct{}, shared schema.GroupVersionResource) []dynamiccontroller.ServeOption {
		wait := func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) bool { <-hang; return true }
		return []dynamiccontroller.ServeOption{dynamiccontroller.Owns(shared, dynamiccontroller.WithPredicate(wait))}
	})
}

func testHungPromotion(
	t *testing.T, options func(hang <-chan struct{}, shared schema.GroupVersionResource) []dynamiccontroller.ServeOption,
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 3, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1, ShutdownTimeout: time.Second})
		hanging, shared, other := f.types[0], f.types[1], f.types[2]
		f.put(hanging, "h")
		f.put(other, "a")
		f.put(shared, "of-a", f.id(other, "a"))
		stopWatches := f.runWatches()
		hang := make(chan struct{})
		own, c := newCalls(succeed), newCalls(succeed)
		f.serve(hanging, own.handle, options(hang, shared)...)
		f.serve(other, c.handle, dynamiccontroller.Owns(shared))
		stop := f.start()
		began := time.Now()
		c.want(t, "the promotion", named("a"))
		f.put(shared, "of-a", f.id(other, "a"))
		c.want(t, "an event of the shared watch", named("a"))
		f.put(other, "b")
		c.want(t, "an event of the type", named("b"))
		if took := time.Since(began); took > 0 {
			t.Errorf("the other type was reconciled after %s", took)
		}
		if function := f.status(hanging).RunningFunction; function != nil {
			t.Errorf("the status has the running function %+v at once", function)
		}
		time.Sleep(10 * time.Second)
		own.want(t, "the type with the hung function", named("h"))
		function := f.status(hanging).RunningFunction
		if function == nil || !function.Since.Equal(began) || !strings.Contains(function.Function, shared.Resource) {
			t.Errorf("the running function is %+v, want one of %s since %s", function, shared.Resource, began)
		}
		if function := f.status(other).RunningFunction; function != nil {
			t.Errorf("the other type has the running function %+v", function)
		}
		if err := stop(); err == nil || !strings.Contains(err.Error(), hanging.Resource) ||
			strings.Contains(err.Error(), other.Resource) {
			t.Errorf("Run returned %v, want an error that lists only the type with the hung function", err)
		}
		close(hang)
		synctest.Wait()
		f.run()()
		stopWatches()
	})
}

// A deletion during a replacement is delivered, whether the object is of the served type or of an owned type.
func TestS6_ReplacementLosesNoDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		parent, child := f.types[0], f.types[1]
		for _, name := range []string{"a", "b", "c"} {
			f.put(parent, name)
		}
		f.put(child, "of-c", f.id(parent, "c"))
		stop := f.run()
		c := newCalls(succeed)
		full := dynamiccontroller.WithCache(dynamiccontroller.CacheFull)
		f.serve(parent, c.handle, full, dynamiccontroller.Owns(child, full))
		c.want(t, "the initial list", named("a", "b", "c"))
		lists := f.gateListsOf(parent)
		lists.close()
		f.serve(parent, c.handle, metadataOnly, dynamiccontroller.Owns(child, metadataOnly))
		c.want(t, "after the swap, which joins the existing watch", named("a", "b", "c"))
		if n := f.controller.WatchesOf(parent); n != 2 {
			t.Errorf("%d watches, want 2: the watch of whole objects and its replacement", n)
		}
		f.delete(parent, "a")
		f.delete(child, "of-c")
		c.want(t, "during the replacement", named("a", "c"))
		lists.open()
		c.want(t, "after the replacement", named())
		if n := f.controller.WatchesOf(parent); n != 1 {
			t.Errorf("%d watches after the replacement, want 1", n)
		}
		stop()
	})
}
