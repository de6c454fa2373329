package dynamiccontroller_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

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
