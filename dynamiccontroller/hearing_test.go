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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// warm runs the watches alone until stop.
func (w *world) warm() (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error)
	go func() { result <- w.controller.RunWatches(ctx) }()
	synctest.Wait()
	return func() error {
		cancel()
		return <-result
	}
}

// A promotion asks a MapFunc about what is in the cache. One that hangs then keeps neither another type from its handler nor
// the run from its end.
func TestS3_AMapFuncThatHangsHoldsUpNoOtherTypeAndNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1, ShutdownTimeout: time.Second})
		hanging, beside, other := w.types[0], w.types[1], w.types[2]
		w.put(hanging, "a")
		w.put(beside, "c")
		w.put(other, "x")
		cool := w.warm()
		hang := make(chan struct{})
		w.serve(hanging, succeed, dynamiccontroller.Watches(beside, func(runtime.Object) []string { <-hang; return nil }))
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
			t.Errorf("the run ended after %s, the handler's context at %s", took, ended.Sub(at))
		}
		if err == nil || !strings.Contains(err.Error(), "MapFunc of "+hanging.Resource) || strings.Contains(err.Error(), "watch of") {
			t.Errorf("what hangs is not told, or more than that: %v", err)
		}
		if err := w.controller.Run(context.Background()); err == nil {
			t.Error("another run began beside what hangs")
		}
		close(hang)
		synctest.Wait()
		stop = w.run()
		if err := errors.Join(stop(), cool()); err != nil {
			t.Error(err)
		}
	})
}

// What a run that has ended was about to ask of the cache's objects is not asked.
func TestD11_TheEndOfARunAsksOfNoMoreObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1, ShutdownTimeout: time.Minute})
		for _, name := range strings.Split("abcdefgh", "") {
			w.put(w.types[1], name)
		}
		cool := w.warm()
		asked := 0
		w.serve(w.types[0], succeed, dynamiccontroller.Watches(w.types[1], func(runtime.Object) []string {
			asked++
			time.Sleep(time.Second)
			return nil
		}))
		stop := w.run()
		if err := errors.Join(stop(), cool()); err != nil {
			t.Error(err)
		}
		if asked != 1 {
			t.Errorf("asked of %d objects", asked)
		}
	})
}

// Who registers where something hangs is held up for as long as the call may take, and is registered.
func TestS2_ACallEndsWithItsContextWhereSomethingHangs(t *testing.T) {
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
	asked, hang := make(chan struct{}), make(chan struct{})
	served := make(chan error)
	go func() {
		// It is itself held up if the watch is fast enough to have something to ask about.
		served <- w.controller.StartServingGVK(ctx, hanging, succeed, dynamiccontroller.Watches(shared, func(runtime.Object) []string {
			close(asked)
			<-hang
			return nil
		}))
	}()
	<-asked
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
		t.Error("it did not wait")
	}
	every := dynamiccontroller.Owns(shared, dynamiccontroller.EveryOwner())
	short, end = context.WithTimeout(ctx, 100*time.Millisecond)
	defer end()
	if err := w.controller.AlsoWatch(short, late, every); err != nil {
		t.Error(err)
	}
	if err := w.controller.StopWatching(short, late, every); !errors.Is(err, context.DeadlineExceeded) {
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

// A swap to a lesser depth shares the watch, and what is deleted while it is made is called for.
func TestS6_ASwapOfDepthLosesNoDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		parent, other, child := w.types[0], w.types[1], w.types[2]
		w.put(parent, "a")
		w.put(parent, "b")
		w.put(parent, "c")
		w.put(other, "o")
		w.put(child, "of-c", w.id(parent, "c"))
		stop := w.run()
		c := newCalls(succeed)
		var slow bool
		in, out := make(chan struct{}), make(chan struct{})
		mapped := dynamiccontroller.Watches(other, func(runtime.Object) []string {
			if slow {
				slow = false
				close(in)
				<-out
			}
			return nil
		})
		full, metadata := dynamiccontroller.WithCache(dynamiccontroller.CacheFull), dynamiccontroller.WithCache(dynamiccontroller.CacheMetadata)
		w.serve(parent, c.handle, mapped, dynamiccontroller.Owns(child, full))
		c.want(t, "at first", named("a", "b", "c"))
		// The own type is attached after the types beside it, one of which is slow.
		slow = true
		swapped := make(chan struct{})
		go func() {
			defer close(swapped)
			if err := w.controller.StartServingGVK(context.Background(), parent, c.handle, mapped, metadata, dynamiccontroller.Owns(child, metadata)); err != nil {
				t.Error(err)
			}
		}()
		<-in
		w.delete(parent, "a")
		close(out)
		<-swapped
		time.Sleep(time.Minute)
		c.want(t, "after the swap", named("a", "b", "c"))
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
