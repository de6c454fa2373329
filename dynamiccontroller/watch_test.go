package dynamiccontroller_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
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

// take returns the number of calls for each object since the last take.
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

// An event of a child reconciles its controller and no other object, in each cache mode of the owners.
func TestD1_ChildEventsReconcileTheOwner(t *testing.T) {
	for name, mode := range map[string]dynamiccontroller.CacheMode{
		"full": dynamiccontroller.CacheFull, "metadata": dynamiccontroller.CacheMetadata, "keys": dynamiccontroller.CacheKeys,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 3, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
				parent, child := w.types[0], w.types[1]
				a, b, stranger := w.id(parent, "a"), w.id(parent, "b"), w.id(w.types[2], "a")
				w.put(parent, "a")
				w.put(parent, "b")
				w.put(child, "early", a)
				stop := w.run()
				c := newCalls(succeed)
				w.serve(parent, c.handle, dynamiccontroller.WithCache(mode), dynamiccontroller.Owns(child))
				c.want(t, "one call per object for all initial lists", named("a", "b"))
				w.put(child, "c", a)
				c.want(t, "a new child", named("a"))
				w.put(child, "c", b, a)
				c.want(t, "a child that moves to another owner", named("a", "b"))
				w.put(child, "c", b)
				c.want(t, "a change", named("b"))
				w.put(child, "orphan")
				w.put(child, "strange", stranger)
				w.put(child, "early", w.id(parent, "unknown"))
				c.want(t, "children without an owner, of another type and of an unknown owner", named("a"))
				w.put(parent, "unknown")
				c.want(t, "an owner that appears", named("unknown"))
				w.delete(child, "c")
				c.want(t, "a deletion", named("b"))
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestOwnsAndWatches_Options(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, every, filtered, mapped := w.types[0], w.types[1], w.types[2], w.types[3]
		a, b := w.id(parent, "a"), w.id(parent, "b")
		w.put(parent, "a")
		w.put(parent, "b")
		stop := w.run()
		c := newCalls(succeed)
		seen := ""
		w.serve(parent, c.handle,
			dynamiccontroller.Owns(every, dynamiccontroller.EveryOwner()),
			dynamiccontroller.Owns(filtered, dynamiccontroller.WithCache(dynamiccontroller.CacheFull), dynamiccontroller.WithPredicate(func(_ context.Context, _, now dynamiccontroller.Object) bool {
				object := now.Object().(*unstructured.Unstructured)
				return object.GetName() == "wanted"
			})),
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
		w.put(every, "c", a, b)
		c.want(t, "every owner counts", named("a", "b"))
		w.put(filtered, "c", a)
		c.want(t, "not wanted", named())
		w.put(filtered, "wanted", a)
		c.want(t, "wanted", named("a"))
		w.put(mapped, "m")
		c.want(t, "mapped, in the cache or not", named("b", "not-there"))
		w.put(mapped, "panics")
		w.put(mapped, "malformed")
		c.want(t, "a MapFunc that panics or returns malformed keys", named())
		if seen != "m" {
			t.Errorf("the MapFunc was called with %q", seen)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestStartServingGVK_RejectsInvalidWatches(t *testing.T) {
	w := newWorld(t, 2, dynamiccontroller.Config{})
	parent, child := w.types[0], w.types[1]
	keys := dynamiccontroller.WithCache(dynamiccontroller.CacheKeys)
	for _, test := range []struct {
		name  string
		watch dynamiccontroller.Watch
		want  string
	}{
		{"the GVR has no version", dynamiccontroller.Owns(child.GroupResource().WithVersion("")), "no version"},
		{"the MapFunc is nil", dynamiccontroller.Watches(child, nil), "MapFunc is nil"},
		{"CacheKeys stores no owners", dynamiccontroller.Owns(child, keys), "stores no owners"},
		{"the namespace is invalid", dynamiccontroller.Owns(child, dynamiccontroller.WithNamespace("Not/One")), "Not/One"},
		{"an option is nil", dynamiccontroller.Owns(child, nil), "an option is nil"},
		{"the Watch is the zero value", dynamiccontroller.Watch{}, "use Owns or Watches"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := w.controller.StartServingGVK(context.Background(), parent, succeed, test.watch)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("StartServingGVK: %v", err)
			}
			err = w.controller.AddWatches(context.Background(), parent, test.watch)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("AddWatches: %v", err)
			}
		})
	}
}

func TestAddWatchesAndRemoveWatches_OfATypeThatIsNotServed(t *testing.T) {
	w := newWorld(t, 2, dynamiccontroller.Config{})
	watch := dynamiccontroller.Owns(w.types[1])
	if err := w.controller.AddWatches(context.Background(), w.types[0], watch); !errors.Is(err, dynamiccontroller.ErrNotServed) {
		t.Errorf("AddWatches: %v", err)
	}
	if err := w.controller.RemoveWatches(context.Background(), w.types[0], watch.Key()); err != nil {
		t.Errorf("RemoveWatches: %v", err)
	}
}

// A handler adds a watch and removes it again.
func TestAddWatchesAndRemoveWatches_CalledByAHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		parent, child, other := w.types[0], w.types[1], w.types[2]
		for _, name := range []string{"a", "b", "c"} {
			w.put(parent, name)
		}
		w.put(child, "of-a", w.id(parent, "a"))
		stop := w.run()
		c := newCalls(succeed)
		w.serve(parent, c.handle)
		c.take()
		c.do = func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			return w.controller.AddWatches(ctx, parent, dynamiccontroller.Owns(child))
		}
		w.controller.Enqueue(w.id(parent, "b"))
		c.want(t, "added by a handler: the owner in the list is reconciled once", named("a", "b"))
		w.put(child, "of-c", w.id(parent, "c"))
		c.want(t, "a new child", named("c"))
		if n := len(w.status(parent).Secondaries); n != 1 {
			t.Errorf("%d secondaries", n)
		}
		lister, err := w.controller.SecondaryLister(parent, dynamiccontroller.Owns(child).Key())
		if err != nil {
			t.Fatal(err)
		}
		c.do = func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			return w.controller.RemoveWatches(ctx, parent, dynamiccontroller.Owns(child).Key())
		}
		w.controller.Enqueue(w.id(parent, "b"))
		c.want(t, "removed by a handler", named("b"))
		w.put(child, "of-a", w.id(parent, "a"))
		c.want(t, "an event after the removal", named())
		if _, err := lister.OwnedBy(w.uid(parent, "a")); !errors.Is(err, dynamiccontroller.ErrNotServed) {
			t.Errorf("the lister returned %v", err)
		}

		c.do = succeed
		w.serve(parent, c.handle, dynamiccontroller.Owns(child))
		c.want(t, "a swap reconciles everything once", named("a", "b", "c"))
		w.serve(parent, c.handle, dynamiccontroller.Owns(other))
		c.want(t, "a second swap as well", named("a", "b", "c"))
		w.put(child, "of-a", w.id(parent, "a"))
		c.want(t, "an event of the watch that the swap removed", named())
		w.put(other, "of-a", w.id(parent, "a"))
		c.want(t, "an event of the watch that the swap added", named("a"))
		if err := w.controller.StopServiceGVK(context.Background(), parent); err != nil {
			t.Error(err)
		}
		w.put(other, "of-a", w.id(parent, "a"))
		c.want(t, "stopped", named())
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// Adding a watch again replaces its MapFunc and causes no request and no reconcile.
func TestAddWatches_AgainReplacesOnlyTheMapFunc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, child := w.types[0], w.types[1]
		w.put(parent, "a")
		w.put(child, "c", w.id(parent, "a"))
		stop := w.run()
		c := newCalls(succeed)
		mapTo := func(key string) dynamiccontroller.Watch {
			return dynamiccontroller.Watches(child, func(context.Context, dynamiccontroller.Object) []string { return []string{"default/" + key} })
		}
		w.serve(parent, c.handle, dynamiccontroller.Owns(child), mapTo("one"))
		c.take()
		w.client.ClearActions()
		if err := w.controller.AddWatches(context.Background(), parent, dynamiccontroller.Owns(child), mapTo("another")); err != nil {
			t.Fatal(err)
		}
		c.want(t, "added again", named())
		if actions := w.client.Actions(); len(actions) != 0 {
			t.Errorf("requests: %v", actions)
		}
		w.put(child, "c", w.id(parent, "a"))
		c.want(t, "the newest MapFunc counts", named("a", "another"))
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A type of children that does not exist, or whose list hangs, does not block reconciles. When it syncs later, the
// owners in its list are reconciled.
func TestS3_UnavailableChildTypeDoesNotBlockReconciles(t *testing.T) {
	for name, fail := range map[string]func() error{
		"it does not exist": func() error { return apierrors.NewNotFound(schema.GroupResource{}, "") },
		"it is forbidden":   func() error { return apierrors.NewForbidden(schema.GroupResource{}, "", nil) },
		"its list hangs":    nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
				parent, child := w.types[0], w.types[1]
				w.put(parent, "a")
				w.put(parent, "b")
				w.put(child, "c", w.id(parent, "a"))
				available := make(chan struct{})
				w.beforeList = func(gvr schema.GroupVersionResource) {
					if gvr == child && fail == nil {
						<-available
					}
				}
				w.client.PrependReactor("list", child.Resource, func(clienttesting.Action) (bool, runtime.Object, error) {
					select {
					case <-available:
						return false, nil, nil
					default:
						return fail != nil, nil, fail()
					}
				})
				stop := w.run()
				c := newCalls(succeed)
				w.serve(parent, c.handle, dynamiccontroller.Owns(child))
				wait := 300 * time.Millisecond
				if fail == nil {
					wait = 11 * time.Second
				}
				time.Sleep(wait)
				c.want(t, "the parents are reconciled nevertheless", named("a", "b"))
				if s := w.status(parent).Secondaries; len(s) != 1 || s[0].Synced || !s[0].Owned || s[0].GVR != child || (s[0].Message == "") != (fail == nil) {
					t.Errorf("%+v", s)
				}
				if _, err := must(w.controller.SecondaryLister(parent, dynamiccontroller.Owns(child).Key())).List(labels.Everything()); !errors.Is(err, dynamiccontroller.ErrNotSynced) {
					t.Errorf("the lister returned %v", err)
				}
				close(available)
				time.Sleep(time.Minute)
				c.want(t, "after the list has succeeded, the owners in it", named("a"))
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// No object is reconciled before the children's first list has been delivered.
func TestD4_ObjectIsReconciledOnceForAllInitialLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, child := w.types[0], w.types[1]
		w.put(parent, "a")
		w.put(child, "c", w.id(parent, "a"))
		w.beforeList = func(gvr schema.GroupVersionResource) {
			if gvr == child {
				time.Sleep(time.Second)
			}
		}
		c := newCalls(succeed)
		w.serve(parent, c.handle, dynamiccontroller.Owns(child))
		for range 2 {
			stop := w.run()
			c.want(t, "before the children's list", named())
			time.Sleep(3 * time.Second)
			c.want(t, "after it", named("a"))
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
	})
}

