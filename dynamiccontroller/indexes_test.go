package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// byIndex returns the sorted names of the objects that ByIndex returns.
func byIndex(t *testing.T, lister dynamiccontroller.Lister, name, value string) (names []string) {
	t.Helper()
	for _, object := range must(lister.ByIndex(name, value)) {
		names = append(names, object.GetName())
	}
	slices.Sort(names)
	return names
}

func expectByIndex(t *testing.T, step string, lister dynamiccontroller.Lister, name, value string, want ...string) {
	t.Helper()
	if got := byIndex(t, lister, name, value); !slices.Equal(got, want) {
		t.Errorf("%s: ByIndex(%q, %q) returned %q, want %q", step, name, value, got, want)
	}
}

// withConstant declares an index with one value for all objects.
func withConstant(name, value string) dynamiccontroller.CommonOption {
	return dynamiccontroller.WithIndex(name, func(dynamiccontroller.Object) []string { return []string{value} })
}

// withOwners declares an index by the UIDs of the owners.
func withOwners(name string) dynamiccontroller.CommonOption {
	return dynamiccontroller.WithIndex(name, func(o dynamiccontroller.Object) (uids []string) {
		for _, owner := range o.GetOwnerReferences() {
			uids = append(uids, string(owner.UID))
		}
		return uids
	})
}

// A served type, an owned type and a watched type have indexes, also those that AddWatches adds.
func TestByIndex_OfAllKindsOfWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 3, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr, child, owner := f.types[0], f.types[1], f.types[2]
		x, y := f.id(owner, "x"), f.id(owner, "y")
		f.put(gvr, "a", x, y)
		f.put(child, "c", x)
		stop := f.run()
		owns := dynamiccontroller.Owns(child, withOwners("owners"))
		mapFunc := func(context.Context, dynamiccontroller.Object) []string { return nil }
		watches := dynamiccontroller.Watches(child, mapFunc, withConstant("constant", "value"))
		f.serve(gvr, succeed, withOwners("owners"), withConstant("owners", "replaced"), withOwners("uids"), owns)
		if err := f.controller.AddWatches(context.Background(), gvr, watches); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		primary := must(f.controller.Lister(gvr))
		expectByIndex(t, "one of several indexes", primary, "uids", string(f.uid(owner, "y")), "a")
		expectByIndex(t, "the last index with the name", primary, "owners", "replaced", "a")
		owned := must(f.controller.SecondaryLister(gvr, owns.Key()))
		expectByIndex(t, "owned", owned, "owners", string(f.uid(owner, "x")), "c")
		watched := must(f.controller.SecondaryLister(gvr, watches.Key()))
		expectByIndex(t, "watched", watched, "constant", "value", "c")

		w := startWatch(f, child, toOwners(), withOwners("owners"))
		expectByIndex(t, "standalone", w.Lister(), "owners", string(f.uid(owner, "x")), "c")
		if err := w.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
		expectByIndex(t, "standalone, after Stop", w.Lister(), "owners", string(f.uid(owner, "x")), "c")
		stop()
	})
}

func TestByIndex_ReturnsTheErrorsOfAListerAndNamesTheIndexes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr, child := f.types[0], f.types[1]
		owns := dynamiccontroller.Owns(child)
		f.serve(gvr, succeed, withConstant("b", ""), withConstant("a", ""), owns)
		lister, owned := must(f.controller.Lister(gvr)), must(f.controller.SecondaryLister(gvr, owns.Key()))
		if _, err := lister.ByIndex("a", ""); !errors.Is(err, dynamiccontroller.ErrNotSynced) {
			t.Errorf("before the sync, ByIndex returned %v", err)
		}
		stop := f.run()
		for _, test := range []struct {
			from dynamiccontroller.Lister
			want string
		}{
			{lister, `read type0s.v1.example.com from the cache: no such index: "c"; ` +
				`declare it with WithIndex or AddIndex, or use one of ["a" "b"]`},
			{owned, `read type1s.v1.example.com from the cache: no such index: "c"; declare it with WithIndex or AddIndex`},
		} {
			_, err := test.from.ByIndex("c", "")
			if fmt.Sprint(err) != test.want || !errors.Is(err, dynamiccontroller.ErrNoIndex) {
				t.Errorf("for an unknown index, ByIndex returned %v, want %s, wrapping ErrNoIndex", err, test.want)
			}
		}
		f.serve(gvr, succeed, dynamiccontroller.WithCache(dynamiccontroller.CacheKeys))
		if _, err := lister.ByIndex("a", ""); !strings.Contains(fmt.Sprint(err), "CacheKeys") {
			t.Errorf("with CacheKeys, ByIndex returned %v", err)
		}
		if err := f.controller.StopServiceGVK(context.Background(), gvr); err != nil {
			t.Fatal(err)
		}
		for _, l := range []dynamiccontroller.Lister{lister, owned} {
			if _, err := l.ByIndex("a", ""); !errors.Is(err, dynamiccontroller.ErrNotServed) {
				t.Errorf("after StopServiceGVK, ByIndex returned %v, want ErrNotServed", err)
			}
		}
		stop()
	})
}

