package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/internal/shards"
)

// shardedTypes returns types of which the one with index i belongs to shard i modulo count.
func shardedTypes(types, count int) []schema.GroupVersionResource {
	gvrs := make([]schema.GroupVersionResource, types)
	for i := range gvrs {
		gvr := schema.GroupVersionResource{Group: "example.com", Version: "v1"}
		for n := 0; gvr.Resource == "" || shards.Of(gvr.GroupResource(), count) != i%count; n++ {
			gvr.Resource = fmt.Sprintf("type%dv%ds", i, n)
		}
		gvrs[i] = gvr
	}
	return gvrs
}

// newSharded returns a fixture with two shards; see shardedTypes.
func newSharded(
	t *testing.T, types int, config dynamiccontroller.Config, opts ...dynamiccontroller.Option,
) *fixture {
	return newShardedAmong(t, types, 2, config, opts...)
}

func newShardedAmong(
	t *testing.T, types, count int, config dynamiccontroller.Config, opts ...dynamiccontroller.Option,
) *fixture {
	if config.ResyncPeriod == 0 {
		config.ResyncPeriod = -1
	}
	f := newFixtureOf(t, logr.Discard(), shardedTypes(types, count), config, opts...)
	f.shards = count
	return f
}

// shard returns a function that calls run with the context of a shard.
func (f *fixture) shard(index int, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error { return run(dynamiccontroller.WithShard(ctx, index, f.shards)) }
}

// startShard calls Run for a shard in the background. The function stop ends it and returns its error.
func (f *fixture) startShard(shard int) (stop func() error) {
	return inBackground(f.shard(shard, f.controller.Run))
}

// watchShard calls RunWatches for a shard in the background. The function stop ends it and reports its error as a test
// failure.
func (f *fixture) watchShard(shard int) (stop func()) {
	return f.stopper(inBackground(f.shard(shard, f.controller.RunWatches)))
}

// runShard is like startShard, but stop reports the error as a test failure.
func (f *fixture) runShard(shard int) (stop func()) { return f.stopper(f.startShard(shard)) }

// forASecond calls run, which ends after a second if it does not return an error at once.
func forASecond(run func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return run(ctx)
}

func TestShards_OverlappingRunsAreErrors(t *testing.T) {
	run := func(f *fixture) error { return forASecond(f.controller.Run) }
	shard := func(n int) func(*fixture) error {
		return func(f *fixture) error {
			return forASecond(f.shard(n, f.controller.Run))
		}
	}
	for name, test := range map[string]struct {
		first  func(f *fixture) (stop func())
		second func(f *fixture) error
	}{
		"the same shard twice":          {func(f *fixture) func() { return f.runShard(0) }, shard(0)},
		"Run while a shard is running":  {func(f *fixture) func() { return f.runShard(1) }, run},
		"a shard while Run is running":  {func(f *fixture) func() { return f.run() }, shard(1)},
		"Run twice on a sharded engine": {func(f *fixture) func() { return f.run() }, run},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newSharded(t, 2, dynamiccontroller.Config{Workers: 2})
				c := newCalls(succeed)
				for _, gvr := range f.types {
					f.serve(gvr, c.handle)
				}
				stop := test.first(f)
				if err := test.second(f); err == nil || !strings.Contains(err.Error(), "already running") {
					t.Errorf("the second run returned %v", err)
				}
				c.take()
				f.put(f.types[0], "a")
				f.put(f.types[1], "b")
				if n := len(c.take()); n == 0 {
					t.Error("the first run does not reconcile after the second one was rejected")
				}
				stop()
				f.runShard(0)()
				f.run()()
			})
		})
	}
}

