package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// toOwners returns a MapAnyFunc that finds the owners of an object in any of the types.
func toOwners(types ...schema.GroupVersionResource) dynamiccontroller.MapAnyFunc {
	return func(_ context.Context, object dynamiccontroller.Object) (ids []dynamiccontroller.ObjectIdentifiers) {
		for _, owner := range object.GetOwnerReferences() {
			for _, gvr := range types {
				if strings.HasPrefix(string(owner.UID), gvr.Resource+"/") {
					key := object.GetNamespace() + "/" + owner.Name
					ids = append(ids, dynamiccontroller.ObjectIdentifiers{NamespacedKey: key, GVR: gvr})
				}
			}
		}
		return ids
	}
}

func startWatch(
	f *fixture, gvr schema.GroupVersionResource, mapFunc dynamiccontroller.MapAnyFunc,
	opts ...dynamiccontroller.WatchesOption,
) *dynamiccontroller.StandaloneWatch {
	f.t.Helper()
	w, err := f.controller.StartWatch(gvr, mapFunc, opts...)
	if err != nil {
		f.t.Fatal(err)
	}
	synctest.Wait()
	return w
}

// One watch that belongs to no type reconciles objects of several types, also if they are not in the cache.
func TestStartWatch_ReconcilesObjectsOfAnyType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 4, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		first, second, notServed, child := f.types[0], f.types[1], f.types[2], f.types[3]
		f.put(first, "a")
		stop := f.run()
		ofFirst, ofSecond := newCalls(succeed), newCalls(succeed)
		f.serve(first, ofFirst.handle)
		f.serve(second, ofSecond.handle)
		ofFirst.take()
		w := startWatch(f, child, toOwners(f.types...))
		f.put(child, "c", f.id(first, "a"), f.id(second, "absent"), f.id(notServed, "x"))
		ofFirst.want(t, "a new child, first type", named("a"))
		ofSecond.want(t, "a new child, second type", named("absent"))
		f.put(child, "c", f.id(second, "b"))
		ofFirst.want(t, "the child moved, first type", named("a"))
		ofSecond.want(t, "the child moved, second type", named("absent", "b"))
		f.delete(child, "c")
		ofFirst.want(t, "the child was deleted, first type", named())
		ofSecond.want(t, "the child was deleted, second type", named("b"))
		if status := w.Status(); status.State != dynamiccontroller.TypeSynced {
			t.Errorf("the status is %+v", status)
		}
		if listed, err := w.Lister().List(labels.Everything()); err != nil || len(listed) != 0 {
			t.Errorf("the lister returned %v, %v; want no objects", listed, err)
		}
		if err := w.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		f.put(child, "d", f.id(first, "a"))
		ofFirst.want(t, "after Stop", named())
		if n := f.controller.WatchesOf(child); n != 0 {
			t.Errorf("%d watches remain", n)
		}
		stop()
	})
}

// The initial lists of the types and of a standalone watch together trigger one reconcile per object, in each run. Each
// run also reconciles objects that are not in the cache. On a standby, a promotion sends no list request.
func TestD4_L5_StandaloneWatchCausesNoAdditionalReconcile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		parent, child := f.types[0], f.types[1]
		for _, name := range []string{"a", "b"} {
			f.put(parent, name)
			f.put(child, "of-"+name, f.id(parent, name))
		}
		f.put(child, "orphan", f.id(parent, "absent"))
		c := newCalls(succeed)
		f.serve(parent, c.handle)
		startWatch(f, child, toOwners(parent))
		stop := f.run()
		c.want(t, "a run with cold caches", named("a", "b", "absent"))
		stop()
		stopWatches := f.runWatches()
		f.client.ClearActions()
		for range 3 {
			stop := f.run()
			c.want(t, "a promotion", named("a", "b", "absent"))
			f.put(child, "of-a", f.id(parent, "a"))
			c.want(t, "an event", named("a"))
			stop()
		}
		for _, action := range f.client.Actions() {
			if action.GetVerb() == "list" || action.GetVerb() == "watch" {
				t.Errorf("a promotion sent the request %v", action)
			}
		}
		stopWatches()
	})
}

// A standalone watch that cannot be listed delays reconciles no longer than the watches of a type do.
func TestD4_FailingStandaloneWatchDoesNotHoldUpReconciles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		f.put(f.types[0], "a")
		c := newCalls(succeed)
		f.serve(f.types[0], c.handle)
		f.failLists(f.types[1], errors.New("on purpose"))
		startWatch(f, f.types[1], toOwners(f.types[0]))
		stop := f.run()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		c.want(t, "two seconds after the start", named("a"))
		stop()
	})
}

