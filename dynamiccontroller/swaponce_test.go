package dynamiccontroller_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A parked object is in the cache and has a record. A worker may reconcile it while the swap is still adding objects.
func TestS2_SwapReconcilesParkedObjectsOnce(t *testing.T) {
	const objects, swaps = 1000, 10
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 8, ResyncPeriod: -1})
		gvr := f.types[0]
		for i := range objects {
			f.put(gvr, fmt.Sprintf("w%d", i))
		}
		stop := f.run()
		c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			return dynamiccontroller.Terminal(errOnPurpose)
		})
		for range 1 + swaps {
			f.serve(gvr, c.handle)
		}
		if len(c.at) != objects {
			t.Errorf("%d objects were reconciled, want %d", len(c.at), objects)
		}
		for name, at := range c.at {
			if n := len(at) - 1; n != swaps {
				t.Errorf("%s was reconciled %d times by %d swaps", name, n, swaps)
			}
		}
		stop()
	})
}

// While the difference between the two watches is being delivered, no object is reconciled. Otherwise, a worker could
// reconcile an object before its difference is delivered, and the object would be reconciled again.
func TestS2_SwapReconcilesObjectsOfTheDifferenceOnce(t *testing.T) {
	slow := func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) bool {
		for range 1000 {
			runtime.Gosched() // lets the workers run; Sleep would block the bubble, because the watches are locked
		}
		return true
	}
	for name, owns := range map[string]bool{"with the same watches": false, "with a new watch": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
				gvr := f.types[0]
				for _, namespace := range []string{"a", "b", "c"} {
					f.createIn(namespace, gvr)
				}
				stop := f.run()
				old, next := newCalls(succeed), newCalls(succeed)
				f.serve(gvr, old.handle, dynamiccontroller.WithNamespaces("a", "b"))
				old.want(t, "before the swap", named("a", "b"))
				options := []dynamiccontroller.ServeOption{
					dynamiccontroller.WithNamespaces("b", "c"), dynamiccontroller.WithPredicate(slow),
				}
				if owns {
					options = append(options, dynamiccontroller.Owns(f.types[1]))
				}
				f.serve(gvr, next.handle, options...)
				time.Sleep(time.Minute)
				synctest.Wait()
				next.want(t, "new handler", named("a", "b", "c"))
				stop()
			})
		})
	}
}

// If the list of a watched type hangs, the initial sync continues for up to ten seconds after the list of the served
// type has been delivered.
func TestS2_SwapDuringAnInitialSyncReconcilesObjectsOnce(t *testing.T) {
	for name, during := range map[string]bool{"the list completes during the swap": true, "after the swap": false} {
		t.Run(name, func(t *testing.T) { testSwapDuringInitialSync(t, during) })
	}
}

func testSwapDuringInitialSync(t *testing.T, listedDuringSwap bool) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr, child := f.types[0], f.types[1]
		f.put(gvr, "a")
		if !listedDuringSwap {
			f.put(child, "c", f.id(gvr, "a"))
		}
		hung := f.gateListsOf(child)
		hung.close()
		owns := dynamiccontroller.Owns(child)
		stop := f.run()
		first, next := newCalls(succeed), newCalls(succeed)
		f.serve(gvr, first.handle, owns)
		time.Sleep(5 * time.Second)
		first.want(t, "during the initial sync", named())
		annotated := dynamiccontroller.WithTransform(annotating("a")) // changes the metadata of each object
		f.serve(gvr, next.handle, annotated, owns, dynamiccontroller.WithPredicate(
			func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) bool {
				if listedDuringSwap {
					hung.open()
				}
				for range 10_000 {
					runtime.Gosched()
				}
				return true
			}))
		time.Sleep(time.Second)
		hung.open()
		time.Sleep(time.Minute)
		synctest.Wait()
		first.want(t, "old handler", named())
		next.want(t, "new handler", named("a"))
		stop()
	})
}