// Types are served before the runs, during a run of their shard, during a run of the other shard, and between runs.
func TestS4_TypesAreServedByTheRunOfTheirShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 8, dynamiccontroller.Config{Workers: 2})
		var mu sync.Mutex
		ran := map[context.Context][]string{}
		handler := func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			mu.Lock()
			defer mu.Unlock()
			run := dynamiccontroller.RunContext(ctx)
			ran[run] = append(ran[run], fmt.Sprintf("type%ds", slices.Index(f.types, id.GVR)))
			return nil
		}
		// want checks which types the runs have reconciled since the last call.
		want := func(what string, runs ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			var got []string
			for _, types := range ran {
				slices.Sort(types)
				got = append(got, strings.Join(types, " "))
			}
			clear(ran)
			slices.Sort(got)
			if !slices.Equal(got, runs) {
				t.Errorf("%s, the runs reconciled %q, want %q", what, got, runs)
			}
		}
		for _, gvr := range f.types {
			f.put(gvr, "a")
		}
		serve := func(types ...int) {
			for _, i := range types {
				f.serve(f.types[i], handler)
			}
		}
		serve(0, 1)
		want("before the runs")
		stopZero := f.runShard(0)
		want("when shard 0 begins", "type0s")
		serve(2, 3)
		want("when types are served during a run of shard 0", "type2s")
		stopOne := f.runShard(1)
		want("when shard 1 begins", "type1s type3s")
		serve(4, 5)
		want("when types are served during both runs", "type4s", "type5s")
		stopZero()
		serve(6, 7)
		want("when types are served after the run of shard 0", "type7s")
		stopOne()
		stopZero, stopOne = f.runShard(0), f.runShard(1)
		want("in the next runs", "type0s type2s type4s type6s", "type1s type3s type5s type7s")
		stopOne()
		stopZero()
		stop := f.run()
		want("in a run of all shards", "type0s type1s type2s type3s type4s type5s type6s type7s")
		stop()
	})
}

// A change can arrive at any step of the beginning of a run.
func TestD1_ChangesAtTheBeginningOfAShardRunAreNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 3, dynamiccontroller.Config{Workers: 2})
		parent, child := f.types[0], f.types[2]
		f.put(parent, "a")
		f.put(child, "c", f.id(parent, "a"))
		owns := dynamiccontroller.Owns(child)
		var mu sync.Mutex
		seen := ""
		version := func() string {
			own := versionIn(must(f.controller.Lister(parent)), f.id(parent, "a"))
			return own + "/" + versionIn(must(f.controller.SecondaryLister(parent, owns.Key())), f.id(child, "c"))
		}
		f.serve(parent, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			mu.Lock()
			defer mu.Unlock()
			seen = version()
			return nil
		}, owns)
		stopWatches, stopOther := f.runWatches(), f.runShard(1)
		for i := range 400 {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- f.shard(0, f.controller.Run)(ctx) }()
			if i%2 == 0 {
				f.put(parent, "a")
			} else {
				f.put(child, "c", f.id(parent, "a"))
			}
			mu.Lock()
			if want := version(); seen != want {
				t.Errorf("the last call saw the versions %s, want %s", seen, want)
			}
			mu.Unlock()
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		stopOther()
		stopWatches()
	})
}

// The delivery of a type's objects can begin later than its run, because earlier changes to its watches come first.
func TestShards_EnqueuedObjectsWaitForTheBeginningOfTheDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 2, dynamiccontroller.Config{Workers: 2})
		gvr := f.types[0]
		c := newCalls(succeed)
		f.serve(gvr, c.handle)
		stopWatches, stopOther := f.runWatches(), f.runShard(1)
		for range 2 {
			unblock := f.controller.BlockChanges(gvr)
			stop := f.runShard(0)
			f.controller.Enqueue(f.id(gvr, "absent"))
			c.want(t, "before the delivery begins", named())
			began := time.Now()
			unblock()
			c.want(t, "when the delivery begins", named("absent"))
			if waited := time.Since(began); waited > 0 {
				t.Errorf("the object was delayed by %s", waited)
			}
			stop()
		}
		stopOther()
		stopWatches()
	})
}

