package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// addConstant adds an index with one value for all objects.
func addConstant(t *testing.T, to dynamiccontroller.Lister, name, value string) {
	t.Helper()
	f := func(dynamiccontroller.Object) []string { return []string{value} }
	if err := dynamiccontroller.AddIndex(context.Background(), to, name, f); err != nil {
		t.Fatal(err)
	}
}

func TestAddIndex_ToAllKindsOfWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 3, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr, child, other := f.types[0], f.types[1], f.types[2]
		for _, gvr := range f.types {
			f.put(gvr, "a")
		}
		stop := f.run()
		owns := dynamiccontroller.Owns(child, withConstant("first", "1"))
		f.serve(gvr, succeed, withConstant("first", "1"), owns)
		primary := must(f.controller.Lister(gvr))
		watch := startWatch(f, other, toOwners(), withConstant("first", "1"))
		lists := len(f.client.Actions())
		for name, lister := range map[string]dynamiccontroller.Lister{
			"served":     primary,
			"owned":      must(f.controller.SecondaryLister(gvr, owns.Key())),
			"standalone": watch.Lister(),
		} {
			if _, err := lister.ByIndex("second", "2"); !errors.Is(err, dynamiccontroller.ErrNoIndex) {
				t.Errorf("%s: before AddIndex, ByIndex returned %v", name, err)
			}
			addConstant(t, lister, "second", "2")
			addConstant(t, lister, "second", "replaced")
			addConstant(t, lister, "first", "replaced")
			expectByIndex(t, name, lister, "second", "2", "a")
			expectByIndex(t, name, lister, "first", "1", "a")
		}
		f.put(gvr, "b")
		expectByIndex(t, "a new object", primary, "second", "2", "a", "b")
		f.put(child, "b")
		if n := len(f.client.Actions()) - lists; n != 4 { // put sends two requests
			t.Errorf("%d requests were sent, want 4", n)
		}
		if err := watch.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
		f.serve(gvr, succeed)
		if _, err := primary.ByIndex("second", "2"); !errors.Is(err, dynamiccontroller.ErrNoIndex) {
			t.Errorf("after StartServingGVK, ByIndex returned %v", err)
		}
		stop()
	})
}

// An index that is added while other options are pending belongs to the current and to the new ones.
func TestAddIndex_WhileTheWatchIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr, child := f.types[0], f.types[1]
		f.put(gvr, "a")
		f.put(child, "a")
		stop := f.run()
		owns := dynamiccontroller.Owns(child)
		f.serve(gvr, succeed, owns)
		primary, owned := must(f.controller.Lister(gvr)), must(f.controller.SecondaryLister(gvr, owns.Key()))
		f.failLists(gvr, errOnPurpose)
		f.serve(gvr, succeed, withoutLabel, owns, withConstant("new", "1"))
		for _, lister := range []dynamiccontroller.Lister{primary, owned} {
			addConstant(t, lister, "added", "2")
			expectByIndex(t, "before the swap", lister, "added", "2", "a")
		}
		f.failLists(gvr, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		expectByIndex(t, "after the swap", primary, "new", "1", "a")
		expectByIndex(t, "after the swap", primary, "added", "2", "a")
		expectByIndex(t, "after the swap", owned, "added", "2", "a")
		stop()
	})
}

func TestAddIndex_IsSafeForConcurrentUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := f.types[0]
		f.put(gvr, "a")
		stop := f.run()
		f.serve(gvr, succeed, withConstant("first", "1"))
		lister := must(f.controller.Lister(gvr))
		var done sync.WaitGroup
		for i := range 10 {
			done.Go(func() {
				addConstant(t, lister, fmt.Sprint(i%5), "2")
				expectByIndex(t, "an added index", lister, fmt.Sprint(i%5), "2", "a")
			})
			done.Go(func() { expectByIndex(t, "the first index", lister, "first", "1", "a") })
		}
		done.Wait()
		stop()
	})
}

func TestAddIndex_ReportsErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr, child := f.types[0], f.types[1]
		owns := dynamiccontroller.Owns(child)
		f.serve(gvr, succeed, owns)
		primary, owned := must(f.controller.Lister(gvr)), must(f.controller.SecondaryLister(gvr, owns.Key()))
		watch := startWatch(f, child, toOwners())
		none := func(dynamiccontroller.Object) []string { return nil }
		add := func(to dynamiccontroller.Lister, name string, f func(dynamiccontroller.Object) []string) error {
			return dynamiccontroller.AddIndex(context.Background(), to, name, f)
		}
		for _, err := range []error{add(primary, "", none), add(primary, "x", nil)} {
			if !errors.Is(err, dynamiccontroller.ErrInvalidOptions) {
				t.Errorf("for invalid arguments, AddIndex returned %v", err)
			}
		}
		if err := add(struct{ dynamiccontroller.Lister }{primary}, "x", none); err == nil {
			t.Error("AddIndex accepted a lister from another package")
		}
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(errOnPurpose)
		if err := dynamiccontroller.AddIndex(ctx, primary, "x", none); !errors.Is(err, errOnPurpose) {
			t.Errorf("with a context that is cancelled, AddIndex returned %v", err)
		}
		f.serve(gvr, succeed, dynamiccontroller.WithCache(dynamiccontroller.CacheKeys))
		if err := add(primary, "x", none); err == nil || !strings.Contains(err.Error(), "CacheKeys") {
			t.Errorf("with CacheKeys, AddIndex returned %v", err)
		}
		if err := add(owned, "x", none); !errors.Is(err, dynamiccontroller.ErrNotServed) {
			t.Errorf("after the watch was removed, AddIndex returned %v", err)
		}
		if err := watch.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := add(watch.Lister(), "x", none); !errors.Is(err, dynamiccontroller.ErrNotServed) {
			t.Errorf("after Stop, AddIndex returned %v", err)
		}
		if err := f.controller.StopServiceGVK(context.Background(), gvr); err != nil {
			t.Fatal(err)
		}
		if err := add(primary, "x", none); !errors.Is(err, dynamiccontroller.ErrNotServed) {
			t.Errorf("after StopServiceGVK, AddIndex returned %v", err)
		}
	})
}