// A hung MapAnyFunc delays the first reconciles by at most ten seconds, and is named when the run ends.
func TestS3_HungMapAnyFuncBlocksNeitherTypesNorShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1, ShutdownTimeout: time.Second})
		f.put(f.types[0], "a")
		f.put(f.types[1], "c")
		c := newCalls(succeed)
		f.serve(f.types[0], c.handle)
		hang := make(chan struct{})
		w := startWatch(f, f.types[1], func(context.Context, dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers {
			<-hang
			return nil
		})
		stop := f.start()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		c.want(t, "ten seconds after the start", named("a"))
		f.put(f.types[0], "b")
		c.want(t, "an event of the type", named("b"))
		if f := w.RunningFunction(); f == nil || f.Function != "MapAnyFunc of type1s.v1.example.com" {
			t.Errorf("the running function is %+v, want the MapAnyFunc", f)
		}
		if err := stop(); err == nil || !strings.Contains(err.Error(), "standalone watch on "+f.types[1].Resource) {
			t.Errorf("Run returned %v, want an error that lists the standalone watch", err)
		}
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		if err := w.Stop(cancelled); !errors.Is(err, context.Canceled) {
			t.Errorf("Stop returned %v while the function was hanging", err)
		}
		stopped := make(chan error, 1)
		go func() { stopped <- w.Stop(t.Context()) }()
		time.Sleep(time.Minute)
		select {
		case err := <-stopped:
			t.Errorf("Stop returned %v while the function was hanging", err)
		default:
		}
		close(hang)
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		f.run()()
	})
}

func TestD5_PanicsAndMalformedKeysOfAMapAnyFuncAreHarmless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		parent, child := f.types[0], f.types[1]
		stop := f.run()
		c := newCalls(succeed)
		f.serve(parent, c.handle)
		startWatch(f, child, func(_ context.Context, o dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers {
			if o.GetName() == "panics" {
				panic("on purpose")
			}
			return []dynamiccontroller.ObjectIdentifiers{{NamespacedKey: "a/b/c", GVR: parent}, f.id(parent, "x")}
		}, dynamiccontroller.WithPredicate(func(_ context.Context, _, o dynamiccontroller.Object) bool {
			return o.GetName() != "filtered"
		}))
		for _, name := range []string{"panics", "filtered", "good"} {
			f.put(child, name)
		}
		c.want(t, "one good child", named("x"))
		if n := f.status(parent).MalformedKeys; n != 1 {
			t.Errorf("%d malformed keys, want 1", n)
		}
		stop()
	})
}

func TestStandaloneWatches_ReturnsTheWatchesThatAreNotStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{})
		first, second := startWatch(f, f.types[0], toOwners()), startWatch(f, f.types[0], toOwners())
		for range 2 {
			got := f.controller.StandaloneWatches()
			if !slices.Equal(got, []*dynamiccontroller.StandaloneWatch{first, second}) {
				t.Errorf("got %v, want both watches", got)
			}
			slices.Reverse(got) // the caller owns the slice
		}
		if err := first.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		if got := f.controller.StandaloneWatches(); !slices.Equal(got, []*dynamiccontroller.StandaloneWatch{second}) {
			t.Errorf("got %v after Stop, want only the second watch", got)
		}
	})
}

func TestStartWatch_RejectsInvalidOptions(t *testing.T) {
	f := newFixture(t, 1, dynamiccontroller.Config{})
	for name, test := range map[string]struct {
		gvr     schema.GroupVersionResource
		mapFunc dynamiccontroller.MapAnyFunc
		opts    []dynamiccontroller.WatchesOption
	}{
		"no function": {gvr: f.types[0]},
		"no resource": {mapFunc: toOwners()},
		"keys only": {f.types[0], toOwners(), []dynamiccontroller.WatchesOption{
			dynamiccontroller.WithCache(dynamiccontroller.CacheKeys)}},
	} {
		if _, err := f.controller.StartWatch(test.gvr, test.mapFunc, test.opts...); err == nil {
			t.Errorf("%s: StartWatch returned nil", name)
		}
	}
}