func TestWithIndex_RejectsInvalidOptions(t *testing.T) {
	f := newFixture(t, 1, dynamiccontroller.Config{})
	type options = []dynamiccontroller.ServeOption
	keys := dynamiccontroller.WithCache(dynamiccontroller.CacheKeys)
	for name, test := range map[string]struct {
		opts options
		want string
	}{
		"the name is empty":   {options{withConstant("", "")}, "the name is empty"},
		"the function is nil": {options{dynamiccontroller.WithIndex("i", nil)}, `"i"): the function is nil`},
		"only keys are kept":  {options{keys, withConstant("i", "")}, "WithIndex cannot be combined"},
		"a watch":             {options{dynamiccontroller.Owns(f.types[0], withConstant("", ""))}, "Owns("},
	} {
		t.Run(name, func(t *testing.T) {
			err := f.controller.StartServingGVK(context.Background(), f.types[0], succeed, test.opts...)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("StartServingGVK returned %v, want an error with %q", err, test.want)
			}
		})
	}
}

// Each registration has its own indexes in its own cache mode, even if they share a watch and use the same names.
func TestS6_IndexesUseTheirOwnCacheMode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 3, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := f.types[0]
		f.put(gvr, "w")
		stop := f.run()
		byForm := dynamiccontroller.WithIndex("form", func(o dynamiccontroller.Object) []string {
			if _, whole := o.Object().(*unstructured.Unstructured); whole {
				return []string{"full"}
			}
			return []string{"metadata"}
		})
		full := dynamiccontroller.Owns(gvr, byForm, dynamiccontroller.WithCache(dynamiccontroller.CacheFull))
		metadata := dynamiccontroller.Owns(gvr, byForm)
		f.serve(f.types[1], succeed, full)
		f.serve(f.types[2], succeed, metadata)
		if n := f.controller.WatchesOf(gvr); n != 1 {
			t.Fatalf("there are %d watches", n)
		}
		inFull := must(f.controller.SecondaryLister(f.types[1], full.Key()))
		inMetadata := must(f.controller.SecondaryLister(f.types[2], metadata.Key()))
		expectByIndex(t, "full", inFull, "form", "full", "w")
		expectByIndex(t, "metadata", inMetadata, "form", "metadata", "w")
		// The watch of whole objects is replaced by one of metadata.
		if err := f.controller.StopServiceGVK(context.Background(), f.types[1]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		f.put(gvr, "v")
		expectByIndex(t, "after the move", inMetadata, "form", "metadata", "v", "w")
		stop()
	})
}