// Handlers of one shard hang beyond the ShutdownTimeout, and the shard runs again before they return.
func TestD2_ObjectOfAHungHandlerWaitsInTheNextRunOfItsShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 2, dynamiccontroller.Config{Workers: 4, ShutdownTimeout: time.Second})
		gvr := f.types[0]
		hang := make(chan struct{})
		var running, runs atomic.Int64
		c := newCalls(func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			if id.Name() != "hung" {
				return nil
			}
			if running.Add(1) > 1 {
				t.Error("the handler was called concurrently for the same object")
			}
			defer running.Add(-1)
			if runs.Add(1) == 1 {
				<-hang
			}
			return nil
		})
		f.put(gvr, "hung")
		f.put(gvr, "other")
		f.serve(gvr, c.handle)
		stopOther := f.runShard(1)
		for i := range 3 {
			stop := f.startShard(0)
			f.put(gvr, "hung")
			f.controller.Enqueue(f.id(gvr, "hung"))
			if err := stop(); (err != nil) != (i == 0) {
				t.Errorf("run %d returned %v, want an error only from the run that called the hung handler", i, err)
			}
		}
		stop := f.runShard(0)
		c.take()
		close(hang)
		c.want(t, "after the hung call returned", named("hung"))
		stop()
		stopOther()
	})
}

// shardStress begins and ends the runs of two shards at random, while their objects change. It is not in a bubble,
// where goroutines are rarely interrupted.
type shardStress struct {
	*fixture
	running  sync.Map // the objects with a running call
	handlers atomic.Int64
	hangs    bool
}

func (s *shardStress) handle(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	n := s.handlers.Add(1)
	if _, concurrent := s.running.LoadOrStore(id, n); concurrent {
		s.t.Errorf("the handler was called concurrently for %s", id)
	}
	defer s.running.Delete(id)
	if dynamiccontroller.RunContext(ctx).Err() != nil {
		s.t.Errorf("the handler was called for %s after its run had ended", id)
	}
	switch {
	case s.hangs && n%31 == 0:
		time.Sleep(8 * time.Millisecond) // longer than the ShutdownTimeout
	case n%7 == 0:
		return errOnPurpose
	case n%5 == 0:
		return dynamiccontroller.RequeueAfter(time.Millisecond)
	}
	return nil
}

// run begins and ends runs for the given time, and until there have been some calls, which takes longer on a machine
// that is busy.
func (s *shardStress) run(duration time.Duration) {
	const calls, longest = 100, time.Minute
	ctx, cancel := context.WithTimeout(s.t.Context(), longest)
	defer cancel()
	var wg sync.WaitGroup
	began := time.Now()
	wg.Go(func() {
		for ctx.Err() == nil && (time.Since(began) < duration || s.handlers.Load() < calls) {
			time.Sleep(time.Millisecond)
		}
		cancel()
	})
	wg.Go(func() {
		if err := s.controller.RunWatches(ctx); err != nil {
			s.t.Error(err)
		}
	})
	for shard := range 2 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				run, end := context.WithTimeout(ctx, time.Duration(i%7)*time.Duration(1+i/500)*300*time.Microsecond)
				began := time.Now()
				if err := s.shard(shard, s.controller.Run)(run); err != nil && !s.hangs {
					s.t.Error(err)
				}
				end()
				if took := time.Since(began); took > 5*time.Second {
					s.t.Errorf("a run of shard %d took %s", shard, took)
				}
			}
		})
	}
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			s.controller.Enqueue(s.id(s.types[i%len(s.types)], strconv.Itoa(i%5)))
			time.Sleep(50 * time.Microsecond)
		}
	})
	wg.Wait()
}

func TestD2_NoConcurrentCallsWhileRunsOfShardsBeginAndEnd(t *testing.T) {
	for name, hangs := range map[string]bool{"handlers return": false, "some handlers outlive their run": true} {
		t.Run(name, func(t *testing.T) {
			config := dynamiccontroller.Config{
				Workers: 4, MinRetryDelay: time.Microsecond, MaxRetryDelay: time.Millisecond, ShutdownTimeout: 10 * time.Second,
			}
			if hangs {
				config.ShutdownTimeout = 2 * time.Millisecond
			}
			s := &shardStress{fixture: newSharded(t, 4, config), hangs: hangs}
			for _, gvr := range s.types {
				for i := range 5 {
					s.create(gvr, strconv.Itoa(i))
				}
				if err := s.controller.StartServingGVK(t.Context(), gvr, s.handle); err != nil {
					t.Fatal(err)
				}
			}
			s.run(700 * time.Millisecond)
			if n := s.handlers.Load(); n < 100 {
				t.Errorf("only %d calls", n)
			}
			for _, status := range s.controller.Status() {
				if status.Live+status.Background+status.Delayed != 0 {
					t.Errorf("objects are queued although no run is active: %+v", status)
				}
			}
		})
	}
}

