package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// blocker blocks a function from a call to block until a call to release.
type blocker struct {
	blocks   atomic.Bool
	released chan struct{}
}

func newBlocker() *blocker { return &blocker{released: make(chan struct{})} }

func (b *blocker) block() { b.blocks.Store(true) }

func (b *blocker) release() {
	b.blocks.Store(false)
	close(b.released)
	synctest.Wait()
}

func (b *blocker) wait() {
	if b.blocks.Load() {
		<-b.released
	}
}

// burst makes so many changes to an object that states are lost if the function of a watch does not return. Every
// second state has an owner.
func (f *fixture) burst(gvr schema.GroupVersionResource) {
	f.t.Helper()
	for range 550 {
		f.put(gvr, "c", f.id(gvr, "owner"))
		f.put(gvr, "c")
	}
}

// While a MapFunc hangs, so many changes wait that changes to the same object are combined, and states are dropped. If
// a dropped state can matter to the functions, all objects are reconciled afterwards, because each can be affected.
func TestD1_AllObjectsAreReconciledAfterStatesWereLost(t *testing.T) {
	accept := func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) bool { return true }
	nothing := func(*fixture, schema.GroupVersionResource) {}
	for name, test := range map[string]struct {
		opts    []dynamiccontroller.WatchesOption
		between func(f *fixture, child schema.GroupVersionResource)
		isLost  bool
	}{
		"the metadata stays the same": {between: nothing},
		"the metadata changes": {isLost: true, between: func(f *fixture, child schema.GroupVersionResource) {
			f.put(child, "c", f.id(child, "owner"))
		}},
		"an object is created and deleted": {isLost: true, between: func(f *fixture, child schema.GroupVersionResource) {
			f.put(child, "d")
			f.delete(child, "d")
		}},
		"whole objects are cached": {between: nothing, isLost: true, opts: []dynamiccontroller.WatchesOption{
			dynamiccontroller.WithCache(dynamiccontroller.CacheFull)}},
		"there is a predicate": {between: nothing, isLost: true, opts: []dynamiccontroller.WatchesOption{
			dynamiccontroller.WithPredicate(accept)}},
		"there is a transform": {between: nothing, isLost: true, opts: []dynamiccontroller.WatchesOption{
			dynamiccontroller.WithTransform(func(o any) (any, error) { return o, nil })}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
				parent, child := f.types[0], f.types[1]
				f.put(parent, "a")
				f.put(parent, "b")
				var cause dynamiccontroller.Cause // of the last call
				c := newCalls(func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
					cause = dynamiccontroller.CauseOf(ctx)
					return nil
				})
				mapping := newBlocker()
				f.serve(parent, c.handle, dynamiccontroller.Watches(child,
					func(context.Context, dynamiccontroller.Object) []string { mapping.wait(); return nil }, test.opts...))
				stop := f.run()
				c.want(t, "the initial sync", named("a", "b"))
				mapping.block()
				for range 1100 {
					f.put(child, "c")
				}
				test.between(f, child)
				f.put(child, "c")
				c.want(t, "while the function hangs", named())
				mapping.release()
				if !test.isLost {
					c.want(t, "when the function returns", named())
					stop()
					return
				}
				c.want(t, "when the function returns", named("a", "b"))
				if got := cause.String(); got != "resync" {
					t.Errorf("the cause is %q", got)
				}
				stop()
			})
		})
	}
}

// A predicate of the served type decides by both states of a change. After states were lost, all objects are
// reconciled.
func TestD1_AllObjectsAreReconciledAfterStatesOfTheOwnTypeWereLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := f.types[0]
		f.put(gvr, "a")
		f.put(gvr, "c")
		filtering := newBlocker()
		c := newCalls(succeed)
		f.serve(gvr, c.handle, dynamiccontroller.WithPredicate(
			func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) bool {
				filtering.wait()
				return false
			}))
		stop := f.run()
		c.want(t, "the initial sync", named("a", "c"))
		filtering.block()
		for range 1100 {
			f.put(gvr, "c")
		}
		filtering.release()
		c.want(t, "when the predicate returns", named("a", "c"))
		stop()
	})
}

