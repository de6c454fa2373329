package dynamiccontroller_test

import (
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// annotating is a transform that appends a letter to an annotation, unless that has it already.
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

func TestDefaultTransformAppliesToAllTypesAndKeepsWatchesShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		w.controller = dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1}, w.client,
			dynamiccontroller.WithMetadataClient(w.metadata()), dynamiccontroller.WithDefaultTransform(annotating("a")))
		first, second, child := w.types[0], w.types[1], w.types[2]
		w.put(first, "x")
		w.put(child, "x")
		stop := w.run()
		owns := dynamiccontroller.Owns(child, dynamiccontroller.WithCache(dynamiccontroller.CacheFull))
		w.serve(first, newCalls(succeed).handle, owns)
		w.serve(second, newCalls(succeed).handle, owns)
		if n := w.controller.WatchesOf(child); n != 1 {
			t.Errorf("%d watches of a type that two others own, want 1", n)
		}
		want := func(what, letters string, lister cache.GenericLister) {
			t.Helper()
			object := must(lister.Get("default/x"))
			if got := object.(*unstructured.Unstructured).GetAnnotations()["letters"]; got != letters {
				t.Errorf("%s: the transforms left %q, want %q", what, got, letters)
			}
		}
		want("primary", "a", must(w.controller.Lister(first)))
		want("secondary", "a", must(w.controller.SecondaryLister(first, owns.Key())))
		w.serve(first, newCalls(succeed).handle, dynamiccontroller.WithTransform(annotating("b")))
		want("with a transform of its own", "ab", must(w.controller.Lister(first)))
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
