package dynamiccontroller_test

import (
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// annotating returns a transform that appends a letter to an annotation, unless the annotation already ends with that
// letter.
func annotating(letter string) cache.TransformFunc {
	return func(obj any) (any, error) {
		m := obj.(metav1.Object)
		before := m.GetAnnotations()["letters"]
		if len(before) == 0 || before[len(before)-1:] != letter {
			m.SetAnnotations(map[string]string{"letters": before + letter})
		}
		return obj, nil
	}
}

func TestWithDefaultTransform_AppliesToAllTypesAndKeepsWatchesShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 3, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1},
			dynamiccontroller.WithDefaultTransform(annotating("a")))
		first, second, child := f.types[0], f.types[1], f.types[2]
		f.put(first, "x")
		f.put(child, "x")
		stop := f.run()
		owns := dynamiccontroller.Owns(child, dynamiccontroller.WithCache(dynamiccontroller.CacheFull))
		f.serve(first, newCalls(succeed).handle, owns)
		f.serve(second, newCalls(succeed).handle, owns)
		if n := f.controller.WatchesOf(child); n != 1 {
			t.Errorf("%d watches of a type that two other types own, want 1", n)
		}
		want := func(what, letters string, lister cache.GenericLister) {
			t.Helper()
			object := must(lister.Get("default/x"))
			if got := object.(*unstructured.Unstructured).GetAnnotations()["letters"]; got != letters {
				t.Errorf("%s: the transforms left %q, want %q", what, got, letters)
			}
		}
		want("primary", "a", must(f.controller.Lister(first)))
		want("secondary", "a", must(f.controller.SecondaryLister(first, owns.Key())))
		f.serve(first, newCalls(succeed).handle, dynamiccontroller.WithTransform(annotating("b")))
		want("after WithTransform added a second transform", "ab", must(f.controller.Lister(first)))
		stop()
	})
}

// The function is called before the object is decoded. Its result is used only if it is the same object.
func TestWithReduce_ReducesObjectsBeforeTheTransform(t *testing.T) {
	for name, test := range map[string]struct {
		namespace string
		want      string // the annotation after the transform
	}{
		"the same object":    {"default", "ra"},
		"a different object": {"other", "a"},
	} {
		synctest.Test(t, func(t *testing.T) {
			reduce := func([]byte) []byte {
				return []byte(`{"apiVersion":"v1","kind":"A","metadata":{"namespace":"` + test.namespace +
					`","name":"x","annotations":{"letters":"r"}}}`)
			}
			f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1},
				dynamiccontroller.WithDefaultTransform(annotating("a")), dynamiccontroller.WithReduce(reduce))
			f.put(f.types[0], "x")
			stop := f.run()
			f.serve(f.types[0], newCalls(succeed).handle)
			object := must(must(f.controller.Lister(f.types[0])).Get("default/x"))
			if got := object.(*unstructured.Unstructured).GetAnnotations()["letters"]; got != test.want {
				t.Errorf("%s: got %q, want %q", name, got, test.want)
			}
			stop()
		})
	}
}