// A run of one shard receives the existing objects of a standalone watch. The other shards' objects are not reconciled
// again.
func TestL5_StandaloneWatchServesEachShardOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newShardedAmong(t, 3, 3, dynamiccontroller.Config{Workers: 2})
		first, second, child := f.types[0], f.types[1], f.types[2]
		f.put(first, "a")
		f.put(second, "b")
		f.put(child, "c", f.id(first, "a"), f.id(second, "b"), f.id(first, "absent"), f.id(second, "absent too"))
		ofFirst, ofSecond := newCalls(succeed), newCalls(succeed)
		f.serve(first, ofFirst.handle)
		f.serve(second, ofSecond.handle)
		startWatch(f, child, toOwners(first, second))
		stopWatches := f.runWatches()
		stopFirst := f.runShard(0)
		ofFirst.want(t, "the first shard's run", named("a", "absent"))
		stopSecond := f.runShard(1)
		ofSecond.want(t, "the second shard's run", named("b", "absent too"))
		ofFirst.want(t, "the first shard, when the second one starts", named())
		stopFirst()
		f.put(child, "c", f.id(second, "b"), f.id(first, "a"))
		ofSecond.want(t, "an event after the first run's end", named("b", "absent too"))
		ofFirst.want(t, "the ended run", named())
		stopSecond()
		stopWatches()
	})
}

// A run of a shard that begins while the last other run ends receives all existing objects and all changes of a
// standalone watch, even if the function of the watch is slow.
func TestD1_StandaloneWatchServesARunThatBeginsWhileAnotherEnds(t *testing.T) {
	for name, warm := range map[string]bool{"with RunWatches": true, "in a new session": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testStandaloneHandover(t, warm) })
		})
	}
}

func testStandaloneHandover(t *testing.T, warm bool) {
	f := newSharded(t, 3, dynamiccontroller.Config{Workers: 2})
	first, second, child := f.types[0], f.types[1], f.types[2]
	toAny := toOwners(first, second)
	slow := func(ctx context.Context, object dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers {
		time.Sleep(100 * time.Millisecond)
		return toAny(ctx, object)
	}
	f.put(first, "a")
	f.put(second, "b")
	f.put(child, "c", f.id(first, "a"), f.id(second, "b"), f.id(second, "absent"))
	ofFirst, ofSecond := newCalls(succeed), newCalls(succeed)
	f.serve(first, ofFirst.handle)
	f.serve(second, ofSecond.handle)
	startWatch(f, child, slow)
	if warm {
		defer f.runWatches()()
	}
	stopFirst := f.startShard(0)
	time.Sleep(time.Second)
	f.put(child, "c", f.id(first, "a"), f.id(second, "b"), f.id(second, "absent")) // the function is running
	ended := make(chan error)
	go func() { ended <- stopFirst() }()
	time.Sleep(10 * time.Millisecond) // the run waits for the function
	stopSecond := f.startShard(1)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	time.Sleep(time.Second)
	synctest.Wait()
	ofSecond.want(t, "the second run", named("b", "absent"))
	f.put(child, "c", f.id(second, "b"))
	time.Sleep(time.Second)
	synctest.Wait()
	ofSecond.want(t, "a change during the second run", named("b", "absent"))
	if err := stopSecond(); err != nil {
		t.Error(err)
	}
}

// A run waits for the functions of all standalone watches, even if several of them watch the same type.
func TestD11_RunWaitsForEachStandaloneWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1, ShutdownTimeout: time.Second})
		hang := make(chan struct{})
		for range 2 {
			startWatch(f, f.types[0], func(context.Context, dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers {
				<-hang
				return nil
			})
		}
		stop := f.start()
		f.put(f.types[0], "c")
		err := stop()
		if n := strings.Count(fmt.Sprint(err), "standalone watch"); n != 2 {
			t.Errorf("Run returned %v, want an error that lists both watches", err)
		}
		close(hang)
		synctest.Wait()
		f.run()()
	})
}

// A run that begins after the session of the watches has ended, and before the last run has, reads the objects of the
// new session.
func TestD1_StandaloneWatchServesARunThatBeginsBetweenSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slowly := func(func(schema.GroupVersionResource, bool)) func() { return func() { time.Sleep(time.Second) } }
		f := newSharded(t, 3, dynamiccontroller.Config{Workers: 2}, dynamiccontroller.WithTypeEvents(slowly))
		second, child := f.types[1], f.types[2]
		c := newCalls(succeed)
		f.serve(second, c.handle)
		var mapped atomic.Int64
		toSecond := toOwners(second)
		startWatch(f, child,
			func(ctx context.Context, object dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers {
				mapped.Add(1)
				return toSecond(ctx, object)
			})
		stopFirst := f.startShard(0)
		ended := make(chan error)
		go func() { ended <- stopFirst() }()
		time.Sleep(100 * time.Millisecond) // the session has ended
		f.put(child, "c", f.id(second, "absent"))
		stopSecond := f.startShard(1)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		c.want(t, "the second run", named("absent"))
		if n := mapped.Load(); n != 1 { // for the second run, and not also for the first one, which was ending
			t.Errorf("the function was called %d times", n)
		}
		if err := stopSecond(); err != nil {
			t.Error(err)
		}
	})
}

