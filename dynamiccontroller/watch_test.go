package dynamiccontroller_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// take returns the number of calls for each object since the last call to take.
func (c *calls) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := map[string]int{}
	for name, at := range c.at {
		n[name] = len(at)
	}
	clear(c.at)
	return n
}

func (c *calls) want(t *testing.T, what string, want map[string]int) {
	t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(want, c.take()); diff != "" {
		t.Errorf("%s: %s", what, diff)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func succeed(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil }

func named(names ...string) map[string]int {
	n := map[string]int{}
	for _, name := range names {
		n[name]++
	}
	return n
}

// An event for a child causes a reconcile of the child's controller and of no other object, whatever cache mode the
// owner's type uses.
func TestD1_ChildEventsReconcileTheOwner(t *testing.T) {
	for name, mode := range map[string]dynamiccontroller.CacheMode{
		"full": dynamiccontroller.CacheFull, "metadata": dynamiccontroller.CacheMetadata, "keys": dynamiccontroller.CacheKeys,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, 3, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
				parent, child := f.types[0], f.types[1]
				a, b, stranger := f.id(parent, "a"), f.id(parent, "b"), f.id(f.types[2], "a")
				f.put(parent, "a")
				f.put(parent, "b")
				f.put(child, "early", a)
				stop := f.run()
				c := newCalls(succeed)
				f.serve(parent, c.handle, dynamiccontroller.WithCache(mode), dynamiccontroller.Owns(child))
				c.want(t, "one call per object for all initial lists", named("a", "b"))
				f.put(child, "c", a)
				c.want(t, "a new child", named("a"))
				f.put(child, "c", b, a)
				c.want(t, "a child that moves to another owner", named("a", "b"))
				f.put(child, "c", b)
				c.want(t, "a change", named("b"))
				f.put(child, "orphan")
				f.put(child, "strange", stranger)
				f.put(child, "early", f.id(parent, "unknown"))
				c.want(t, "children without an owner, of another type and of an unknown owner", named("a"))
				f.put(parent, "unknown")
				c.want(t, "an owner that appears", named("unknown"))
				f.delete(child, "c")
				c.want(t, "a deletion", named("b"))
				stop()
			})
		})
	}
}

func TestOwnsAndWatches_Options(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 4, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, every, filtered, mapped := f.types[0], f.types[1], f.types[2], f.types[3]
		a, b := f.id(parent, "a"), f.id(parent, "b")
		f.put(parent, "a")
		f.put(parent, "b")
		stop := f.run()
		c := newCalls(succeed)
		seen := ""
		wanted := func(_ context.Context, _, now dynamiccontroller.Object) bool {
			return now.Object().(*unstructured.Unstructured).GetName() == "wanted"
		}
		f.serve(parent, c.handle,
			dynamiccontroller.Owns(every, dynamiccontroller.EveryOwner()),
			dynamiccontroller.Owns(filtered, dynamiccontroller.WithCache(dynamiccontroller.CacheFull),
				dynamiccontroller.WithPredicate(wanted)),
			dynamiccontroller.Watches(mapped, func(_ context.Context, object dynamiccontroller.Object) []string {
				m := object.Object().(*metav1.PartialObjectMetadata)
				switch m.Name {
				case "panics":
					panic("on purpose")
				case "malformed":
					return []string{"", "a/b/c"}
				}
				seen = m.Name
				return []string{"default/b", "default/not-there"}
			}))
		c.take()
		f.put(every, "c", a, b)
		c.want(t, "a watch with EveryOwner", named("a", "b"))
		f.put(filtered, "c", a)
		c.want(t, "a change that the predicate rejects", named())
		f.put(filtered, "wanted", a)
		c.want(t, "a change that the predicate accepts", named("a"))
		f.put(mapped, "m")
		c.want(t, "a MapFunc that returns a cached and an unknown object", named("b", "not-there"))
		f.put(mapped, "panics")
		f.put(mapped, "malformed")
		c.want(t, "a MapFunc that panics or returns malformed keys", named())
		if seen != "m" {
			t.Errorf("the MapFunc was called with %q, want %q", seen, "m")
		}
		stop()
	})
}

