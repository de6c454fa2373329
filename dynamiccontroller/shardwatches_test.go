package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/metrics"
)

// requested returns the resources of all list and watch requests since the last call, sorted and without duplicates.
func (f *fixture) requested() (resources []string) {
	for _, action := range f.client.Actions() {
		if verb := action.GetVerb(); verb == "list" || verb == "watch" {
			resources = append(resources, action.GetResource().Resource)
		}
	}
	f.client.ClearActions()
	slices.Sort(resources)
	return slices.Compact(resources)
}

// typesOf returns the resources of the types in some shards, sorted.
func (f *fixture) typesOf(shards ...int) (resources []string) {
	for i, gvr := range f.types {
		if slices.Contains(shards, i%f.shards) {
			resources = append(resources, gvr.Resource)
		}
	}
	slices.Sort(resources)
	return resources
}

// wantRequested compares the types that have been listed or watched since the last call.
func (f *fixture) wantRequested(what string, want []string) {
	f.t.Helper()
	synctest.Wait()
	if got := f.requested(); !slices.Equal(got, want) {
		f.t.Errorf("%s: the types %q were listed or watched, want %q", what, got, want)
	}
}

func (f *fixture) lister(gvr schema.GroupVersionResource) dynamiccontroller.Lister {
	return must(f.controller.Lister(gvr))
}

func TestH1_EachKeyIsServedOnceByAnyDivision(t *testing.T) {
	for _, count := range []int{1, 2, 3, 8} {
		synctest.Test(t, func(t *testing.T) {
			f := newShardedAmong(t, 16, count, dynamiccontroller.Config{Workers: 4})
			var mu sync.Mutex
			runs := map[schema.GroupVersionResource][]context.Context{}
			for _, gvr := range f.types {
				f.put(gvr, "a")
				f.serve(gvr, func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
					mu.Lock()
					defer mu.Unlock()
					runs[id.GVR] = append(runs[id.GVR], dynamiccontroller.RunContext(ctx))
					return nil
				})
			}
			var stops []func()
			for shard := range count {
				stops = append(stops, f.runShard(shard))
			}
			synctest.Wait()
			mu.Lock()
			for i, gvr := range f.types {
				if len(runs[gvr]) != 1 || runs[gvr][0] != runs[f.types[i%count]][0] {
					t.Errorf("with %d shards, the object of type %d was reconciled %d times, or by the run of another shard",
						count, i, len(runs[gvr]))
				}
			}
			mu.Unlock()
			for _, stop := range stops {
				stop()
			}
		})
	}
}

// A shard is moved to this process, promoted, demoted, promoted again, and moved away.
func TestH5_WarmShardIsPromotedWithoutAListAndEachKeyIsReconciledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 4, dynamiccontroller.Config{Workers: 2})
		parent, child := f.types[0], f.types[2]
		c, others := newCalls(succeed), newCalls(succeed)
		for _, name := range []string{"a", "b"} {
			f.put(parent, name)
			f.put(child, "of-"+name, f.id(parent, name))
		}
		f.put(f.types[1], "other")
		f.serve(parent, c.handle, dynamiccontroller.Owns(child))
		f.serve(f.types[1], others.handle)
		stopWatches := f.watchShard(0)
		f.wantRequested("the warm-up", f.typesOf(0))
		for range 3 {
			stop := f.runShard(0)
			c.want(t, "a promotion", named("a", "b"))
			f.put(child, "of-b", f.id(parent, "b"))
			c.want(t, "an event", named("b"))
			stop()
			f.put(parent, "a")
			c.want(t, "a standby", named())
		}
		f.wantRequested("the promotions", nil)
		others.want(t, "the other shard", named())
		stopWatches()
	})
}