// The runs of two shards alternate, so that one begins whenever the other one ends. The workers end with the last run,
// while the next run needs new ones.
func TestShards_BeginsWhileTheLastOtherRunEnds(t *testing.T) {
	f := newSharded(t, 2, dynamiccontroller.Config{Workers: 4, ShutdownTimeout: 10 * time.Second})
	for _, gvr := range f.types {
		if err := f.controller.StartServingGVK(t.Context(), gvr, succeed); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 1000 {
		first, endFirst := context.WithCancel(t.Context())
		second, endSecond := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.shard(i%2, f.controller.Run)(first) }()
		for f.status(f.types[i%2]).State == dynamiccontroller.TypeStopped {
			runtime.Gosched()
		}
		began := time.Now()
		other := make(chan error, 1)
		go func() { other <- f.shard(1-i%2, f.controller.Run)(second) }()
		endFirst()
		if err := <-ended; err != nil || time.Since(began) > 5*time.Second {
			t.Fatalf("in round %d, the run took %s to end and returned %v", i, time.Since(began), err)
		}
		endSecond()
		if err := <-other; err != nil {
			t.Error(err)
		}
	}
}

// hangingShards is a fixture with a run of each shard. The handlers of shard 0 hang until release is closed, and those
// of shard 1 until their context is cancelled.
type hangingShards struct {
	*fixture
	release chan struct{}
	mu      sync.Mutex
	causes  map[string]error // of the contexts, by type
	stop    [2]func() error
}

func newHangingShards(t *testing.T) *hangingShards {
	h := &hangingShards{
		fixture: newSharded(t, 2, dynamiccontroller.Config{Workers: 8, ShutdownTimeout: time.Minute}),
		release: make(chan struct{}), causes: map[string]error{},
	}
	for shard, gvr := range h.types {
		h.put(gvr, "a")
		h.serve(gvr, func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			<-ctx.Done()
			h.mu.Lock()
			h.causes[id.GVR.Resource] = context.Cause(ctx)
			h.mu.Unlock()
			if shard == 0 {
				<-h.release
			}
			return nil
		}, dynamiccontroller.WithReconcileTimeout(-1))
		h.stop[shard] = h.startShard(shard)
	}
	return h
}

func (h *hangingShards) cause(shard int) error {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.causes[h.types[shard].Resource]
}

func TestD11_EndOfAShardRunCancelsOnlyItsOwnHandlersAndWaitsForThem(t *testing.T) {
	for name, returns := range map[string]bool{"the handler returns in time": true, "the handler hangs": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newHangingShards(t).testEnd(returns) })
		})
	}
}

func (h *hangingShards) testEnd(returns bool) {
	began := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- h.stop[0]() }()
	if cause := h.cause(0); !errors.Is(cause, dynamiccontroller.ErrRunEnded) || !errors.Is(cause, context.Canceled) {
		h.t.Errorf("the handler's context has the cause %v, want ErrRunEnded and Canceled", cause)
	}
	time.Sleep(30 * time.Second)
	synctest.Wait()
	if len(ended) > 0 {
		h.t.Error("Run did not wait for the handler")
	}
	if returns {
		close(h.release)
	} else {
		defer close(h.release)
	}
	err, took := <-ended, time.Since(began)
	if returns && (err != nil || took != 30*time.Second) {
		h.t.Errorf("Run returned %v after %s", err, took)
	}
	if text := fmt.Sprint(err); !returns && (took != time.Minute ||
		!strings.Contains(text, h.types[0].Resource+".v1.example.com default/a") ||
		strings.Contains(text, h.types[1].Resource)) {
		h.t.Errorf("after %s, Run returned %v, want an error that lists the hung handler only", took, err)
	}
	if cause := h.cause(1); cause != nil {
		h.t.Errorf("the context of a handler of the other shard was cancelled: %v", cause)
	}
	if err := h.stop[1](); err != nil {
		h.t.Error(err)
	}
}