// WaitForSync returns when the function of the watch has been called with all existing objects, and is called with all
// changes.
func TestStandaloneWatch_WaitForSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		parent, child := f.types[0], f.types[1]
		f.put(child, "c", f.id(parent, "a"))
		calls := newCalls(succeed)
		f.serve(parent, calls.handle)
		f.failLists(child, errors.New("on purpose"))
		slow := make(chan struct{})
		toParent := toOwners(parent)
		w := startWatch(f, child,
			func(ctx context.Context, object dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers {
				<-slow
				return toParent(ctx, object)
			})
		synced := make(chan error, 1)
		wait := func() { synced <- w.WaitForSync(t.Context()) }
		pending := func(situation string) {
			t.Helper()
			synctest.Wait()
			if len(synced) > 0 {
				t.Fatalf("WaitForSync returned %v %s", <-synced, situation)
			}
		}
		go wait()
		pending("before the run")
		stop := f.run()
		pending("while the list fails")
		f.failLists(child, nil)
		time.Sleep(time.Minute)
		pending("before the function was called with the existing object")
		close(slow)
		if err := <-synced; err != nil {
			t.Error(err)
		}
		calls.want(t, "the run", named("a"))
		f.put(child, "c", f.id(parent, "b"))
		calls.want(t, "a change", named("a", "b"))
		stop()

		f.failLists(child, errors.New("on purpose"))
		go wait()
		pending("between the runs")
		stop = f.run()
		pending("in a run whose list fails")
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		if err := w.WaitForSync(cancelled); !errors.Is(err, context.Canceled) {
			t.Errorf("with a cancelled context, WaitForSync returned %v", err)
		}
		if err := w.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-synced; !errors.Is(err, dynamiccontroller.ErrNotServed) {
			t.Errorf("after Stop, WaitForSync returned %v", err)
		}
		stop()
	})
}

// If a run ends before the function has been called with all existing objects, WaitForSync waits for the next run.
func TestStandaloneWatch_WaitForSyncAfterARunThatEndsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		f.put(f.types[1], "c")
		f.put(f.types[1], "d")
		f.serve(f.types[0], succeed)
		var hangs atomic.Bool
		hangs.Store(true)
		w := startWatch(f, f.types[1],
			func(ctx context.Context, _ dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers {
				if hangs.Load() {
					<-ctx.Done()
				}
				return nil
			})
		synced := make(chan error, 1)
		stop := f.run()
		go func() { synced <- w.WaitForSync(t.Context()) }()
		synctest.Wait()
		stop()
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(synced) > 0 {
			t.Fatalf("WaitForSync returned %v after a run that has ended early", <-synced)
		}
		hangs.Store(false)
		stop = f.run()
		if err := <-synced; err != nil {
			t.Error(err)
		}
		stop()
	})
}

// If a session of watches ends and the next one begins while a run is ending, WaitForSync waits for the next sync.
func TestStandaloneWatch_WaitForSyncBetweenSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slowly := func(func(schema.GroupVersionResource, bool)) func() { return func() { time.Sleep(time.Second) } }
		f := newSharded(t, 3, dynamiccontroller.Config{Workers: 2}, dynamiccontroller.WithTypeEvents(slowly))
		child := f.types[2]
		f.serve(f.types[1], succeed)
		w := startWatch(f, child, toOwners(f.types[1]))
		stopFirst := f.startShard(0)
		if err := w.WaitForSync(t.Context()); err != nil {
			t.Error(err)
		}
		ended := make(chan error)
		go func() { ended <- stopFirst() }()
		time.Sleep(100 * time.Millisecond) // the session has ended
		f.failLists(child, errors.New("on purpose"))
		stopSecond := f.startShard(1)
		synced := make(chan error, 1)
		go func() { synced <- w.WaitForSync(t.Context()) }()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if len(synced) > 0 {
			t.Fatalf("WaitForSync returned %v while the list fails", <-synced)
		}
		f.failLists(child, nil)
		if err := <-synced; err != nil {
			t.Error(err)
		}
		if err := stopSecond(); err != nil {
			t.Error(err)
		}
	})
}