// A shard leaves and comes back. In between, another process deletes an object.
func TestH9_CachesOfAShardThatLeftAreGoneAndListedAgain(t *testing.T) {
	for name, last := range map[string]func(f *fixture) (stop func()){
		"RunWatches ends last": func(f *fixture) func() {
			stopWatches, stop := f.watchShard(0), f.runShard(0)
			return func() { stop(); stopWatches() }
		},
		"Run ends last": func(f *fixture) func() {
			stopWatches, stop := f.watchShard(0), f.runShard(0)
			return func() { stopWatches(); stop() }
		},
		"only Run": func(f *fixture) func() { return f.runShard(0) },
	} {
		for _, remains := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, another shard remains: %t", name, remains), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newSharded(t, 4, dynamiccontroller.Config{
						Workers: 2, MinRetryDelay: time.Hour, MaxRetryDelay: time.Hour,
					})
					if remains {
						defer f.watchShard(1)()
					}
					testShardLeaves(f, last)
				})
			})
		}
	}
}

func testShardLeaves(f *fixture, start func(*fixture) (stop func())) {
	t, parent, child := f.t, f.types[0], f.types[2]
	c := newCalls(func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		switch id.Name() {
		case "parked":
			return dynamiccontroller.Terminal(errOnPurpose)
		case "absent":
			return errOnPurpose
		}
		return nil
	})
	for _, name := range []string{"a", "b", "parked"} {
		f.put(parent, name)
		f.put(child, "of-"+name, f.id(parent, name))
	}
	owns := dynamiccontroller.Owns(child)
	f.serve(parent, c.handle, owns)
	before := countGoroutines()
	for round := range 3 {
		stop := start(f)
		f.wantRequested("the start", f.typesOf(0))
		if list := must(f.lister(parent).List(labels.Everything())); len(list) != 3 {
			t.Errorf("round %d: the cache holds %d objects, want 3", round, len(list))
		}
		c.want(t, "the run", named("a", "b", "parked"))
		f.controller.Enqueue(f.id(parent, "absent"))
		c.want(t, "an enqueued object", named("absent"))
		stop()
		synctest.Wait()
		f.wantRequested("the end", nil)
		s := f.status(parent)
		if s.Objects+s.Parked+s.Failing+s.Delayed+s.Secondaries[0].Objects != 0 || s.Bytes != 0 || s.Synced {
			t.Errorf("round %d: the shard has left %+v", round, s)
		}
		if n := f.controller.WatchCount(); n != 0 {
			t.Errorf("round %d: %d watches are left", round, n)
		}
		if n := countGoroutines(); n > before {
			t.Errorf("round %d: %d goroutines, want %d as before", round, n, before)
		}
		f.delete(child, "of-a")
		f.put(child, "of-a", f.id(parent, "a"))
		f.delete(parent, "b")
		f.put(parent, fmt.Sprint("b", round))
		f.delete(parent, fmt.Sprint("b", round))
		stop = start(f)
		f.requested()
		if _, err := f.lister(parent).Get("default/b"); !apierrors.IsNotFound(err) {
			t.Errorf("round %d: a deleted object is in the cache, or the error is %v", round, err)
		}
		c.want(t, "the next run", named("a", "parked"))
		stop()
		f.put(parent, "b")
	}
}

// With Count 1, the caches are kept between the runs, so that deletions are delivered.
func TestH9_CachesOfAllTypesAreKeptWithoutShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 1, dynamiccontroller.Config{Workers: 1})
		c := newCalls(succeed)
		f.put(f.types[0], "a")
		f.serve(f.types[0], c.handle)
		f.run()()
		c.want(t, "the first run", named("a"))
		f.delete(f.types[0], "a")
		if s := f.status(f.types[0]); s.Objects != 1 || s.OtherShard {
			t.Errorf("between the runs, the status is %+v", s)
		}
		f.run()()
		c.want(t, "the run after the deletion", named("a"))
	})
}