// A burst of changes to objects on which nothing depends reconciles nothing, even if the function is so slow that
// changes are combined.
func TestStartWatch_ABurstThatAffectsNothingReconcilesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const objects, changes = 1200, 1500
		f := newFixture(t, 3, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		child := f.types[2]
		for i := range objects {
			f.put(child, fmt.Sprint(i))
		}
		c := newCalls(succeed)
		for i, gvr := range f.types[:2] {
			f.put(gvr, fmt.Sprint("first", i))
			f.put(gvr, fmt.Sprint("second", i))
			f.serve(gvr, c.handle)
		}
		mapping := newBlocker()
		startWatch(f, child, func(context.Context, dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers {
			mapping.wait()
			return nil
		})
		stop := f.run()
		c.want(t, "the initial sync", named("first0", "second0", "first1", "second1"))
		mapping.block()
		for i := range changes {
			f.put(child, fmt.Sprint(i%objects))
		}
		mapping.release()
		c.want(t, "the burst", named())
		stop()
	})
}

// After states were lost, a standalone watch reconciles the objects that the function of AfterLoss returns. If there is
// none, or if it does not return normally, all objects of all types are reconciled.
func TestAfterLoss_DeterminesWhatIsReconciled(t *testing.T) {
	all := [2]map[string]int{named("a1", "a2"), named("b")}
	for name, test := range map[string]struct {
		opts func(f *fixture) []dynamiccontroller.WatchesOption
		want [2]map[string]int
	}{
		"no option": {func(*fixture) []dynamiccontroller.WatchesOption { return nil }, all},
		"no function": {func(*fixture) []dynamiccontroller.WatchesOption {
			return []dynamiccontroller.WatchesOption{dynamiccontroller.AfterLoss(nil)}
		}, all},
		"some objects": {func(f *fixture) []dynamiccontroller.WatchesOption {
			return []dynamiccontroller.WatchesOption{dynamiccontroller.AfterLoss(
				func(context.Context) []dynamiccontroller.ObjectIdentifiers {
					return []dynamiccontroller.ObjectIdentifiers{
						f.id(f.types[0], "a1"), f.id(f.types[1], "absent"), f.id(f.types[2], "not served"),
						{GVR: f.types[0], NamespacedKey: "malformed/a/b"},
					}
				})}
		}, [2]map[string]int{named("a1"), named("absent")}},
		"no objects": {func(*fixture) []dynamiccontroller.WatchesOption {
			return []dynamiccontroller.WatchesOption{dynamiccontroller.AfterLoss(
				func(context.Context) []dynamiccontroller.ObjectIdentifiers { return nil })}
		}, [2]map[string]int{named(), named()}},
		"the last option": {func(f *fixture) []dynamiccontroller.WatchesOption {
			none := func(context.Context) []dynamiccontroller.ObjectIdentifiers { return nil }
			one := func(context.Context) []dynamiccontroller.ObjectIdentifiers {
				return []dynamiccontroller.ObjectIdentifiers{f.id(f.types[0], "a1")}
			}
			return []dynamiccontroller.WatchesOption{dynamiccontroller.AfterLoss(none), dynamiccontroller.AfterLoss(one)}
		}, [2]map[string]int{named("a1"), named()}},
		"a panic": {func(*fixture) []dynamiccontroller.WatchesOption {
			return []dynamiccontroller.WatchesOption{dynamiccontroller.AfterLoss(
				func(context.Context) []dynamiccontroller.ObjectIdentifiers { panic("on purpose") })}
		}, all},
		"runtime.Goexit": {func(*fixture) []dynamiccontroller.WatchesOption {
			return []dynamiccontroller.WatchesOption{dynamiccontroller.AfterLoss(
				func(context.Context) []dynamiccontroller.ObjectIdentifiers { goruntime.Goexit(); return nil })}
		}, all},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testAfterLoss(t, test.opts, test.want) })
		})
	}
}