// Objects of another shard that wait, run, or are delayed stay where they are when a run ends and begins.
func TestD11_EndOfAShardRunKeepsTheQueueOfOtherShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 2, dynamiccontroller.Config{Workers: 4, MinRetryDelay: time.Hour, MaxRetryDelay: time.Hour})
		gvr := f.types[1]
		release := make(chan struct{})
		hangs := atomic.Bool{}
		hangs.Store(true)
		c := newCalls(func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			switch {
			case !hangs.Load():
			case id.Name() == "requeued":
				return dynamiccontroller.RequeueAfter(time.Hour)
			case id.Name() == "retried":
				return errOnPurpose
			default:
				<-release
			}
			return nil
		})
		f.serve(gvr, c.handle)
		f.serve(f.types[0], succeed)
		stopOther := f.runShard(1)
		f.controller.Enqueue(f.id(gvr, "requeued"), f.id(gvr, "retried"))
		synctest.Wait()
		for i := range 8 {
			f.controller.Enqueue(f.id(gvr, fmt.Sprint(i)))
		}
		synctest.Wait()
		type queued struct{ live, delayed, running, failing int }
		now := func() queued {
			s := f.status(gvr)
			return queued{s.Live, s.Delayed, s.Running, s.Failing}
		}
		before := now()
		if before.live == 0 || before.delayed != 2 || before.running == 0 || before.failing != 1 {
			t.Fatalf("the queue of the other shard is %+v", before)
		}
		for range 3 {
			stop := f.runShard(0)
			stop()
			if after := now(); after != before {
				t.Errorf("after a run of shard 0, the queue of the other shard is %+v, want %+v", after, before)
			}
		}
		c.take()
		hangs.Store(false)
		close(release)
		synctest.Wait()
		if n := len(c.take()); n != before.live {
			t.Errorf("%d waiting objects were reconciled, want %d", n, before.live)
		}
		time.Sleep(2 * time.Hour)
		c.want(t, "the delayed objects", named("requeued", "retried"))
		stopOther()
	})
}

func TestD11_PredicatesAndMapFuncsOfAShardAreNotCalledBetweenItsRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 2, dynamiccontroller.Config{Workers: 2})
		gvr, watched := f.types[0], f.types[1]
		calls := 0
		predicate := func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) bool {
			calls++
			return true
		}
		f.serve(gvr, succeed, dynamiccontroller.WithPredicate(predicate),
			dynamiccontroller.Watches(watched, mapTo(), dynamiccontroller.WithPredicate(predicate)))
		stopOther := f.runShard(1)
		for range 2 {
			f.put(gvr, "a")
			f.put(watched, "w")
			if calls != 0 {
				t.Errorf("%d calls while only the other shard is running", calls)
			}
			stop := f.runShard(0)
			f.put(gvr, "a")
			f.put(watched, "w")
			if calls != 2 {
				t.Errorf("%d calls in a run of the shard, want 2", calls)
			}
			stop()
			calls = 0
		}
		stopOther()
	})
}

// While RunWatches is running, the promotion of a shard uses the caches.
func TestL5_PromotionOfAShardSendsNoRequestAndReconcilesOnlyItsObjectsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 4, dynamiccontroller.Config{Workers: 2})
		var ofShard [2]*calls
		for shard := range ofShard {
			parent, child := f.types[shard], f.types[shard+2]
			c := newCalls(succeed)
			ofShard[shard] = c
			for _, name := range []string{"a", "b"} {
				f.put(parent, name)
				f.put(child, "of-"+name, f.id(parent, name))
			}
			// A watch of the other shard's type changes nothing about whose objects are reconciled.
			f.serve(parent, c.handle, dynamiccontroller.Owns(child), dynamiccontroller.Owns(f.types[3-shard]))
		}
		stopWatches := f.runWatches()
		f.client.ClearActions()
		for range 2 {
			for shard, c := range ofShard {
				stop := f.runShard(shard)
				c.want(t, "the promoted shard", named("a", "b"))
				ofShard[1-shard].want(t, "the other shard", named())
				f.put(f.types[shard+2], "of-b", f.id(f.types[shard], "b"))
				c.want(t, "an event", named("b"))
				f.put(f.types[3-shard], "of-b", f.id(f.types[1-shard], "b"))
				ofShard[1-shard].want(t, "an event of the other shard", named())
				c.want(t, "an event of the other shard's type", named())
				stop()
			}
		}
		for _, action := range f.client.Actions() {
			if verb := action.GetVerb(); verb == "list" || verb == "watch" {
				t.Errorf("the promotions sent the request %v", action)
			}
		}
		stopWatches()
	})
}