// The process serves one shard of eight and keeps another one warm.
func TestH9_OnlyTypesOfItsShardsAreWatched(t *testing.T) {
	const types, count = 64, 8
	synctest.Test(t, func(t *testing.T) {
		f := newShardedAmong(t, types, count, dynamiccontroller.Config{Workers: 2})
		for _, gvr := range f.types {
			f.put(gvr, "a")
		}
		var first []string // the types of the first run
		goroutines := func(start func() (stop func())) (n int) {
			before := countGoroutines()
			stop := start()
			synctest.Wait()
			n = countGoroutines() - before
			stop()
			synctest.Wait()
			if after := countGoroutines(); after > before {
				t.Errorf("%d goroutines are left", after-before)
			}
			return n
		}
		for _, gvr := range f.types[:types/2] {
			f.serve(gvr, succeed)
		}
		f.runShard(2)()
		for i := 2; i < types/2; i += count {
			first = append(first, f.types[i].Resource)
		}
		slices.Sort(first)
		f.wantRequested("the first run", first)
		for _, gvr := range f.types[types/2:] {
			f.serve(gvr, succeed)
		}
		all := goroutines(f.runWatches)
		f.requested()
		two := goroutines(func() func() {
			stopRun, stopWatches := f.runShard(2), f.watchShard(5)
			f.wantRequested("two shards", f.typesOf(2, 5))
			if n := f.controller.WatchCount(); n != types*2/count {
				t.Errorf("%d watches, want %d", n, types*2/count)
			}
			return func() { stopRun(); stopWatches() }
		})
		// A run has a few goroutines of its own.
		if two > all*2/count+10 {
			t.Errorf("two of eight shards need %d goroutines, all of them %d", two, all)
		}
		if n := f.controller.WatchCount(); n != 0 {
			t.Errorf("%d watches are left", n)
		}
	})
}

func TestErrOtherShard_IsReturnedByListersOfOtherShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 3, dynamiccontroller.Config{Workers: 1})
		gvr, child := f.types[0], f.types[2]
		f.put(gvr, "a")
		f.put(child, "c", f.id(gvr, "a"))
		owns := dynamiccontroller.Owns(child)
		f.serve(gvr, succeed, owns)
		listers := map[string]dynamiccontroller.Lister{
			"lister": f.lister(gvr), "secondary lister": must(f.controller.SecondaryLister(gvr, owns.Key())),
		}
		want := func(when string, want error) {
			t.Helper()
			synctest.Wait()
			for name, lister := range listers {
				_, errs := lister.List(labels.Everything())
				_, err := lister.Objects("", nil)
				if !errors.Is(errs, want) || !errors.Is(err, want) {
					t.Errorf("%s, the %s returned %v and %v, want %v", when, name, errs, err, want)
				}
			}
			if isOther := errors.Is(want, dynamiccontroller.ErrOtherShard); f.status(gvr).OtherShard != isOther {
				t.Errorf("%s, OtherShard is %t", when, !isOther)
			}
		}
		want("before the first run", dynamiccontroller.ErrNotSynced)
		stopOther := f.watchShard(1)
		want("while another shard is watched", dynamiccontroller.ErrOtherShard)
		stop := f.runShard(0)
		want("in a run of the shard", nil)
		stopOther()
		want("after the other shard has left", nil)
		stop()
		want("between the runs", dynamiccontroller.ErrOtherShard)
		stopOther = f.runShard(1)
		want("while another shard runs", dynamiccontroller.ErrOtherShard)
		must(f.controller.SecondaryLister(gvr, owns.Key()))
		stopAll := f.runWatches()
		want("while another shard runs and all types are watched", nil)
		stopAll()
		want("after RunWatches of all types", dynamiccontroller.ErrOtherShard)
		stopOther()
		stop = f.run()
		want("in a run of all types", nil)
		stop()
		want("after a run of all types", dynamiccontroller.ErrNotSynced)
	})
}