// A swap replaces the indexes when it takes effect, whether or not the watch is replaced.
func TestS2_SwapReplacesTheIndexes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr, child := f.types[0], f.types[1]
		f.put(gvr, "a")
		f.put(child, "c")
		stop := f.run()
		owned := func(value string) dynamiccontroller.Watch {
			return dynamiccontroller.Owns(child, withConstant("index", value))
		}
		f.serve(gvr, succeed, withConstant("index", "1"), owned("1"))
		lister, children := must(f.controller.Lister(gvr)), must(f.controller.SecondaryLister(gvr, owned("").Key()))
		expectByIndex(t, "first options", lister, "index", "1", "a")
		expectByIndex(t, "first options", children, "index", "1", "c")

		f.serve(gvr, succeed, withConstant("index", "2"), owned("2"))
		expectByIndex(t, "the same watch", lister, "index", "2", "a")
		expectByIndex(t, "the same watch", children, "index", "2", "c")

		f.failLists(gvr, errors.New("the new selector is refused"))
		f.serve(gvr, succeed, withConstant("index", "3"), withoutLabel, owned("3"))
		expectByIndex(t, "pending swap", lister, "index", "2", "a")
		f.failLists(gvr, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		expectByIndex(t, "another watch", lister, "index", "3", "a")
		expectByIndex(t, "another watch", children, "index", "3", "c")

		f.serve(gvr, succeed)
		if _, err := lister.ByIndex("index", "3"); err == nil {
			t.Error("an index of the former options is still known")
		}
		if err := f.controller.AddWatches(context.Background(), gvr, owned("4")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		expectByIndex(t, "AddWatches", children, "index", "4", "c")
		stop()
	})
}

// A handler that creates a Watch on each call keeps the index of the first one. RemoveWatches removes the index.
func TestAddWatches_KeepsTheIndexesOfAnExistingWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr, child := f.types[0], f.types[1]
		f.put(child, "c")
		stop := f.run()
		f.serve(gvr, succeed)
		calls := 0
		add := func(opts ...dynamiccontroller.OwnsOption) dynamiccontroller.Lister {
			t.Helper()
			owns := dynamiccontroller.Owns(child, opts...)
			if err := f.controller.AddWatches(context.Background(), gvr, owns); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return must(f.controller.SecondaryLister(gvr, owns.Key()))
		}
		for n := range 3 {
			lister := add(dynamiccontroller.WithIndex("index", func(dynamiccontroller.Object) []string {
				calls++
				return []string{fmt.Sprint(n)}
			}))
			expectByIndex(t, "an index with the same name", lister, "index", "0", "c")
		}
		if calls != 1 {
			t.Errorf("the function was called %d times", calls)
		}
		lister := add(withConstant("new", "value"))
		expectByIndex(t, "an index with a new name", lister, "new", "value", "c")
		expectByIndex(t, "an index with a new name", lister, "index", "0", "c")
		if err := f.controller.RemoveWatches(context.Background(), gvr, dynamiccontroller.Owns(child).Key()); err != nil {
			t.Fatal(err)
		}
		expectByIndex(t, "after RemoveWatches", add(withConstant("index", "replaced")), "index", "replaced", "c")
		stop()
	})
}

// A handler, predicate and MapFunc find the changed object under its new value, also after a relist and in a later run.
func TestByIndex_ReflectsTheEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr, owner := f.types[0], f.types[1]
		x, y := f.id(owner, "x"), f.id(owner, "y")
		var lister dynamiccontroller.Lister
		var seen []string
		look := func(caller string) {
			for _, owner := range []string{"x", "y"} {
				found := byIndex(t, lister, "owners", string(f.uid(f.types[1], owner)))
				seen = append(seen, fmt.Sprint(caller, " ", owner, found))
			}
		}
		predicate := func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) bool {
			look("predicate")
			return true
		}
		handler := func(context.Context, dynamiccontroller.ObjectIdentifiers) error { look("handler"); return nil }
		f.serve(gvr, handler, withOwners("owners"), dynamiccontroller.WithPredicate(predicate))
		lister = must(f.controller.Lister(gvr))
		expect := func(step string, want ...string) {
			t.Helper()
			if synctest.Wait(); !slices.Equal(seen, want) {
				t.Errorf("%s: got %q, want %q", step, seen, want)
			}
			seen = nil
		}
		stop := f.run()
		f.put(gvr, "a", x)
		expect("a new object", "predicate x[a]", "predicate y[]", "handler x[a]", "handler y[]")
		f.put(gvr, "a", y)
		expect("a change", "predicate x[]", "predicate y[a]", "handler x[]", "handler y[a]")
		f.delete(gvr, "a")
		expect("a deletion", "predicate x[]", "predicate y[]", "handler x[]", "handler y[]")
		stop()
		f.put(gvr, "b", x)
		if _, err := lister.ByIndex("owners", ""); !errors.Is(err, dynamiccontroller.ErrNotSynced) {
			t.Errorf("between two runs, ByIndex returned %v", err)
		}
		stop = f.run()
		expect("another run", "handler x[b]", "handler y[]")
		stop()
	})
}