// The runs of a shard end and begin at any moment of the work of the workers, which the other shard keeps running. An
// object that a worker takes from the queue at the end of a run must not be reconciled twice in the next run.
func TestL5_EachRunOfAShardReconcilesEachObjectAtMostOnce(t *testing.T) {
	const objects = 50
	f := newSharded(t, 2, dynamiccontroller.Config{Workers: 8, ShutdownTimeout: 10 * time.Second})
	gvr := f.types[0]
	for i := range objects {
		f.create(gvr, strconv.Itoa(i))
	}
	type callKey struct {
		run context.Context
		id  dynamiccontroller.ObjectIdentifiers
	}
	var mu sync.Mutex
	made := map[callKey]int{}
	handler := func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		key := callKey{dynamiccontroller.RunContext(ctx), id}
		mu.Lock()
		defer mu.Unlock()
		if made[key]++; made[key] > 1 {
			t.Errorf("%s was reconciled %d times in one run", id, made[key])
		}
		return nil
	}
	if err := f.controller.StartServingGVK(t.Context(), gvr, handler); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	for _, run := range []func(context.Context) error{
		f.controller.RunWatches, f.shard(1, f.controller.Run),
	} {
		others.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	for !f.controller.AllInformerHaveSynced() {
		time.Sleep(time.Millisecond)
	}
	for i := range 2000 {
		run, end := context.WithTimeout(ctx, time.Duration(i%50)*10*time.Microsecond)
		if err := f.shard(0, f.controller.Run)(run); err != nil {
			t.Error(err)
		}
		end()
	}
	cancel()
	others.Wait()
	if len(made) < 100 {
		t.Errorf("only %d calls", len(made))
	}
}

// A quiet shard waits only for the running call and for one call of each busy type, as in a single run.
func TestF1_QuietShardWaitsForAtMostOneRound(t *testing.T) {
	const busyTypes, work = 3, time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 2*busyTypes, dynamiccontroller.Config{Workers: 1})
		for i := range busyTypes {
			f.serve(f.types[2*i], func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
				time.Sleep(work)
				return nil
			})
		}
		quiet := f.types[1]
		var asked time.Time
		waited := time.Hour
		f.serve(quiet, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			waited = time.Since(asked)
			return nil
		})
		stopBusy := f.runShard(0)
		for i := range busyTypes {
			for n := range 2000 {
				f.controller.Enqueue(f.id(f.types[2*i], fmt.Sprint(n)))
			}
		}
		check := func(what string) {
			t.Helper()
			asked, waited = time.Now(), time.Hour
			f.controller.Enqueue(f.id(quiet, "w"))
			time.Sleep(20 * work)
			synctest.Wait()
			if waited > (busyTypes+1)*work {
				t.Errorf("%s, the quiet shard waited for %s, want at most one round of %s", what, waited, busyTypes*work)
			}
		}
		for range 5 {
			stopQuiet := f.runShard(1)
			check("in a run of its own")
			stopQuiet()
			time.Sleep(work / 2)
		}
		if live := f.status(f.types[0]).Live; live == 0 {
			t.Error("the busy shard has nothing to do any more")
		}
		stopBusy()
	})
}

// hung is a handler that hangs until release is closed, even if its context is cancelled.
type hung struct {
	running atomic.Int64
	release chan struct{}
}

func newHung() *hung { return &hung{release: make(chan struct{})} }

func (h *hung) handle(context.Context, dynamiccontroller.ObjectIdentifiers) error {
	h.running.Add(1)
	defer h.running.Add(-1)
	<-h.release
	return nil
}

// enqueue adds n objects of a type, and waits until as many of them as possible are running.
func (f *fixture) enqueue(gvr schema.GroupVersionResource, n int) {
	for i := range n {
		f.controller.Enqueue(f.id(gvr, fmt.Sprint(i)))
	}
	synctest.Wait()
}