// Types of other shards do not sync here. Waiting for all types ignores them.
func TestShards_SyncStatusIgnoresOtherShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 2, dynamiccontroller.Config{Workers: 1})
		c, own, other := f.controller, f.types[0], f.types[1]
		f.serve(own, succeed)
		f.serve(other, succeed)
		if c.AllInformerHaveSynced() {
			t.Error("AllInformerHaveSynced is true before the first run")
		}
		f.failLists(own, errOnPurpose)
		stop := f.watchShard(0)
		synced := make(chan bool, 1)
		go func() { synced <- c.WaitForInformersSync(nil) }()
		synctest.Wait()
		if c.AllInformerHaveSynced() || c.Watches().HasSynced() || len(synced) > 0 {
			t.Error("the types have synced, although the list fails")
		}
		f.failLists(own, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if !c.AllInformerHaveSynced() || !c.Watches().HasSynced() || len(synced) == 0 || !<-synced {
			t.Error("the types have not synced")
		}
		if s := f.status(other); s.State != dynamiccontroller.TypeStopped || !s.OtherShard || s.Synced {
			t.Errorf("the status of the other shard's type is %+v", s)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := c.WaitForGVRSync(ctx, other)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, dynamiccontroller.ErrOtherShard) {
			t.Errorf("WaitForGVRSync returned %v", err)
		}
		waited := make(chan error, 1)
		go func() { waited <- c.WaitForGVRSync(t.Context(), other) }()
		synctest.Wait()
		stopOther := f.watchShard(1)
		if err := <-waited; err != nil {
			t.Errorf("after the shard came, WaitForGVRSync returned %v", err)
		}

		// A type that cannot sync leaves with its shard.
		stopOther()
		f.failLists(other, errOnPurpose)
		stopOther = f.watchShard(1)
		go func() { synced <- c.WaitForInformersSync(nil) }()
		synctest.Wait()
		if len(synced) > 0 {
			t.Error("WaitForInformersSync returned while the list fails")
		}
		stopOther()
		if !<-synced {
			t.Error("WaitForInformersSync returned false")
		}
		stop()
	})
}

func TestHasSyncedShard_IgnoresTypesThatCannotSync(t *testing.T) {
	for name, test := range map[string]struct {
		err   error
		after time.Duration
	}{
		"no error":  {nil, 0},
		"forbidden": {apierrors.NewForbidden(schema.GroupResource{}, "", errOnPurpose), 300 * time.Millisecond},
		"not found": {apierrors.NewNotFound(schema.GroupResource{}, ""), 300 * time.Millisecond},
		"failing":   {errOnPurpose, time.Minute + time.Second},
	} {
		for _, fails := range []int{0, 2} { // the type and its owned type
			t.Run(fmt.Sprintf("%s, type %d", name, fails), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testHasSyncedShard(t, fails, test.err, test.after) })
			})
		}
	}
}

func testHasSyncedShard(t *testing.T, fails int, err error, after time.Duration) {
	f := newSharded(t, 4, dynamiccontroller.Config{Workers: 1})
	w := f.controller.Watches()
	want := func(when string, want bool) {
		t.Helper()
		synctest.Wait()
		if w.HasSyncedShard(0, 2) != want {
			t.Errorf("%s, HasSyncedShard is %t: %+v", when, !want, f.status(f.types[0]))
		}
	}
	f.serve(f.types[0], succeed, dynamiccontroller.Owns(f.types[2]))
	f.serve(f.types[1], succeed)
	f.failLists(f.types[1], errOnPurpose)
	f.failLists(f.types[fails], err)
	want("before RunWatches", false)
	stop := f.stopper(inBackground(f.shard(0, w.Run)))
	want("at once", err == nil)
	time.Sleep(after * 4 / 5)
	want("before the limit", err == nil)
	time.Sleep(after / 5)
	want("later", true)
	if !w.HasSynced() {
		t.Error("HasSynced is false")
	}
	for _, shard := range [][2]int{{1, 2}, {0, 4}, {0, 1}, {2, 2}, {-1, 2}, {0, 0}} {
		if w.HasSyncedShard(shard[0], shard[1]) {
			t.Errorf("HasSyncedShard is true for the shard %v", shard)
		}
	}
	stop()
	want("after RunWatches", false)
	if w.HasSynced() {
		t.Error("HasSynced is true after RunWatches")
	}
}