func testAfterLoss(
	t *testing.T, opts func(f *fixture) []dynamiccontroller.WatchesOption, want [2]map[string]int,
) {
	f := newFixture(t, 4, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
	first, second, child := f.types[0], f.types[1], f.types[3]
	f.put(first, "a1")
	f.put(first, "a2")
	f.put(second, "b")
	var cause atomic.Value
	ofFirst, ofSecond := newCalls(func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
		cause.Store(dynamiccontroller.CauseOf(ctx).String())
		return nil
	}), newCalls(succeed)
	f.serve(first, ofFirst.handle)
	f.serve(second, ofSecond.handle)
	mapping := newBlocker()
	startWatch(f, child, func(context.Context, dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers {
		mapping.wait()
		return nil
	}, opts(f)...)
	stop := f.run()
	ofFirst.take()
	ofSecond.take()
	mapping.block()
	f.burst(child)
	mapping.release()
	ofFirst.want(t, "the first type", want[0])
	ofSecond.want(t, "the second type", want[1])
	if got := cause.Load(); len(want[0]) > 0 && got != "resync" {
		t.Errorf("the cause is %q", got)
	}
	stop()
}

// A run of a shard that begins while the function of AfterLoss is running receives the objects that the function
// returns or, if it panics, all objects.
func TestAfterLoss_ServesARunThatBeginsMeanwhile(t *testing.T) {
	for name, test := range map[string]struct {
		panics bool
		want   [2]map[string]int
	}{
		"it returns": {false, [2]map[string]int{named("a", "absent"), named("b", "absent")}},
		"it panics":  {true, [2]map[string]int{named("a", "a2"), named("b", "b2")}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newSharded(t, 3, dynamiccontroller.Config{Workers: 2})
				first, second, child := f.types[0], f.types[1], f.types[2]
				f.put(first, "a")
				f.put(first, "a2")
				f.put(second, "b")
				f.put(second, "b2")
				ofFirst, ofSecond := newCalls(succeed), newCalls(succeed)
				f.serve(first, ofFirst.handle)
				f.serve(second, ofSecond.handle)
				mapping, losing := newBlocker(), newBlocker()
				startWatch(f, child, func(context.Context, dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers {
					mapping.wait()
					return nil
				}, dynamiccontroller.AfterLoss(func(context.Context) []dynamiccontroller.ObjectIdentifiers {
					losing.wait()
					if test.panics {
						panic("on purpose")
					}
					return []dynamiccontroller.ObjectIdentifiers{
						f.id(first, "a"), f.id(first, "absent"), f.id(second, "b"), f.id(second, "absent"),
					}
				}))
				stopFirst := f.runShard(0)
				ofFirst.want(t, "the first run", named("a", "a2"))
				mapping.block()
				losing.block()
				f.burst(child)
				mapping.release()
				ofFirst.want(t, "while AfterLoss is running", named())
				stopSecond := f.runShard(1)
				ofSecond.want(t, "the second run", named("b", "b2"))
				losing.release()
				ofFirst.want(t, "the first type", test.want[0])
				ofSecond.want(t, "the second type", test.want[1])
				stopFirst()
				stopSecond()
			})
		})
	}
}

// If a run ends while the function of AfterLoss is running, the next run reconciles the objects that are not in the
// cache as well.
func TestAfterLoss_ServesTheNextRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		parent, child := f.types[0], f.types[1]
		f.put(parent, "a")
		c := newCalls(succeed)
		f.serve(parent, c.handle)
		mapping := newBlocker()
		startWatch(f, child, func(context.Context, dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers {
			mapping.wait()
			return nil
		}, dynamiccontroller.AfterLoss(func(ctx context.Context) []dynamiccontroller.ObjectIdentifiers {
			<-ctx.Done() // the run ends
			return []dynamiccontroller.ObjectIdentifiers{f.id(parent, "absent"), f.id(parent, "a")}
		}))
		stopWatches := f.runWatches()
		stop := f.run()
		c.want(t, "the first run", named("a"))
		mapping.block()
		f.burst(child)
		mapping.release()
		stop()
		c.want(t, "the end of the run", named())
		stop = f.run()
		c.want(t, "the next run", named("a", "absent"))
		stop()
		stopWatches()
	})
}

func TestAfterLoss_IsRejectedByWatches(t *testing.T) {
	f := newFixture(t, 2, dynamiccontroller.Config{})
	none := dynamiccontroller.AfterLoss(func(context.Context) []dynamiccontroller.ObjectIdentifiers { return nil })
	mapFunc := func(context.Context, dynamiccontroller.Object) []string { return nil }
	watch := dynamiccontroller.Watches(f.types[1], mapFunc, none)
	err := f.controller.StartServingGVK(t.Context(), f.types[0], succeed, watch)
	isInvalid := errors.Is(err, dynamiccontroller.ErrInvalidOptions)
	if !isInvalid || !strings.Contains(err.Error(), "AfterLoss is an option of StartWatch") {
		t.Errorf("StartServingGVK returned %v", err)
	}
}