func TestByIndex_OfANamespacedWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := f.types[0]
		f.put(gvr, "a")
		stop := f.run()
		f.serve(gvr, succeed, withConstant("index", "value"), dynamiccontroller.WithNamespaces("default", "other"))
		lister := must(f.controller.Lister(gvr))
		expectByIndex(t, "list", lister, "index", "value", "a")
		f.put(gvr, "b")
		expectByIndex(t, "change", lister, "index", "value", "a", "b")
		stop()
	})
}

// The function of an index can read caches, because no lock of a cache is held.
func TestByIndex_FunctionReadsListers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr := f.types[0]
		f.put(gvr, "a")
		stop := f.run()
		var lister dynamiccontroller.Lister
		f.serve(gvr, succeed, withConstant("constant", "value"),
			dynamiccontroller.WithIndex("reads", func(o dynamiccontroller.Object) []string {
				expectByIndex(t, "in the function", lister, "constant", "value", "a")
				object := must(lister.ByNamespace(o.GetNamespace()).Get(o.GetName())).(*unstructured.Unstructured)
				return []string{fmt.Sprint(object.GetName(), len(must(lister.Objects("", nil))))}
			}))
		lister = must(f.controller.Lister(gvr))
		expectByIndex(t, "a function that uses listers", lister, "reads", "a1", "a")
		stop()
	})
}

// If the function of an index hangs, so does the handler that has called ByIndex. The cache, other indexes and other
// types are not affected. Stopping the type and the end of the run treat the handler like any other one that hangs.
func TestS3_HungIndexFunctionBlocksOnlyItsCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 3, ResyncPeriod: -1})
		gvr, other := f.types[0], f.types[1]
		f.put(gvr, "a")
		var lister dynamiccontroller.Lister
		hang := make(chan struct{})
		handler := func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			_, err := lister.ByIndex("hangs", "")
			return err
		}
		f.serve(gvr, handler, withConstant("constant", "value"),
			dynamiccontroller.WithIndex("hangs", func(dynamiccontroller.Object) []string { <-hang; return nil }))
		lister = must(f.controller.Lister(gvr))
		stop := f.start()
		time.Sleep(time.Minute)
		status := f.status(gvr)
		if r := status.RunningFunction; r == nil || r.Function != "function of index hangs" {
			t.Errorf("the running function is %+v", r)
		}
		if status.Running != 1 {
			t.Errorf("%d handlers are running", status.Running)
		}
		c := newCalls(succeed)
		f.serve(other, c.handle)
		f.put(other, "o")
		c.want(t, "another type", named("o"))
		f.put(gvr, "b")
		expectByIndex(t, "another index", lister, "constant", "value", "a", "b")

		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := f.controller.StopServiceGVK(ctx, gvr); !errors.Is(err, dynamiccontroller.ErrStillRunning) {
			t.Errorf("while the handler is running, StopServiceGVK returned %v", err)
		}
		if err := stop(); !errors.Is(err, dynamiccontroller.ErrStillRunning) {
			t.Errorf("while the handler is running, Run returned %v", err)
		}
		close(hang)
		if err := f.controller.StopServiceGVK(context.Background(), gvr); err != nil {
			t.Error(err)
		}
	})
}

// The first panic of the function is logged as an error, and the object has no values.
func TestD5_PanicOfAnIndexFunctionIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logBuffer{}
		f := newFixtureWithLogger(t, log.logger(0), 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := f.types[0]
		f.put(gvr, "bad")
		f.put(gvr, "good")
		stop := f.run()
		f.serve(gvr, succeed, dynamiccontroller.WithIndex("index", func(o dynamiccontroller.Object) []string {
			if o.GetName() == "bad" {
				panic("on purpose")
			}
			return []string{"value"}
		}))
		lister := must(f.controller.Lister(gvr))
		for range 2 {
			expectByIndex(t, "a panic", lister, "index", "value", "good")
			f.put(gvr, "bad")
		}
		if n := log.count("Index function panicked"); n != 1 {
			t.Errorf("the panic was logged %d times", n)
		}
		stop()
	})
}