func TestWithShard_InvalidShardsAreRejected(t *testing.T) {
	f := newFixture(t, 1, dynamiccontroller.Config{})
	for _, shard := range [][2]int{{0, 0}, {0, -1}, {0, 257}, {-1, 2}, {2, 2}} {
		ctx := dynamiccontroller.WithShard(t.Context(), shard[0], shard[1])
		for name, run := range map[string]func(context.Context) error{
			"Run": f.controller.Run, "RunWatches": f.controller.RunWatches,
		} {
			if err := run(ctx); !errors.Is(err, dynamiccontroller.ErrInvalidOptions) {
				t.Errorf("%s with the shard %v returned %v", name, shard, err)
			}
		}
	}
}

// Runs with different counts, and calls to RunWatches with different counts, overlap. Afterwards, another count can be
// used.
func TestShards_CountsDoNotMix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 4, dynamiccontroller.Config{Workers: 1})
		for _, gvr := range f.types {
			f.serve(gvr, succeed)
		}
		for name, run := range map[string]func(context.Context) error{
			"Run": f.controller.Run, "RunWatches": f.controller.RunWatches,
		} {
			stops := []func(){f.stopper(inBackground(f.shard(0, run))), f.stopper(inBackground(f.shard(1, run)))}
			for _, shard := range [][2]int{{0, 1}, {0, 2}, {1, 2}, {0, 4}, {3, 4}} {
				err := forASecond(func(ctx context.Context) error {
					return run(dynamiccontroller.WithShard(ctx, shard[0], shard[1]))
				})
				if !errors.Is(err, dynamiccontroller.ErrAlreadyRunning) {
					t.Errorf("%s for the shard %v returned %v", name, shard, err)
				}
			}
			for _, stop := range stops {
				stop()
			}
			for _, shard := range [][2]int{{3, 4}, {0, 1}, {1, 2}} {
				f.stopper(inBackground(func(ctx context.Context) error {
					return run(dynamiccontroller.WithShard(ctx, shard[0], shard[1]))
				}))()
			}
		}
	})
}

// A transform hangs when the run of its shard ends. The session of the watches continues, because of another shard.
func TestD11_EndOfAShardRunListsWatchesThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 2, dynamiccontroller.Config{Workers: 2, ShutdownTimeout: time.Second})
		gvr := f.types[0]
		f.put(gvr, "a")
		hang := make(chan struct{})
		c := newCalls(succeed)
		f.serve(gvr, c.handle, dynamiccontroller.WithTransform(func(obj any) (any, error) {
			<-hang
			return obj, nil
		}))
		stopOther := f.watchShard(1)
		err := f.startShard(0)()
		if want := "a watch of " + gvr.Resource; !errors.Is(err, dynamiccontroller.ErrStillRunning) ||
			!strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("Run returned %v, want an error with %q", err, want)
		}
		if err := forASecond(f.shard(0, f.controller.Run)); !errors.Is(err, dynamiccontroller.ErrAlreadyRunning) {
			t.Errorf("while the watch of the last run hangs, Run returned %v", err)
		}
		close(hang)
		synctest.Wait()
		stop := f.runShard(0)
		c.want(t, "the next run", named("a"))
		stop()
		stopOther()
	})
}

