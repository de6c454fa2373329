package dynamiccontroller_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A type event empties the cache of a watch, which does not count as a list.
func TestS2_TypeEventDoesNotCompleteASwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &events{}
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1}, dynamiccontroller.WithTypeEvents(e.subscribe))
		gvr := w.types[0]
		w.put(gvr, "a")
		stop := w.run()
		old, next := newCalls(succeed), newCalls(succeed)
		w.serve(gvr, old.handle, metadataOnly)
		old.take()
		w.failLists(gvr, errors.New("the new selector is refused"))
		w.serve(gvr, next.handle, metadataOnly, withoutLabel)
		time.Sleep(time.Minute)
		synctest.Wait()
		if w.status(gvr).Replacement == nil {
			t.Fatal("no swap is pending")
		}
		e.notify(gvr, false)
		synctest.Wait()
		t.Logf("after the type vanished: %+v", w.status(gvr))
		old.want(t, "old handler: last reconcile", named("a"))
		next.want(t, "new handler: its watch has never synced", named())
		_ = stop()
	})
}

// An AddWatches that changes nothing does not wait for a hung MapFunc of another type.
func TestAddWatches_DoesNotWaitIfNothingChanges(t *testing.T) {
	w := newWorld(t, 4, dynamiccontroller.Config{Workers: 4, ResyncPeriod: -1, ShutdownTimeout: time.Second})
	gvr, child, shared, hanging := w.types[0], w.types[1], w.types[2], w.types[3]
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- w.controller.Run(ctx) }()
	owns := dynamiccontroller.Owns(child)
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(shared.GroupVersion().WithKind("Type"))
	object.SetName("x")
	_, err := w.client.Resource(shared).Namespace("default").Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.controller.StartServingGVK(ctx, gvr, succeed, owns); err != nil {
		t.Fatal(err)
	}
	hang, hung := make(chan struct{}), make(chan struct{})
	within := func(d time.Duration) context.Context {
		short, end := context.WithTimeout(ctx, d)
		t.Cleanup(end)
		return short
	}
	_ = w.controller.StartServingGVK(within(time.Second), hanging, succeed, dynamiccontroller.Watches(shared, func(context.Context, dynamiccontroller.Object) []string { close(hung); <-hang; return nil }))
	<-hung
	_ = w.controller.AddWatches(within(time.Second/2), gvr, dynamiccontroller.Owns(shared))
	began := time.Now()
	err = w.controller.AddWatches(within(3*time.Second), gvr, owns)
	if took := time.Since(began); took > time.Second {
		t.Errorf("a no-op AddWatches took %s: %v", took, err)
	}
	close(hang)
	cancel()
	t.Log("the run returned", <-ended)
}

// slowForget is a rate limiter whose Forget takes some time.
type slowForget struct{ took time.Duration }

func (slowForget) When(dynamiccontroller.ObjectIdentifiers) time.Duration { return time.Second }
func (f slowForget) Forget(dynamiccontroller.ObjectIdentifiers)           { time.Sleep(f.took) }
func (slowForget) NumRequeues(dynamiccontroller.ObjectIdentifiers) int    { return 0 }

// The run can end while the outcome of a reconcile is being settled.
func TestRequeueAfter_IsNotLostAtTheEndOfTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr := w.types[0]
		stop := w.run()
		c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			return dynamiccontroller.RequeueAfter(time.Hour)
		})
		w.serve(gvr, c.handle, dynamiccontroller.WithRateLimiter(slowForget{time.Second}))
		w.controller.Enqueue(w.id(gvr, "ghost"))
		synctest.Wait()
		c.want(t, "first run", named("ghost"))
		if err := stop(); err != nil {
			t.Error(err)
		}
		stop = w.run()
		time.Sleep(time.Minute)
		c.want(t, "second run", named("ghost"))
		_ = stop()
	})
}

// A run can end while a swap waits for the lists of its new watches.
func TestS2_SwapThatAddsWatchesContinuesInTheNextRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr, child := w.types[0], w.types[1]
		g := w.gateListsOf(child)
		w.put(gvr, "a")
		cool := w.runWatches()
		stop := w.run()
		c := newCalls(succeed)
		w.serve(gvr, c.handle)
		c.want(t, "first", named("a"))
		g.close()
		w.serve(gvr, c.handle, dynamiccontroller.Owns(child))
		c.want(t, "paused", named())
		if err := stop(); err != nil {
			t.Error(err)
		}
		stop = w.run()
		time.Sleep(9 * time.Second)
		c.want(t, "still paused", named())
		time.Sleep(2 * time.Second)
		c.want(t, "ten seconds later", named("a"))
		g.open()
		synctest.Wait()
		w.put(gvr, "b")
		c.want(t, "b", named("b"))
		if err := errors.Join(stop(), cool()); err != nil {
			t.Error(err)
		}
	})
}

// A swap that a standby has requested can be pending when it is promoted.
func TestS2_PromotionDuringAPendingSwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr := w.types[0]
		g := w.gateListsOf(gvr)
		w.put(gvr, "a")
		cool := w.runWatches()
		old, next := newCalls(succeed), newCalls(succeed)
		w.serve(gvr, old.handle, metadataOnly)
		g.close()
		w.serve(gvr, next.handle, metadataOnly, withoutLabel)
		stop := w.run()
		time.Sleep(2 * time.Second)
		old.want(t, "old", named("a"))
		w.put(gvr, "b")
		old.want(t, "old", named("b"))
		if err := stop(); err != nil {
			t.Error(err)
		}
		w.delete(gvr, "b")
		g.open()
		synctest.Wait()
		stop = w.run()
		next.want(t, "next", named("a"))
		old.want(t, "old", named())
		if err := errors.Join(stop(), cool()); err != nil {
			t.Error(err)
		}
	})
}