// The owner of a child is reconciled even if the child was deleted between two runs, or together with its type.
func TestD3_OwnerIsReconciledAfterAMissedDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, child := w.types[0], w.types[1]
		var typeEvents events
		w.controller = dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1}, w.client,
			dynamiccontroller.WithMetadataClient(w.metadata()), dynamiccontroller.WithTypeEvents(typeEvents.subscribe))
		w.put(parent, "a")
		w.put(child, "c", w.id(parent, "a"))
		w.put(child, "d", w.id(parent, "gone"))
		c := newCalls(succeed)
		var lost []string
		w.serve(parent, c.handle, dynamiccontroller.Owns(child, dynamiccontroller.WithPredicate(func(_ context.Context, old, now dynamiccontroller.Object) bool {
			if now == nil {
				lost = append(lost, old.GetOwnerReferences()[0].Name)
			}
			return true
		})))
		if err := w.run()(); err != nil {
			t.Error(err)
		}
		w.delete(child, "d")
		stop := w.run()
		if !slices.Equal(lost, []string{"gone"}) {
			t.Errorf("lost: %v", lost)
		}
		c.take()
		w.client.PrependReactor("list", child.Resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewNotFound(child.GroupResource(), "")
		})
		typeEvents.notify(child, false)
		c.want(t, "the children's type is gone", named("a"))
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