// A handler hangs while its shard leaves and comes back.
func TestH9_OutcomesOfHungHandlersAreNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 2, dynamiccontroller.Config{Workers: 2, ShutdownTimeout: time.Second})
		gvr, hang := f.types[0], make(chan struct{})
		c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			<-hang
			return errOnPurpose
		})
		f.serve(gvr, c.handle)
		stop := f.startShard(0)
		f.controller.Enqueue(f.id(gvr, "absent"))
		c.want(t, "the run", named("absent"))
		if err := stop(); !errors.Is(err, dynamiccontroller.ErrStillRunning) {
			t.Errorf("Run returned %v", err)
		}
		close(hang)
		synctest.Wait()
		stop = f.startShard(0)
		c.want(t, "the next run", named())
		if s := f.status(gvr); s.Failing+s.Delayed != 0 {
			t.Errorf("the status is %+v", s)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// Types can be started, swapped and stopped while their shard is elsewhere. The newest options apply once it comes.
func TestS4_TypesOfOtherShardsCanBeChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 6, dynamiccontroller.Config{Workers: 2})
		gvr, child, stopped := f.types[0], f.types[2], f.types[4]
		f.put(gvr, "a")
		f.put(child, "c", f.id(gvr, "a"))
		stopOther := f.watchShard(1)
		f.serve(stopped, succeed)
		f.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			t.Error("a handler that was replaced before its shard came was called")
			return nil
		}, dynamiccontroller.Owns(f.types[1]))
		c := newCalls(succeed)
		f.serve(gvr, c.handle, metadataOnly)
		if s := f.status(gvr); s.Replacement != nil || len(s.Secondaries) != 0 {
			t.Errorf("after a swap, the status is %+v", s)
		}
		owns := dynamiccontroller.Owns(child)
		if err := f.controller.AddWatches(t.Context(), gvr, owns); err != nil {
			t.Error(err)
		}
		if err := f.controller.StopServiceGVK(t.Context(), stopped); err != nil {
			t.Error(err)
		}
		f.wantRequested("while the shard is elsewhere", nil)
		if n := f.controller.WatchCount(); n != 0 {
			t.Errorf("%d watches while the shard is elsewhere", n)
		}
		stop := f.runShard(0)
		c.want(t, "the run", named("a"))
		f.put(child, "c", f.id(gvr, "a"))
		c.want(t, "an event of the watch that was added", named("a"))
		f.wantRequested("the run", []string{gvr.Resource, child.Resource})
		if err := f.controller.RemoveWatches(t.Context(), gvr, owns.Key()); err != nil {
			t.Error(err)
		}
		stop()
		stopOther()
	})
}

// The watch for a swap cannot sync when the shard leaves. The swap then takes effect.
func TestS2_PendingSwapTakesEffectWhenItsShardLeaves(t *testing.T) {
	for name, end := range map[string]func(stopRun, stopWatches func()){
		"the run ends first":    func(stopRun, stopWatches func()) { stopRun(); stopWatches() },
		"the watches end first": func(stopRun, stopWatches func()) { stopWatches(); stopRun() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newSharded(t, 2, dynamiccontroller.Config{Workers: 2})
				gvr := f.types[0]
				f.put(gvr, "a")
				old, latest := newCalls(succeed), newCalls(succeed)
				f.serve(gvr, old.handle)
				stopOther := f.watchShard(1)
				stopWatches, stopRun := f.watchShard(0), f.runShard(0)
				old.want(t, "the run", named("a"))
				f.failLists(gvr, errOnPurpose)
				f.serve(gvr, latest.handle, withoutLabel, metadataOnly)
				if f.status(gvr).Replacement == nil {
					t.Error("the swap is not pending")
				}
				end(stopRun, stopWatches)
				if s := f.status(gvr); s.Replacement != nil || !s.OtherShard {
					t.Errorf("after the shard left, the status is %+v", s)
				}
				if n := f.controller.WatchesOf(gvr); n != 0 {
					t.Errorf("%d watches are left", n)
				}
				f.failLists(gvr, nil)
				stopRun = f.runShard(0)
				latest.want(t, "the next run", named("a"))
				old.want(t, "the former handler", named())
				stopRun()
				stopOther()
			})
		})
	}
}

