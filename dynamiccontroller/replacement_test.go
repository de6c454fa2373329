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

// listGate blocks lists of metadata of one type while it is closed.
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

func (w *world) gateListsOf(gvr schema.GroupVersionResource) *listGate {
	g := &listGate{}
	w.beforeList = func(of schema.GroupVersionResource) {
		if ch := g.blocked.Load(); of == gvr && ch != nil {
			<-*ch
		}
	}
	return g
}

var (
	metadataOnly = dynamiccontroller.WithCache(dynamiccontroller.CacheMetadata)
	// withoutLabel requires a different watch. No object of the fake has labels.
	withoutLabel = dynamiccontroller.WithLabelSelector(must(labels.Parse("!excluded")))
)

func TestS2_OldHandlerRunsUntilTheNewWatchHasSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr := w.types[0]
		lists := w.gateListsOf(gvr)
		w.put(gvr, "a")
		stop := w.run()
		old, replacement := newCalls(succeed), newCalls(succeed)
		w.serve(gvr, old.handle, metadataOnly)
		old.want(t, "the initial list", named("a"))

		lists.close()
		w.serve(gvr, replacement.handle, metadataOnly, withoutLabel)
		w.put(gvr, "b")
		old.want(t, "while the new watch lists", named("b"))
		status := w.status(gvr)
		if status.State != dynamiccontroller.TypeSynced || !status.Synced ||
			status.Replacement == nil || status.Replacement.State != dynamiccontroller.TypeSyncing {
			t.Errorf("while the new watch lists: %+v, replacement %+v", status, status.Replacement)
		}
		if w.controller.AllInformerHaveSynced() {
			t.Error("the type has synced before its new watch")
		}
		replacement.want(t, "while the new watch lists", named())

		lists.open()
		synctest.Wait()
		replacement.want(t, "after the new watch has synced", named("a", "b"))
		w.put(gvr, "c")
		replacement.want(t, "afterwards", named("c"))
		old.want(t, "after the new watch has synced", named())
		if status := w.status(gvr); status.Replacement != nil || w.controller.WatchesOf(gvr) != 1 {
			t.Errorf("%d watches, replacement %+v", w.controller.WatchesOf(gvr), status.Replacement)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestS2_HandlerSwapTakesEffectAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr := w.types[0]
		lists := w.gateListsOf(gvr)
		w.put(gvr, "a")
		stop := w.run()
		old, replacement := newCalls(succeed), newCalls(succeed)
		w.serve(gvr, old.handle, metadataOnly)
		old.want(t, "the initial list", named("a"))
		lists.close()
		w.serve(gvr, replacement.handle, metadataOnly)
		replacement.want(t, "after the swap", named("a"))
		lists.open()
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestS2_SecondSwapCancelsTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr, child := w.types[0], w.types[1]
		lists := w.gateListsOf(gvr)
		w.put(gvr, "a")
		stop := w.run()
		first, cancelled, last := newCalls(succeed), newCalls(succeed), newCalls(succeed)
		w.serve(gvr, first.handle, metadataOnly)
		first.want(t, "the initial list", named("a"))
		lists.close()
		w.serve(gvr, cancelled.handle, metadataOnly, withoutLabel, dynamiccontroller.Owns(child))
		w.serve(gvr, last.handle, metadataOnly)
		last.want(t, "at once, because it uses the watch of the first one", named("a"))
		if status := w.status(gvr); status.Replacement != nil || len(status.Secondaries) != 0 {
			t.Errorf("the first swap is still pending: %+v", status)
		}
		lists.open()
		synctest.Wait()
		cancelled.want(t, "after all lists", named())
		if n := w.controller.WatchesOf(gvr) + w.controller.WatchesOf(child); n != 1 {
			t.Errorf("%d watches", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestS1_StopEndsAPendingReplacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr := w.types[0]
		lists := w.gateListsOf(gvr)
		w.put(gvr, "a")
		stop := w.run()
		replacement := newCalls(succeed)
		w.serve(gvr, succeed, metadataOnly)
		leftovers := w.controller.Leftovers(gvr)
		lists.close()
		w.serve(gvr, replacement.handle, metadataOnly, withoutLabel)
		waited := make(chan error, 1)
		go func() { waited <- w.controller.WaitForGVRSync(context.Background(), gvr) }()
		stopped := make(chan error, 1)
		go func() { stopped <- w.controller.StopServiceGVK(context.Background(), gvr) }()
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
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A watch that cannot sync never replaces the current one. The status has its error.
func TestS2_FailingReplacementKeepsTheOldHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr, child := w.types[0], w.types[1]
		w.put(gvr, "a")
		stop := w.run()
		old, replacement := newCalls(succeed), newCalls(succeed)
		w.serve(gvr, old.handle, metadataOnly, dynamiccontroller.Owns(child))
		old.want(t, "the initial list", named("a"))
		w.failLists(gvr, errors.New("on purpose"))
		w.serve(gvr, replacement.handle, metadataOnly, withoutLabel)
		time.Sleep(10 * time.Minute)
		w.put(gvr, "b")
		w.put(child, "c", w.id(gvr, "a"))
		old.want(t, "ten minutes later", named("a", "b"))
		replacement.want(t, "ten minutes later", named())
		status := w.status(gvr)
		if r := status.Replacement; r == nil || r.State != dynamiccontroller.TypeFailing ||
			!strings.Contains(r.Message, "on purpose") || time.Since(r.Since) < 9*time.Minute || len(status.Secondaries) != 1 {
			t.Errorf("got %+v, replacement %+v", status, r)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := w.controller.WaitForGVRSync(ctx, gvr); err == nil || !strings.Contains(err.Error(), "on purpose") {
			t.Errorf("WaitForGVRSync returned %v", err)
		}
		w.failLists(gvr, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		replacement.want(t, "once its list succeeds", named("a", "b"))
		if n := w.controller.WatchesOf(child); n != 0 {
			t.Errorf("%d watches of children that the new options do not own", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A transform cannot be compared with another one, so AddWatches keeps it. It must not replace the watch:
// the list of the new watch would reconcile the object, and its handler would call AddWatches again.
func TestAddWatches_ByAHandlerConvergesWithATransform(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr, child := w.types[0], w.types[1]
		w.put(gvr, "a")
		w.put(child, "c", w.id(gvr, "a"))
		stop := w.run()
		c := newCalls(func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			return w.controller.AddWatches(ctx, gvr, dynamiccontroller.Owns(child, dynamiccontroller.WithTransform(keep)))
		})
		w.serve(gvr, c.handle)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := len(c.at["a"]); n > 3 {
			t.Errorf("%d calls", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func keep(obj any) (any, error) { return obj, nil }
