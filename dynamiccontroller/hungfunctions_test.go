package dynamiccontroller_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A promotion calls a MapFunc with the objects in the cache. If it hangs, other types are reconciled, and the run ends.
func TestS3_HungMapFuncBlocksNeitherOtherTypesNorShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1, ShutdownTimeout: time.Second})
		hanging, watched, other := w.types[0], w.types[1], w.types[2]
		w.put(hanging, "a")
		w.put(watched, "c")
		w.put(other, "x")
		stopWatches := w.runWatches()
		hang := make(chan struct{})
		w.serve(hanging, succeed, dynamiccontroller.Watches(watched, func(context.Context, dynamiccontroller.Object) []string { <-hang; return nil }))
		began, ended := time.Time{}, time.Time{}
		w.serve(other, func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			began = time.Now()
			<-ctx.Done()
			ended = time.Now()
			return nil
		})
		stop := w.run()
		at := time.Now()
		if !began.Equal(at) {
			t.Error("the other type's handler has not begun")
		}
		err := stop()
		if took := time.Since(at); took > 3*time.Second || !ended.Equal(at) {
			t.Errorf("the run ended after %s, the handler's context after %s", took, ended.Sub(at))
		}
		if err == nil || !strings.Contains(err.Error(), "MapFunc of "+hanging.Resource) || strings.Contains(err.Error(), "watch of") {
			t.Errorf("the error does not list the MapFunc alone: %v", err)
		}
		if err := w.controller.Run(context.Background()); err == nil {
			t.Error("Run started again while the MapFunc hangs")
		}
		close(hang)
		synctest.Wait()
		stop = w.run()
		if err := errors.Join(stop(), stopWatches()); err != nil {
			t.Error(err)
		}
	})
}

// When a run ends, MapFuncs are not called with the remaining objects of the cache.
func TestD11_MapFuncsAreNotCalledAfterTheEndOfARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1, ShutdownTimeout: time.Minute})
		for _, name := range strings.Split("abcdefgh", "") {
			w.put(w.types[1], name)
		}
		stopWatches := w.runWatches()
		calls := 0
		w.serve(w.types[0], succeed, dynamiccontroller.Watches(w.types[1], func(context.Context, dynamiccontroller.Object) []string {
			calls++
			time.Sleep(time.Second)
			return nil
		}))
		stop := w.run()
		if err := errors.Join(stop(), stopWatches()); err != nil {
			t.Error(err)
		}
		if calls != 1 {
			t.Errorf("the MapFunc was called %d times, want once", calls)
		}
	})
}

// While a MapFunc of another subscriber of the watch hangs, calls return when their context ends. The changes that they
// requested are made later.
func TestS2_CallsReturnWithTheirContextWhileAMapFuncHangs(t *testing.T) {
	w := newWorld(t, 3, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
	hanging, shared, late := w.types[0], w.types[1], w.types[2]
	for _, gvr := range []schema.GroupVersionResource{shared, late} {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(gvr.GroupVersion().WithKind("Type"))
		object.SetName("a")
		must(w.client.Resource(gvr).Namespace("default").Create(t.Context(), object, metav1.CreateOptions{}))
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- w.controller.Run(ctx) }()
	mapping, hang := make(chan struct{}), make(chan struct{})
	served := make(chan error)
	go func() {
		// This call itself blocks if the watch is fast enough to deliver objects to the MapFunc.
		served <- w.controller.StartServingGVK(ctx, hanging, succeed, dynamiccontroller.Watches(shared, func(context.Context, dynamiccontroller.Object) []string {
			close(mapping)
			<-hang
			return nil
		}))
	}()
	<-mapping
	called := make(chan struct{}, 1)
	short, end := context.WithTimeout(ctx, 100*time.Millisecond)
	defer end()
	if err := w.controller.StartServingGVK(short, late, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
		called <- struct{}{}
		return nil
	}, dynamiccontroller.Owns(shared)); err != nil {
		t.Error(err)
	}
	if short.Err() == nil {
		t.Error("StartServingGVK did not wait")
	}
	every := dynamiccontroller.Owns(shared, dynamiccontroller.EveryOwner())
	short, end = context.WithTimeout(ctx, 100*time.Millisecond)
	defer end()
	if err := w.controller.AddWatches(short, late, every); err != nil {
		t.Error(err)
	}
	if err := w.controller.RemoveWatches(short, late, every.Key()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	close(hang)
	<-called
	if err := <-served; err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A deletion during a replacement is delivered, both of the type itself and of an owned type.
func TestS6_ReplacementLosesNoDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		parent, child := w.types[0], w.types[1]
		for _, name := range []string{"a", "b", "c"} {
			w.put(parent, name)
		}
		w.put(child, "of-c", w.id(parent, "c"))
		stop := w.run()
		c := newCalls(succeed)
		full := dynamiccontroller.WithCache(dynamiccontroller.CacheFull)
		w.serve(parent, c.handle, full, dynamiccontroller.Owns(child, full))
		c.want(t, "the initial list", named("a", "b", "c"))
		lists := w.gateListsOf(parent)
		lists.close()
		w.serve(parent, c.handle, metadataOnly, dynamiccontroller.Owns(child, metadataOnly))
		c.want(t, "after the swap, which joins the existing watch", named("a", "b", "c"))
		if n := w.controller.WatchesOf(parent); n != 2 {
			t.Errorf("%d watches, want the watch of whole objects and its replacement", n)
		}
		w.delete(parent, "a")
		w.delete(child, "of-c")
		c.want(t, "during the replacement", named("a", "c"))
		lists.open()
		c.want(t, "after the replacement", named())
		if n := w.controller.WatchesOf(parent); n != 1 {
			t.Errorf("%d watches after the replacement", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