// Types of two shards own objects of the same type. The watch runs as long as one of the shards is here, and is not
// listed again when the other one comes.
func TestS6_ShardsShareTheWatchOfAChildType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 4, dynamiccontroller.Config{Workers: 2})
		child := f.types[2]
		var calls [2]*calls
		var listers [2]dynamiccontroller.Lister
		for shard := range calls {
			calls[shard] = newCalls(succeed)
			f.put(f.types[shard], "a")
			owns := dynamiccontroller.Owns(child, dynamiccontroller.EveryOwner())
			f.serve(f.types[shard], calls[shard].handle, owns)
			listers[shard] = must(f.controller.SecondaryLister(f.types[shard], owns.Key()))
		}
		f.put(child, "c", f.id(f.types[0], "a"), f.id(f.types[1], "a"))
		stopFirst := f.runShard(0)
		f.wantRequested("the first shard", []string{f.types[0].Resource, child.Resource})
		calls[0].want(t, "the first shard", named("a"))
		if _, err := listers[1].List(nil); !errors.Is(err, dynamiccontroller.ErrOtherShard) {
			t.Errorf("the lister of the other shard returned %v, although it may not use the shared cache", err)
		}
		for range 2 {
			stopSecond := f.runShard(1)
			f.wantRequested("the second shard", []string{f.types[1].Resource})
			calls[1].want(t, "the second shard", named("a"))
			f.put(child, "c", f.id(f.types[0], "a"), f.id(f.types[1], "a"))
			calls[0].want(t, "an event for the first shard", named("a"))
			calls[1].want(t, "an event for the second shard", named("a"))
			if n := f.controller.WatchesOf(child); n != 1 {
				t.Errorf("%d watches of the shared type", n)
			}
			stopSecond()
			f.put(child, "c", f.id(f.types[0], "a"), f.id(f.types[1], "a"))
			calls[0].want(t, "an event after the second shard has left", named("a"))
			calls[1].want(t, "the shard that has left", named())
		}
		stopFirst()
		if n := f.controller.WatchCount(); n != 0 {
			t.Errorf("%d watches are left", n)
		}
	})
}

// A standalone watch belongs to no shard, and runs while any of them does.
func TestShards_StandaloneWatchRunsForAnyShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 3, dynamiccontroller.Config{Workers: 2})
		c := newCalls(succeed)
		f.serve(f.types[0], c.handle)
		w := startWatch(f, f.types[2], toOwners(f.types[0]))
		f.put(f.types[2], "c", f.id(f.types[0], "a"))
		stopOther := f.watchShard(1)
		if list := must(w.Lister().List(nil)); len(list) != 1 {
			t.Errorf("the cache holds %d objects", len(list))
		}
		f.requested()
		stop := f.runShard(0)
		c.want(t, "the run", named("a"))
		f.wantRequested("the run", []string{f.types[0].Resource})
		stop()
		if list := must(w.Lister().List(nil)); len(list) != 1 {
			t.Errorf("after the run, the cache holds %d objects", len(list))
		}
		stopOther()
	})
}

// Prometheus counts only the types of the shards that are here. The others are not unsynced.
func TestShards_MetricsIgnoreOtherShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 6, dynamiccontroller.Config{Workers: 2})
		for _, gvr := range f.types {
			f.serve(gvr, succeed)
		}
		stop := f.watchShard(0)
		var want []string
		for _, resource := range f.typesOf(0) {
			want = append(want, resource+" Synced")
		}
		if got := stateMetrics(f.controller); !slices.Equal(got, want) {
			t.Errorf("got the states %q, want %q", got, want)
		}
		stop()
		if got := stateMetrics(f.controller); len(got) != 0 {
			t.Errorf("after the last shard has left, got the states %q", got)
		}
	})
}

// stateMetrics returns the resource and the state of each series of the metric type_state, sorted.
func stateMetrics(c *dynamiccontroller.DynamicController) (states []string) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.NewStatus(c))
	for _, family := range must(registry.Gather()) {
		if family.GetName() != "dynamiccontroller_type_state" {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range m.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			states = append(states, labels["resource"]+" "+labels["state"])
		}
	}
	slices.Sort(states)
	return states
}

// A run can begin while a call to RunWatches for the same shard ends, and the other way round.
func TestL5_RunAndRunWatchesOfAShardStartAndEndInAnyOrder(t *testing.T) {
	f := newSharded(t, 2, dynamiccontroller.Config{Workers: 1})
	for _, gvr := range f.types {
		if err := f.controller.StartServingGVK(t.Context(), gvr, succeed); err != nil {
			t.Fatal(err)
		}
	}
	for range 300 {
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		for shard := range 2 {
			for _, run := range []func(context.Context) error{f.controller.RunWatches, f.controller.Run} {
				running.Go(func() {
					if err := f.shard(shard, run)(ctx); err != nil {
						t.Error(err)
					}
				})
			}
		}
		running.Go(cancel)
		running.Wait()
		if n := f.controller.WatchCount(); n != 0 {
			t.Fatalf("%d watches are left", n)
		}
	}
}