// The promise's table holds whether the types belong to one run or to several.
func TestF2_HungTypesOfAShardLeaveWorkersToTheOtherShard(t *testing.T) {
	const workers = 10
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 7, dynamiccontroller.Config{Workers: workers, ShutdownTimeout: time.Second})
		h := newHung()
		stops := []func() error{f.startShard(0), f.startShard(1)}
		for i, want := range []int64{5, 8, 9} { // the table of package fairqueue: 5, 2-3 and 1-2 of 10 workers are idle
			gvr := f.types[2*i]
			f.serve(gvr, h.handle, dynamiccontroller.WithReconcileTimeout(-1))
			f.enqueue(gvr, 3*workers)
			if n := h.running.Load(); n < want-1 || n > want {
				t.Errorf("with %d hung types, %d of %d workers are occupied, want about %d", i+1, n, workers, want)
			}
		}
		c := newCalls(succeed)
		f.serve(f.types[1], c.handle)
		f.put(f.types[1], "a")
		c.want(t, "the other shard", named("a"))
		close(h.release)
		synctest.Wait()
		for _, stop := range stops {
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
	})
}

// When a run ends while its handlers hang, their workers are replaced. The hung workers exit when their calls return.
func TestF2_EndedRunWithHungHandlersLeavesAllWorkersToTheOtherRuns(t *testing.T) {
	for name, rerun := range map[string]bool{"the shard does not run again": false, "the shard runs again": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testReplacedWorkers(t, rerun) })
		})
	}
}

func testReplacedWorkers(t *testing.T, rerun bool) {
	const workers = 6
	f := newSharded(t, 2, dynamiccontroller.Config{Workers: workers, ShutdownTimeout: time.Second})
	first, second := newHung(), newHung()
	noTimeout := dynamiccontroller.WithReconcileTimeout(-1)
	f.serve(f.types[0], first.handle, noTimeout)
	f.serve(f.types[1], second.handle, noTimeout)
	stopOther := f.startShard(1)
	before := countGoroutines()
	for round := range 3 {
		stop := f.startShard(0)
		f.enqueue(f.types[0], 2*workers)
		if n := first.running.Load(); n != int64(3*(round+1)) {
			t.Errorf("%d hung calls in run %d, want half of the workers in each run", n, round)
		}
		if err := stop(); err == nil {
			t.Error("Run did not report the hung handlers")
		}
		synctest.Wait()
		if n, want := countGoroutines()-before, int(first.running.Load()); n > 2*want {
			t.Errorf("%d goroutines more than before with %d hung handlers", n, want)
		}
		// The items that hang are not handed out again, so that each run needs others.
		for i := range 2 * workers {
			f.controller.Enqueue(f.id(f.types[0], fmt.Sprint(i)))
		}
	}
	f.enqueue(f.types[1], 3*workers)
	if n := second.running.Load(); n != workers/2 {
		t.Errorf("the other run uses %d workers, want half of all %d workers", n, workers)
	}
	close(second.release)
	stopAgain := func() error { return nil }
	if rerun {
		stopAgain = f.startShard(0)
	}
	close(first.release)
	synctest.Wait()
	if err := stopAgain(); err != nil {
		t.Error(err)
	}
	synctest.Wait()
	if n := countGoroutines(); n > before {
		t.Errorf("%d goroutines after the hung calls have returned, want %d as before", n, before)
	}
	third := newHung()
	f.serve(f.types[1], third.handle, noTimeout)
	f.enqueue(f.types[1], 3*workers)
	// The type's earlier calls have returned, so that it gets all workers but one.
	if n := third.running.Load(); n != workers-1 {
		t.Errorf("afterwards, the other run uses %d workers, want all but one of %d workers", n, workers)
	}
	close(third.release)
	if err := stopOther(); err != nil {
		t.Error(err)
	}
}