// slowParents is the number of owners. Ten writes in a row use the same owner, so that many owners are affected only by
// states that are lost.
const slowParents = 450

// slowFunctions is the state of a test in which functions are too slow for the changes.
type slowFunctions struct {
	*fixture
	mu         sync.Mutex // guards the fields below
	random     *rand.Rand
	owners     map[string]string // by child
	writes     int               // that have begun
	affected   map[string]int    // the number of the last write that affects an object
	reconciled map[string]int    // the number of writes that had begun when the last call for an object began
	losses     int
}

// Objects that are affected by a change are reconciled after it, even if the function is slow, states are lost, the
// function of AfterLoss panics now and then, and runs of another shard begin and end.
func TestD1_NoChangeIsMissedIfFunctionsAreSlow(t *testing.T) {
	losses := 0
	for seed := range uint64(3) {
		synctest.Test(t, func(t *testing.T) {
			s := &slowFunctions{
				fixture: newSharded(t, 3, dynamiccontroller.Config{Workers: 4}), random: rand.New(rand.NewPCG(seed, 0)),
				owners: map[string]string{}, affected: map[string]int{}, reconciled: map[string]int{},
			}
			s.test()
			losses += s.losses
		})
	}
	if losses == 0 {
		t.Error("no state was lost")
	}
}

func (s *slowFunctions) intN(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.random.IntN(n)
}

func (s *slowFunctions) test() {
	parent, other, child := s.types[0], s.types[1], s.types[2]
	for i := range slowParents {
		s.put(parent, fmt.Sprint(i))
	}
	s.serve(other, succeed)
	s.serve(parent, func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reconciled[id.Name()] = s.writes
		return nil
	})
	toParents := toOwners(parent)
	startWatch(s.fixture, child,
		func(ctx context.Context, object dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers {
			time.Sleep(time.Duration(s.intN(1000)) * time.Microsecond)
			return toParents(ctx, object)
		}, dynamiccontroller.AfterLoss(s.afterLoss))
	stop := s.startShard(0)
	ctx, cancel := context.WithCancel(s.t.Context())
	var restarts sync.WaitGroup
	restarts.Go(func() {
		for ctx.Err() == nil {
			running, end := context.WithTimeout(ctx, time.Duration(s.intN(300))*time.Millisecond)
			if err := s.shard(1, s.controller.Run)(running); err != nil {
				s.t.Error(err)
			}
			end()
		}
	})
	for range 3 {
		for range 1500 {
			s.write(child)
		}
		time.Sleep(time.Second)
	}
	time.Sleep(time.Minute)
	cancel()
	restarts.Wait()
	synctest.Wait()
	s.mu.Lock()
	for owner, write := range s.affected {
		if s.reconciled[owner] < write {
			s.t.Errorf("%s was last reconciled after write %d, and is affected by write %d", owner, s.reconciled[owner], write)
		}
	}
	s.mu.Unlock()
	if err := stop(); err != nil {
		s.t.Error(err)
	}
}

// write changes the owner of a child, which can be none, or deletes the child.
func (s *slowFunctions) write(child schema.GroupVersionResource) {
	name, owner, deletes := fmt.Sprint(s.intN(10)), "", s.intN(6) == 0
	s.mu.Lock()
	if !deletes {
		owner = fmt.Sprint(s.writes / 10 % slowParents)
	}
	former, exists := s.owners[name]
	s.writes++
	for _, affected := range []string{former, owner} {
		if affected != "" {
			s.affected[affected] = s.writes
		}
	}
	if s.owners[name] = owner; owner == "" {
		delete(s.owners, name)
	}
	s.mu.Unlock()
	switch {
	case owner != "":
		s.put(child, name, s.id(s.types[0], owner))
	case exists:
		s.delete(child, name)
	}
}

// afterLoss returns all objects that can be affected.
func (s *slowFunctions) afterLoss(context.Context) (ids []dynamiccontroller.ObjectIdentifiers) {
	time.Sleep(time.Millisecond)
	s.mu.Lock()
	s.losses++
	s.mu.Unlock()
	if s.intN(3) == 0 {
		panic("on purpose")
	}
	for i := range slowParents {
		ids = append(ids, s.id(s.types[0], fmt.Sprint(i)))
	}
	return ids
}
