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

// take returns how often each object was called for since it was asked last.
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

// Whatever the cache of the owners keeps, what happens to a child is told to its controller, and to nobody else.
func TestD1_AChildsEventsReachItsOwner(t *testing.T) {
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
				c.want(t, "one call an object for all initial lists", named("a", "b"))
				w.put(child, "c", a)
				c.want(t, "a new child", named("a"))
				w.put(child, "c", b, a)
				c.want(t, "a child that moves wakes both", named("a", "b"))
				w.put(child, "c", b)
				c.want(t, "a change", named("b"))
				w.put(child, "orphan")
				w.put(child, "strange", stranger)
				w.put(child, "early", w.id(parent, "unknown"))
				c.want(t, "nobody's, another type's and an unknown owner's child", named("a"))
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

func TestWhatAnAuthorChoosesOfSecondaries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, every, picky, mapped := w.types[0], w.types[1], w.types[2], w.types[3]
		a, b := w.id(parent, "a"), w.id(parent, "b")
		w.put(parent, "a")
		w.put(parent, "b")
		stop := w.run()
		c := newCalls(succeed)
		shape := ""
		w.serve(parent, c.handle,
			dynamiccontroller.Owns(every, dynamiccontroller.EveryOwner()),
			dynamiccontroller.Owns(picky, dynamiccontroller.WithCache(dynamiccontroller.CacheFull), dynamiccontroller.WithPredicate(func(_, now any) bool {
				object := now.(*unstructured.Unstructured)
				return object.GetName() == "wanted"
			})),
			dynamiccontroller.Watches(mapped, func(object runtime.Object) []string {
				m := object.(*metav1.PartialObjectMetadata)
				switch m.Name {
				case "panics":
					panic("on purpose")
				case "nonsense":
					return []string{"", "a/b/c"}
				}
				shape = m.Name
				return []string{"default/b", "default/not-there"}
			}))
		c.take()
		w.put(every, "c", a, b)
		c.want(t, "every owner counts", named("a", "b"))
		w.put(picky, "c", a)
		c.want(t, "not wanted", named())
		w.put(picky, "wanted", a)
		c.want(t, "wanted", named("a"))
		w.put(mapped, "m")
		c.want(t, "mapped, in the cache or not", named("b", "not-there"))
		w.put(mapped, "panics")
		w.put(mapped, "nonsense")
		c.want(t, "a MapFunc that panics or talks nonsense", named())
		if shape != "m" {
			t.Errorf("it saw %q", shape)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestBadSecondariesAreRefused(t *testing.T) {
	w := newWorld(t, 2, dynamiccontroller.Config{})
	child := w.types[1]
	for _, test := range []struct {
		name string
		opt  dynamiccontroller.ServeOption
		want string
	}{
		{"no GVR", dynamiccontroller.Owns(child.GroupResource().WithVersion("")), "lacks a version"},
		{"no MapFunc", dynamiccontroller.Watches(child, nil), "MapFunc is nil"},
		{"keys", dynamiccontroller.Owns(child, dynamiccontroller.WithCache(dynamiccontroller.CacheKeys)), "keeps no owners"},
		{"an option of types", dynamiccontroller.Owns(child, dynamiccontroller.WithWeight(2)), "more than what is watched"},
		{"one within another", dynamiccontroller.Owns(child, dynamiccontroller.Owns(child)), "more than what is watched"},
		{"a bad option", dynamiccontroller.Owns(child, dynamiccontroller.WithNamespace("Not/One")), "Not/One"},
		{"every owner of what is mapped", dynamiccontroller.Watches(child, func(runtime.Object) []string { return nil }, dynamiccontroller.EveryOwner()), "EveryOwner"},
		{"every owner of the type itself", dynamiccontroller.EveryOwner(), "EveryOwner"},
	} {
		err := w.controller.StartServingGVK(context.Background(), w.types[0], succeed, test.opt)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	if err := w.controller.AlsoWatch(context.Background(), w.types[0], dynamiccontroller.Owns(child)); !errors.Is(err, dynamiccontroller.ErrNotServed) {
		t.Errorf("beside what is not served: %v", err)
	}
	if err := w.controller.AlsoWatch(context.Background(), w.types[0], dynamiccontroller.WithNamespace("ns")); err == nil || !strings.Contains(err.Error(), "neither Owns nor Watches") {
		t.Errorf("got %v", err)
	}
	if err := w.controller.StopWatching(context.Background(), w.types[0], dynamiccontroller.Owns(child)); err != nil {
		t.Errorf("what is not watched: %v", err)
	}
}

// A handler learns of a type of children, and forgets it again.
func TestSecondariesComeAndGoWhileATypeIsServed(t *testing.T) {
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
			return w.controller.AlsoWatch(ctx, parent, dynamiccontroller.Owns(child))
		}
		w.controller.Enqueue(w.id(parent, "b"))
		c.want(t, "added by a handler: the owner in the list is called for, once", named("a", "b"))
		w.put(child, "of-c", w.id(parent, "c"))
		c.want(t, "a new child", named("c"))
		if n := len(w.status(parent).Secondaries); n != 1 {
			t.Errorf("%d secondaries", n)
		}
		lister, err := w.controller.SecondaryLister(parent, dynamiccontroller.Owns(child))
		if err != nil {
			t.Fatal(err)
		}
		c.do = func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			return w.controller.StopWatching(ctx, parent, dynamiccontroller.Owns(child))
		}
		w.controller.Enqueue(w.id(parent, "b"))
		c.want(t, "removed by a handler", named("b"))
		w.put(child, "of-a", w.id(parent, "a"))
		c.want(t, "nobody hears of it any more", named())
		if _, err := lister.OwnedBy(w.uid(parent, "a")); !errors.Is(err, dynamiccontroller.ErrNotServed) {
			t.Errorf("the lister says %v", err)
		}

		c.do = succeed
		w.serve(parent, c.handle, dynamiccontroller.Owns(child))
		c.want(t, "a swap reconciles everything once", named("a", "b", "c"))
		w.serve(parent, c.handle, dynamiccontroller.Owns(other))
		c.want(t, "another one too", named("a", "b", "c"))
		w.put(child, "of-a", w.id(parent, "a"))
		c.want(t, "what the swap left out", named())
		w.put(other, "of-a", w.id(parent, "a"))
		c.want(t, "what it brought", named("a"))
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

// What AlsoWatch does not need to change stays: no request is made, and nobody is called for.
func TestAddingAgainChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, child := w.types[0], w.types[1]
		w.put(parent, "a")
		w.put(child, "c", w.id(parent, "a"))
		stop := w.run()
		c := newCalls(succeed)
		mapTo := func(key string) dynamiccontroller.ServeOption {
			return dynamiccontroller.Watches(child, func(runtime.Object) []string { return []string{"default/" + key} })
		}
		w.serve(parent, c.handle, dynamiccontroller.Owns(child), mapTo("one"))
		c.take()
		w.client.ClearActions()
		if err := w.controller.AlsoWatch(context.Background(), parent, dynamiccontroller.Owns(child), mapTo("another")); err != nil {
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

// A type of children that does not exist, or whose list hangs, parks nobody, and when it comes the owners hear of it.
func TestS3_ChildrenThatCannotBeHadHoldNobodyUp(t *testing.T) {
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
				there := make(chan struct{})
				w.beforeList = func(gvr schema.GroupVersionResource) {
					if gvr == child && fail == nil {
						<-there
					}
				}
				w.client.PrependReactor("list", child.Resource, func(clienttesting.Action) (bool, runtime.Object, error) {
					select {
					case <-there:
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
				c.want(t, "the parents are called for all the same", named("a", "b"))
				if s := w.status(parent).Secondaries; len(s) != 1 || s[0].Synced || !s[0].Owned || s[0].GVR != child || (s[0].Message == "") != (fail == nil) {
					t.Errorf("%+v", s)
				}
				if _, err := must(w.controller.SecondaryLister(parent, dynamiccontroller.Owns(child))).List(labels.Everything()); !errors.Is(err, dynamiccontroller.ErrNotSynced) {
					t.Errorf("the lister says %v", err)
				}
				close(there)
				time.Sleep(time.Minute)
				c.want(t, "and when it is there, the owners in its list", named("a"))
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// While the children's first list is on its way nobody is called for.
func TestD4_OneCallForAllInitialLists(t *testing.T) {
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

// A child that is deleted between two runs, or with its whole type, is known to have been its owner's.
func TestD3_AnOwnerHearsOfWhatWasDeletedUnseen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, child := w.types[0], w.types[1]
		var told events
		w.controller = dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1}, w.client,
			dynamiccontroller.WithMetadataClient(w.metadata()), dynamiccontroller.WithTypeEvents(told.subscribe))
		w.put(parent, "a")
		w.put(child, "c", w.id(parent, "a"))
		w.put(child, "d", w.id(parent, "gone"))
		c := newCalls(succeed)
		var lost []string
		w.serve(parent, c.handle, dynamiccontroller.Owns(child, dynamiccontroller.WithPredicate(func(old, now any) bool {
			if now == nil {
				lost = append(lost, old.(*metav1.PartialObjectMetadata).OwnerReferences[0].Name)
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
		told.tell(child, false)
		c.want(t, "the children's type is gone", named("a"))
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// interruption is what a fence says.
type interruption bool

func (i interruption) Error() string     { return "not leading" }
func (i interruption) Interrupted() bool { return bool(i) }

// An interruption is no failure, however it is wrapped, and is tried again.
func TestD6_AnInterruptionIsNoFailure(t *testing.T) {
	for _, test := range []struct {
		name   string
		err    error
		failed bool
	}{
		{"an interruption", interruption(true), false},
		{"a wrapped one", errors.Join(errors.New("write"), interruption(true)), false},
		{"one that was called terminal", dynamiccontroller.Terminal(interruption(true)), false},
		{"an error that might have been one", interruption(false), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, dynamiccontroller.Config{Workers: 1, QueueMaxRetries: 3, ResyncPeriod: -1})
				stop := w.run()
				c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return test.err })
				w.serve(w.types[0], c.handle)
				w.put(w.types[0], "w")
				time.Sleep(time.Minute)
				synctest.Wait()
				status := w.status(w.types[0])
				if failed := status.Parked > 0; failed != test.failed || !failed && status.Failing > 0 {
					t.Errorf("%+v", status)
				}
				if n := len(c.at["w"]); !test.failed && (n < 30 || n > 70) {
					t.Errorf("%d calls in a minute", n)
				}
				c.do = succeed
				w.controller.Enqueue(w.id(w.types[0], "w"))
				time.Sleep(time.Minute)
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