// Requeues and retries that are pending at the end of a shard's run are due at the beginning of its next run, also for
// objects that are not in the cache.
func TestShards_KeepsPendingRequeuesAndRetriesForTheNextRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 2, dynamiccontroller.Config{Workers: 4, MinRetryDelay: time.Hour, MaxRetryDelay: time.Hour})
		gvr := f.types[0]
		c := newCalls(func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			switch id.Name() {
			case "requeued":
				return dynamiccontroller.RequeueAfter(time.Hour)
			case "requeued-at-once":
				return dynamiccontroller.RequeueAfter(0)
			case "retried":
				return errOnPurpose
			}
			return nil
		})
		f.serve(gvr, c.handle)
		stopOther, stopWatches := f.runShard(1), f.runWatches()
		stop := f.runShard(0)
		absent := []string{"requeued", "requeued-at-once", "retried"}
		for _, name := range append(absent, "done") {
			f.controller.Enqueue(f.id(gvr, name))
		}
		c.want(t, "the first run", named(append(absent, "done")...))
		for range 2 {
			stop()
			stop = f.runShard(0)
			c.want(t, "the next run", named(absent...))
		}
		time.Sleep(90 * time.Minute)
		c.want(t, "after the delay", named(absent...))
		stop()
		time.Sleep(5 * time.Hour)
		c.want(t, "between the runs", named())
		stopOther()
		stopWatches()
	})
}

// Types are started and stopped while the runs of their shards begin and end.
func TestS1_TypesStartAndStopWhileShardRunsEnd(t *testing.T) {
	f := newSharded(t, 4, dynamiccontroller.Config{Workers: 4, ShutdownTimeout: 20 * time.Second})
	for _, gvr := range f.types {
		f.create(gvr, "a")
	}
	ctx, cancel := context.WithCancel(t.Context())
	var runs, users sync.WaitGroup
	for shard := range 2 {
		runs.Go(func() { f.runRepeatedly(ctx, shard) })
	}
	for _, gvr := range f.types {
		users.Go(func() {
			for range 150 {
				f.startAndStop(ctx, gvr, dynamiccontroller.Owns(f.types[0]))
			}
		})
	}
	users.Wait()
	stopAll(t, f)
	cancel()
	runs.Wait()
}

// runRepeatedly begins and ends runs of a shard until ctx is cancelled.
func (f *fixture) runRepeatedly(ctx context.Context, shard int) {
	for i := 0; ctx.Err() == nil; i++ {
		run, end := context.WithTimeout(ctx, time.Duration(i%5)*time.Millisecond)
		if err := f.shard(shard, f.controller.Run)(run); err != nil {
			f.t.Error(err)
		}
		end()
	}
}

// startAndStop starts and stops a type, and checks that nothing is left.
func (f *fixture) startAndStop(
	ctx context.Context, gvr schema.GroupVersionResource, opts ...dynamiccontroller.ServeOption,
) {
	var stopped atomic.Bool
	handler := func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
		if stopped.Load() {
			f.t.Errorf("the handler of %s was called after it was stopped", gvr.Resource)
		}
		return nil
	}
	if err := f.controller.StartServingGVK(ctx, gvr, handler, opts...); err != nil {
		f.t.Error(err)
	}
	left := f.controller.Leftovers(gvr)
	if err := f.controller.StopServiceGVK(ctx, gvr); err != nil {
		f.t.Error(err)
	}
	stopped.Store(true)
	if what := left(); what != "" {
		f.t.Errorf("the controller still holds state of %s: %s", gvr.Resource, what)
	}
}

// Runs of both shards begin and end many times, in changing order.
func TestShards_ManyRunsLeaveNoGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 2, dynamiccontroller.Config{Workers: 4})
		c := newCalls(succeed)
		for _, gvr := range f.types {
			f.put(gvr, "a")
			f.serve(gvr, c.handle)
		}
		before := countGoroutines()
		for i := range 100 {
			stop := []func(){f.runShard(i % 2), f.runShard(1 - i%2)}
			c.want(t, "both runs", map[string]int{"a": 2})
			stop[i/2%2]()
			stop[1-i/2%2]()
		}
		synctest.Wait()
		if n := countGoroutines(); n > before {
			t.Errorf("%d goroutines after the last run, want at most %d as before", n, before)
		}
		if state := f.status(f.types[0]).State; state != dynamiccontroller.TypeStopped {
			t.Errorf("the state is %s after the last run, want Stopped", state)
		}
	})
}