// With shards, WaitForSync returns when the function has been called with the existing objects for each running shard.
func TestStandaloneWatch_WaitForSyncWithShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 3, dynamiccontroller.Config{Workers: 2})
		child := f.types[2]
		f.put(child, "c")
		calls := newCalls(succeed)
		f.serve(f.types[0], calls.handle)
		f.serve(f.types[1], calls.handle)
		var slow atomic.Bool
		proceed := make(chan struct{})
		w := startWatch(f, child, func(context.Context, dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers {
			if slow.Load() {
				<-proceed
			}
			return nil
		})
		stopFirst := f.runShard(0)
		synctest.Wait()
		if err := w.WaitForSync(t.Context()); err != nil {
			t.Error(err)
		}
		slow.Store(true)
		stopSecond := f.runShard(1)
		synctest.Wait()
		synced := make(chan error, 1)
		go func() { synced <- w.WaitForSync(t.Context()) }()
		synctest.Wait()
		if len(synced) > 0 {
			t.Error("WaitForSync returned before the function was called for the second shard")
		}
		close(proceed)
		if err := <-synced; err != nil {
			t.Error(err)
		}
		stopFirst()
		stopSecond()
	})
}

// Standalone watches with equal keys share a watch, also with an event handler. Each has functions of its own, so that
// one that hangs does not affect the others.
func TestStartWatch_SharesWatchesWithEqualKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, child := f.types[0], f.types[1]
		calls := newCalls(succeed)
		f.serve(parent, calls.handle)
		stop := f.run()
		hang := make(chan struct{})
		hung := startWatch(f, child, func(context.Context, dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers {
			<-hang
			return nil
		})
		other := startWatch(f, child, toOwners(parent))
		var l eventLog
		handler := addEventHandler(f, child, l.handler())
		synctest.Wait()
		if hung.Key() != other.Key() || other.Key() != handler.Key() {
			t.Errorf("the keys are %v, %v and %v", hung.Key(), other.Key(), handler.Key())
		}
		f.put(child, "c", f.id(parent, "a"))
		calls.want(t, "while another function hangs", named("a"))
		l.want(t, "while another function hangs", "add c false")
		lists := 0
		for _, action := range f.client.Actions() {
			if action.Matches("list", child.Resource) {
				lists++
			}
		}
		if n := f.controller.WatchesOf(child); n != 1 || lists != 1 {
			t.Errorf("there are %d watches after %d lists, want one that is shared", n, lists)
		}
		close(hang)
		if err := hung.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		f.put(child, "c", f.id(parent, "b"))
		calls.want(t, "after the other watch was stopped", named("a", "b"))
		for _, err := range []error{other.Stop(t.Context()), handler.Remove(t.Context())} {
			if err != nil {
				t.Error(err)
			}
		}
		if n := f.controller.WatchesOf(child); n != 0 {
			t.Errorf("%d watches remain", n)
		}
		stop()
	})
}

// The function of a watch can stop it without waiting for itself. It is not called again afterwards, neither for
// existing objects nor for changes.
func TestStandaloneWatch_IsStoppedByItsFunction(t *testing.T) {
	for name, changes := range map[string]bool{"for an existing object": false, "for a change": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testStopByFunction(t, changes) })
		})
	}
}

// testStopByFunction creates objects before a run or, if changes is true, during it. The function stops the watch in
// its first call, while others wait.
func testStopByFunction(t *testing.T, changes bool) {
	f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
	f.serve(f.types[0], succeed)
	put := func() {
		for i := range 300 {
			f.put(f.types[1], fmt.Sprint(i))
		}
	}
	if !changes {
		put()
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	var w *dynamiccontroller.StandaloneWatch
	var calls atomic.Int64
	stopped := make(chan error, 400)
	w = startWatch(f, f.types[1], func(context.Context, dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers {
		calls.Add(1)
		time.Sleep(time.Second)
		stopped <- w.Stop(cancelled)
		return []dynamiccontroller.ObjectIdentifiers{f.id(f.types[0], "x")}
	})
	stop := f.run()
	if changes {
		put()
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	if err := <-stopped; !errors.Is(err, context.Canceled) || calls.Load() != 1 {
		t.Errorf("Stop returned %v, and the function was called %d times", err, calls.Load())
	}
	if err := w.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if n := f.controller.WatchesOf(f.types[1]); n != 0 {
		t.Errorf("%d watches remain", n)
	}
	stop()
}

func TestStandaloneWatch_WaitForSyncAfterStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		w := startWatch(f, f.types[0], toOwners())
		stop := f.run()
		if err := w.WaitForSync(t.Context()); err != nil {
			t.Error(err)
		}
		if err := w.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		if err := w.WaitForSync(t.Context()); !errors.Is(err, dynamiccontroller.ErrNotServed) {
			t.Errorf("WaitForSync returned %v", err)
		}
		stop()
	})
}