func TestStartServingGVK_RejectsInvalidWatches(t *testing.T) {
	f := newFixture(t, 2, dynamiccontroller.Config{})
	parent, child := f.types[0], f.types[1]
	keys := dynamiccontroller.WithCache(dynamiccontroller.CacheKeys)
	for _, test := range []struct {
		name  string
		watch dynamiccontroller.Watch
		want  string
	}{
		{"the GVR has no version", dynamiccontroller.Owns(child.GroupResource().WithVersion("")), "must have a version"},
		{"the MapFunc is nil", dynamiccontroller.Watches(child, nil), "MapFunc is nil"},
		{"CacheKeys is not supported", dynamiccontroller.Owns(child, keys), "CacheKeys) is not supported"},
		{"the namespace is invalid", dynamiccontroller.Owns(child, dynamiccontroller.WithNamespaces("Not/One")), "Not/One"},
		{"an option is nil", dynamiccontroller.Owns(child, nil), "an option is nil"},
		{"the Watch is the zero value", dynamiccontroller.Watch{}, "use Owns or Watches"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := f.controller.StartServingGVK(context.Background(), parent, succeed, test.watch)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("StartServingGVK returned %v, want an error with %q", err, test.want)
			}
			err = f.controller.AddWatches(context.Background(), parent, test.watch)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("AddWatches: %v", err)
			}
		})
	}
}

func TestAddWatchesAndRemoveWatches_WhenTheTypeIsNotServed(t *testing.T) {
	f := newFixture(t, 2, dynamiccontroller.Config{})
	watch := dynamiccontroller.Owns(f.types[1])
	err := f.controller.AddWatches(context.Background(), f.types[0], watch)
	if !errors.Is(err, dynamiccontroller.ErrNotServed) {
		t.Errorf("AddWatches: %v", err)
	}
	if err := f.controller.RemoveWatches(context.Background(), f.types[0], watch.Key()); err != nil {
		t.Errorf("RemoveWatches returned %v, want nil", err)
	}
}

// A handler adds a watch and removes it again.
func TestAddWatchesAndRemoveWatches_CalledByAHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 3, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		parent, child, other := f.types[0], f.types[1], f.types[2]
		for _, name := range []string{"a", "b", "c"} {
			f.put(parent, name)
		}
		f.put(child, "of-a", f.id(parent, "a"))
		stop := f.run()
		c := newCalls(succeed)
		f.serve(parent, c.handle)
		c.take()
		c.do = func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			if id.Name() != "b" { // a call that adds the watch just before it has synced would also be repeated
				return nil
			}
			return f.controller.AddWatches(ctx, parent, dynamiccontroller.Owns(child))
		}
		f.controller.Enqueue(f.id(parent, "b"))
		c.want(t, "added by a handler: the owner of the listed child is reconciled, and the caller once more",
			map[string]int{"a": 1, "b": 2})
		f.put(child, "of-c", f.id(parent, "c"))
		c.want(t, "a new child", named("c"))
		if n := len(f.status(parent).Secondaries); n != 1 {
			t.Errorf("%d secondaries, want 1", n)
		}
		lister, err := f.controller.SecondaryLister(parent, dynamiccontroller.Owns(child).Key())
		if err != nil {
			t.Fatal(err)
		}
		c.do = func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			return f.controller.RemoveWatches(ctx, parent, dynamiccontroller.Owns(child).Key())
		}
		f.controller.Enqueue(f.id(parent, "b"))
		c.want(t, "removed by a handler", named("b"))
		f.put(child, "of-a", f.id(parent, "a"))
		c.want(t, "an event after the removal", named())
		if _, err := lister.OwnedBy(f.uid(parent, "a")); !errors.Is(err, dynamiccontroller.ErrNotServed) {
			t.Errorf("the lister returned %v", err)
		}

		c.do = succeed
		f.serve(parent, c.handle, dynamiccontroller.Owns(child))
		c.want(t, "a swap reconciles everything once", named("a", "b", "c"))
		f.serve(parent, c.handle, dynamiccontroller.Owns(other))
		c.want(t, "a second swap also reconciles everything once", named("a", "b", "c"))
		f.put(child, "of-a", f.id(parent, "a"))
		c.want(t, "an event from the watch that the swap removed", named())
		f.put(other, "of-a", f.id(parent, "a"))
		c.want(t, "an event from the watch that the swap added", named("a"))
		if err := f.controller.StopServiceGVK(context.Background(), parent); err != nil {
			t.Error(err)
		}
		f.put(other, "of-a", f.id(parent, "a"))
		c.want(t, "after the type was stopped", named())
		stop()
	})
}

// Adding a watch again replaces its MapFunc and causes neither requests nor reconciles.
func TestAddWatches_AgainReplacesOnlyTheMapFunc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, child := f.types[0], f.types[1]
		f.put(parent, "a")
		f.put(child, "c", f.id(parent, "a"))
		stop := f.run()
		c := newCalls(succeed)
		owned := dynamiccontroller.Owns(child)
		f.serve(parent, c.handle, owned, dynamiccontroller.Watches(child, mapTo("default/one")))
		c.take()
		f.client.ClearActions()
		mapped := dynamiccontroller.Watches(child, mapTo("default/another"))
		if err := f.controller.AddWatches(context.Background(), parent, owned, mapped); err != nil {
			t.Fatal(err)
		}
		c.want(t, "after the watch was added again", named())
		if actions := f.client.Actions(); len(actions) != 0 {
			t.Errorf("AddWatches sent the requests %v, want none", actions)
		}
		f.put(child, "c", f.id(parent, "a"))
		c.want(t, "the new MapFunc is called", named("a", "another"))
		stop()
	})
}

