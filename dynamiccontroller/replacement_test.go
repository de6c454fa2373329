package dynamiccontroller_test

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

// listGate blocks metadata lists of one type while it is closed.
type listGate struct{ blocked atomic.Pointer[chan struct{}] }

func (g *listGate) close() {
	ch := make(chan struct{})
	g.blocked.Store(&ch)
}

func (g *listGate) open() {
	if ch := g.blocked.Swap(nil); ch != nil {
		close(*ch)
	}
}

func (f *fixture) gateListsOf(gvr schema.GroupVersionResource) *listGate {
	g := &listGate{}
	f.beforeList = func(of schema.GroupVersionResource) {
		if ch := g.blocked.Load(); of == gvr && ch != nil {
			<-*ch
		}
	}
	return g
}

var (
	metadataOnly = dynamiccontroller.WithCache(dynamiccontroller.CacheMetadata)
	// withoutLabel requires a different watch but selects all objects, because the objects of a fixture have no labels.
	withoutLabel = dynamiccontroller.WithLabelSelector(must(labels.Parse("!excluded")))
)

func TestS2_OldHandlerRunsUntilTheNewWatchHasSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr := f.types[0]
		lists := f.gateListsOf(gvr)
		f.put(gvr, "a")
		stop := f.run()
		old, replacement := newCalls(succeed), newCalls(succeed)
		f.serve(gvr, old.handle, metadataOnly)
		old.want(t, "the initial list", named("a"))

		lists.close()
		f.serve(gvr, replacement.handle, metadataOnly, withoutLabel)
		f.put(gvr, "b")
		old.want(t, "while the new watch lists", named("b"))
		status := f.status(gvr)
		if status.State != dynamiccontroller.TypeSynced || !status.Synced ||
			status.Replacement == nil || status.Replacement.State != dynamiccontroller.TypeSyncing {
			t.Errorf("while the new watch lists, the status is %+v and the replacement %+v", status, status.Replacement)
		}
		if f.controller.AllInformerHaveSynced() {
			t.Error("the type was reported as synced before its new watch had synced")
		}
		replacement.want(t, "while the new watch lists", named())

		lists.open()
		synctest.Wait()
		replacement.want(t, "after the new watch has synced", named("a", "b"))
		f.put(gvr, "c")
		replacement.want(t, "afterwards", named("c"))
		old.want(t, "after the new watch has synced", named())
		if status := f.status(gvr); status.Replacement != nil || f.controller.WatchesOf(gvr) != 1 {
			t.Errorf("%d watches and the replacement %+v, want one watch and no replacement",
				f.controller.WatchesOf(gvr), status.Replacement)
		}
		stop()
	})
}

func TestS2_HandlerSwapTakesEffectImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr := f.types[0]
		lists := f.gateListsOf(gvr)
		f.put(gvr, "a")
		stop := f.run()
		old, replacement := newCalls(succeed), newCalls(succeed)
		f.serve(gvr, old.handle, metadataOnly)
		old.want(t, "the initial list", named("a"))
		lists.close()
		f.serve(gvr, replacement.handle, metadataOnly)
		replacement.want(t, "after the swap", named("a"))
		lists.open()
		stop()
	})
}

func TestS2_SecondSwapCancelsTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr, child := f.types[0], f.types[1]
		lists := f.gateListsOf(gvr)
		f.put(gvr, "a")
		stop := f.run()
		first, cancelled, last := newCalls(succeed), newCalls(succeed), newCalls(succeed)
		f.serve(gvr, first.handle, metadataOnly)
		first.want(t, "the initial list", named("a"))
		lists.close()
		f.serve(gvr, cancelled.handle, metadataOnly, withoutLabel, dynamiccontroller.Owns(child))
		f.serve(gvr, last.handle, metadataOnly)
		last.want(t, "immediately, because it uses the first handler's watch", named("a"))
		if status := f.status(gvr); status.Replacement != nil || len(status.Secondaries) != 0 {
			t.Errorf("the first swap is still pending: %+v", status)
		}
		lists.open()
		synctest.Wait()
		cancelled.want(t, "after all lists", named())
		if n := f.controller.WatchesOf(gvr) + f.controller.WatchesOf(child); n != 1 {
			t.Errorf("%d watches, want only the first handler's watch", n)
		}
		stop()
	})
}

func TestS1_StopEndsAPendingReplacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr := f.types[0]
		lists := f.gateListsOf(gvr)
		f.put(gvr, "a")
		stop := f.run()
		replacement := newCalls(succeed)
		f.serve(gvr, succeed, metadataOnly)
		leftovers := f.controller.Leftovers(gvr)
		lists.close()
		f.serve(gvr, replacement.handle, metadataOnly, withoutLabel)
		waited := make(chan error, 1)
		go func() { waited <- f.controller.WaitForGVRSync(context.Background(), gvr) }()
		stopped := make(chan error, 1)
		go func() { stopped <- f.controller.StopServiceGVK(context.Background(), gvr) }()
		synctest.Wait()
		if err := <-waited; !errors.Is(err, dynamiccontroller.ErrNotServed) {
			t.Errorf("WaitForGVRSync returned %v", err)
		}
		lists.open() // the fake does not end a list when its context is cancelled
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		if left := leftovers(); left != "" {
			t.Error(left)
		}
		replacement.want(t, "after the stop", named())
		stop()
	})
}

// A new watch that cannot sync never replaces the current one. The status reports the error from the new watch.
func TestS2_FailingReplacementKeepsTheOldHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr, child := f.types[0], f.types[1]
		f.put(gvr, "a")
		stop := f.run()
		old, replacement := newCalls(succeed), newCalls(succeed)
		f.serve(gvr, old.handle, metadataOnly, dynamiccontroller.Owns(child))
		old.want(t, "the initial list", named("a"))
		f.failLists(gvr, errors.New("on purpose"))
		f.serve(gvr, replacement.handle, metadataOnly, withoutLabel)
		time.Sleep(10 * time.Minute)
		f.put(gvr, "b")
		f.put(child, "c", f.id(gvr, "a"))
		old.want(t, "ten minutes later", named("a", "b"))
		replacement.want(t, "ten minutes later", named())
		status := f.status(gvr)
		if r := status.Replacement; r == nil || r.State != dynamiccontroller.TypeFailing ||
			!strings.Contains(r.Message, "on purpose") || time.Since(r.Since) < 9*time.Minute || len(status.Secondaries) != 1 {
			t.Errorf("the status is %+v and the replacement %+v, want a replacement that has been failing", status, r)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := f.controller.WaitForGVRSync(ctx, gvr); err == nil || !strings.Contains(err.Error(), "on purpose") {
			t.Errorf("WaitForGVRSync returned %v", err)
		}
		f.failLists(gvr, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		replacement.want(t, "once its list succeeds", named("a", "b"))
		if n := f.controller.WatchesOf(child); n != 0 {
			t.Errorf("%d watches of children, although the new options do not include them", n)
		}
		stop()
	})
}

func keep(obj any) (any, error) { return obj, nil }
