package dynamiccontroller_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

func TestSecondaryLister_OwnedBy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, child := w.types[0], w.types[1]
		a, b := w.id(parent, "a"), w.id(parent, "b")
		w.put(parent, "a")
		w.put(child, "one", a)
		w.put(child, "two", b, a)
		stop := w.run()
		c := newCalls(succeed)
		full := []dynamiccontroller.OwnsOption{dynamiccontroller.WithCache(dynamiccontroller.CacheFull), dynamiccontroller.EveryOwner()}
		w.serve(parent, c.handle, dynamiccontroller.Owns(child), dynamiccontroller.Owns(child, full...))
		list := func(opts ...dynamiccontroller.OwnsOption) (names []string) {
			lister := must(w.controller.SecondaryLister(parent, dynamiccontroller.Owns(child, opts...).Key()))
			for _, object := range must(lister.OwnedBy(w.uid(parent, "a"))) {
				_, whole := object.(*unstructured.Unstructured)
				if whole != (len(opts) > 0) {
					t.Errorf("a %T", object)
				}
				names = append(names, object.(metav1.Object).GetName())
			}
			slices.Sort(names)
			return names
		}
		if got := list(); !slices.Equal(got, []string{"one"}) {
			t.Errorf("children: %v", got)
		}
		if got := list(full...); !slices.Equal(got, []string{"one", "two"}) {
			t.Errorf("owned: %v", got)
		}
		w.put(child, "one", b)
		w.put(child, "three", a)
		if got := list(); !slices.Equal(got, []string{"three"}) {
			t.Errorf("children: %v", got)
		}
		w.delete(child, "three")
		if got := list(); len(got) != 0 {
			t.Errorf("children: %v", got)
		}
		object := must(must(w.controller.SecondaryLister(parent, dynamiccontroller.Owns(child).Key())).ByNamespace("default").Get("one"))
		if m, ok := object.(*metav1.PartialObjectMetadata); !ok || m.UID != w.uid(child, "one") {
			t.Errorf("got %+v", object)
		}
		if _, err := w.controller.SecondaryLister(parent, dynamiccontroller.Owns(w.types[2]).Key()); !errors.Is(err, dynamiccontroller.ErrNotServed) {
			t.Errorf("a type that is not watched: %v", err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// Readers of a shared watch receive objects in the cache mode of their own registration.
func TestS6_ReadersSeeTheirOwnCacheMode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := w.types[0]
		w.put(gvr, "w")
		stop := w.run()
		w.serve(w.types[1], succeed, dynamiccontroller.Owns(gvr, dynamiccontroller.WithCache(dynamiccontroller.CacheFull)))
		var seen any
		w.serve(gvr, succeed, dynamiccontroller.WithCache(dynamiccontroller.CacheMetadata), dynamiccontroller.WithPredicate(func(_ context.Context, _, now dynamiccontroller.Object) bool {
			seen = now.Object()
			return true
		}))
		w.put(gvr, "w")
		if _, ok := seen.(*metav1.PartialObjectMetadata); !ok {
			t.Errorf("the predicate was called with a %T", seen)
		}
		lister := must(w.controller.Lister(gvr))
		if object, ok := must(lister.Get("default/w")).(*metav1.PartialObjectMetadata); !ok || object.UID != w.uid(gvr, "w") {
			t.Errorf("got %+v", object)
		}
		if object, ok := must(lister.List(labels.Everything()))[0].(*metav1.PartialObjectMetadata); !ok || object.Name != "w" {
			t.Errorf("got %+v", object)
		}
		w.serve(gvr, succeed, dynamiccontroller.WithCache(dynamiccontroller.CacheKeys))
		if _, err := w.controller.Lister(gvr); err == nil || !strings.Contains(err.Error(), "CacheKeys") {
			t.Errorf("got %v", err)
		}
		if _, err := lister.List(labels.Everything()); err == nil || !strings.Contains(err.Error(), "CacheKeys") {
			t.Errorf("got %v", err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