// A child type that does not exist, is forbidden or hangs does not block reconciles. When the child type syncs later,
// the owners of the listed children are reconciled.
func TestS3_UnavailableChildTypeDoesNotBlockReconciles(t *testing.T) {
	for name, fail := range map[string]func() error{
		"the type does not exist": func() error { return apierrors.NewNotFound(schema.GroupResource{}, "") },
		"the type is forbidden":   func() error { return apierrors.NewForbidden(schema.GroupResource{}, "", nil) },
		"the list hangs":          nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
				parent, child := f.types[0], f.types[1]
				f.put(parent, "a")
				f.put(parent, "b")
				f.put(child, "c", f.id(parent, "a"))
				available := make(chan struct{})
				f.beforeList = func(gvr schema.GroupVersionResource) {
					if gvr == child && fail == nil {
						<-available
					}
				}
				f.client.PrependReactor("list", child.Resource, func(clienttesting.Action) (bool, runtime.Object, error) {
					select {
					case <-available:
						return false, nil, nil
					default:
						return fail != nil, nil, fail()
					}
				})
				stop := f.run()
				c := newCalls(succeed)
				f.serve(parent, c.handle, dynamiccontroller.Owns(child))
				wait := 300 * time.Millisecond
				if fail == nil {
					wait = 11 * time.Second
				}
				time.Sleep(wait)
				c.want(t, "while the list of children fails or hangs", named("a", "b"))
				s := f.status(parent).Secondaries
				if len(s) != 1 || s[0].Synced || !s[0].Owned || s[0].GVR != child || s[0].Message == "" {
					t.Errorf("the status of the secondaries is %+v, want one owned watch that has not synced, with a message", s)
				}
				lister := must(f.controller.SecondaryLister(parent, dynamiccontroller.Owns(child).Key()))
				if _, err := lister.List(labels.Everything()); !errors.Is(err, dynamiccontroller.ErrNotSynced) {
					t.Errorf("the lister returned %v", err)
				}
				close(available)
				time.Sleep(time.Minute)
				c.want(t, "after the list of children has succeeded", named("a"))
				stop()
			})
		})
	}
}

// No owner is reconciled before the first list of its children has been delivered.
func TestD4_ObjectIsReconciledOnceForAllInitialLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, child := f.types[0], f.types[1]
		f.put(parent, "a")
		f.put(child, "c", f.id(parent, "a"))
		f.beforeList = func(gvr schema.GroupVersionResource) {
			if gvr == child {
				time.Sleep(time.Second)
			}
		}
		c := newCalls(succeed)
		f.serve(parent, c.handle, dynamiccontroller.Owns(child))
		for range 2 {
			stop := f.run()
			c.want(t, "before the list of children has succeeded", named())
			time.Sleep(3 * time.Second)
			c.want(t, "after the slow list of children has succeeded", named("a"))
			stop()
		}
	})
}

// The owner of a child is reconciled even if the child was deleted between two runs or together with the child's type.
func TestD3_OwnerIsReconciledAfterAMissedDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var typeEvents events
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1},
			dynamiccontroller.WithTypeEvents(typeEvents.subscribe))
		parent, child := f.types[0], f.types[1]
		f.put(parent, "a")
		f.put(child, "c", f.id(parent, "a"))
		f.put(child, "d", f.id(parent, "gone"))
		c := newCalls(succeed)
		var lost []string
		recordDeletions := func(_ context.Context, old, now dynamiccontroller.Object) bool {
			if now == nil {
				lost = append(lost, old.GetOwnerReferences()[0].Name)
			}
			return true
		}
		f.serve(parent, c.handle, dynamiccontroller.Owns(child, dynamiccontroller.WithPredicate(recordDeletions)))
		f.run()()
		f.delete(child, "d")
		stop := f.run()
		if !slices.Equal(lost, []string{"gone"}) {
			t.Errorf("the predicate saw deletions of children of %v, want [gone]", lost)
		}
		c.take()
		f.client.PrependReactor("list", child.Resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewNotFound(child.GroupResource(), "")
		})
		typeEvents.notify(child, false)
		c.want(t, "the children's type is gone", named("a"))
		stop()
	})
}
