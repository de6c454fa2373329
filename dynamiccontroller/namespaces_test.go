package dynamiccontroller_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// createIn creates an object in a namespace. Its name is the name of the namespace.
func (f *fixture) createIn(namespace string, gvr schema.GroupVersionResource) {
	f.t.Helper()
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(gvr.GroupVersion().WithKind("Type"))
	object.SetName(namespace)
	_, err := f.client.Resource(gvr).Namespace(namespace).Create(context.Background(), object, metav1.CreateOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	synctest.Wait()
}

// namespaces returns the namespaces of the objects that a lister returns.
func (f *fixture) namespaces(gvr schema.GroupVersionResource) []string {
	f.t.Helper()
	lister, err := f.controller.Lister(gvr)
	if err != nil {
		f.t.Fatal(err)
	}
	var keys []string
	for object, err := range lister.All("", labels.Everything()) {
		if err != nil {
			f.t.Fatal(err)
		}
		keys = append(keys, object.(*unstructured.Unstructured).GetNamespace())
	}
	slices.Sort(keys)
	return keys
}

func TestWithNamespaces_ServesTheObjectsOfTheseNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr, watched := f.types[0], f.types[1]
		for _, namespace := range []string{"a", "b", "c"} {
			f.createIn(namespace, gvr)
		}
		c := newCalls(succeed)
		inBoth := dynamiccontroller.WithNamespaces("b", "a", "b")
		mapped := dynamiccontroller.Watches(watched, func(_ context.Context, o dynamiccontroller.Object) []string {
			return []string{o.GetNamespace() + "/mapped-" + o.GetName()}
		}, inBoth)
		f.serve(gvr, c.handle, inBoth, mapped)
		stop := f.run()
		c.want(t, "initial lists", named("a", "b"))
		if keys := f.namespaces(gvr); !slices.Equal(keys, []string{"a", "b"}) || f.status(gvr).Objects != 2 {
			t.Errorf("the cache holds %v, and the status is %+v", keys, f.status(gvr))
		}
		f.createIn("c", watched)
		f.createIn("b", watched)
		c.want(t, "a watched object", named("mapped-b"))
		if secondaries := f.status(gvr).Secondaries; secondaries[0].Namespaces != "a,b" {
			t.Errorf("the status contains %+v", secondaries)
		}
		for _, action := range f.client.Actions() {
			if namespace := action.GetNamespace(); namespace == "" || namespace == "c" && action.GetVerb() != "create" {
				t.Errorf("a %s request in namespace %q", action.GetVerb(), namespace)
			}
		}
		stop()
	})
}

// The objects of the namespaces that the old and the new options have in common stay in the cache.
func TestS2_SwapOfNamespacesDeliversOneDifference(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr := f.types[0]
		for _, namespace := range []string{"a", "b", "c"} {
			f.createIn(namespace, gvr)
		}
		stop := f.run()
		old, next := newCalls(succeed), newCalls(succeed)
		f.serve(gvr, old.handle, dynamiccontroller.WithNamespaces("a", "b"))
		old.want(t, "before the swap", named("a", "b"))
		var released atomic.Bool
		f.client.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
			return action.GetNamespace() == "c" && !released.Load(), nil, errors.New("not yet")
		})
		f.serve(gvr, next.handle, dynamiccontroller.WithNamespaces("b", "c"))
		if keys := f.namespaces(gvr); !slices.Equal(keys, []string{"a", "b"}) || f.status(gvr).Replacement == nil {
			t.Errorf("while the swap is pending, the cache holds %v", keys)
		}
		next.want(t, "while the swap is pending", named())
		released.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		old.want(t, "old handler", named())
		next.want(t, "new handler", named("a", "b", "c"))
		if keys := f.namespaces(gvr); !slices.Equal(keys, []string{"b", "c"}) {
			t.Errorf("after the swap, the cache holds %v", keys)
		}
		stop()
	})
}
