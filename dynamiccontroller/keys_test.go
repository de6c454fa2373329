package dynamiccontroller_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// The key that types.NamespacedName makes for a cluster-scoped object is that object's key.
func TestD2_BothFormsOfAClusterScopedKeyAreOneObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{})
		w.controller = dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{Workers: 8, ResyncPeriod: -1}, w.client,
			dynamiccontroller.WithMetadataClient(w.metadata()))
		gvr, other := w.types[0], w.types[1]
		stop := w.run()
		running := 0
		var keys []string
		handler := func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			keys = append(keys, id.NamespacedKey)
			if running++; running > 1 {
				t.Errorf("%d calls at once", running)
			}
			time.Sleep(time.Second)
			running--
			return nil
		}
		slashed := types.NamespacedName{Name: "x"}.String()
		w.serve(gvr, handler, dynamiccontroller.Watches(other, func(context.Context, dynamiccontroller.Object) []string { return []string{slashed, "x"} }))
		id := func(key string) dynamiccontroller.ObjectIdentifiers {
			return dynamiccontroller.ObjectIdentifiers{NamespacedKey: key, GVR: gvr}
		}
		w.controller.Enqueue(id("x"))
		synctest.Wait()
		w.controller.Enqueue(id(slashed))
		w.put(other, "o")
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := []string{"x", "x"}; !slices.Equal(keys, want) {
			t.Errorf("calls for %v, want %v: one call, and one more for all requests during it", keys, want)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A malformed key is not reconciled. The first one is logged, and the status counts all of them.
func TestMalformedKeysAreReported(t *testing.T) {
	malformed := []string{"", "/", "ns/", "a/b/c", "//x", "/x/"}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{})
		gvr, other := w.types[0], w.types[1]
		for _, test := range []struct {
			name   string
			report func()
			from   string
		}{
			{"Enqueue", func() {
				for _, key := range malformed {
					w.controller.Enqueue(dynamiccontroller.ObjectIdentifiers{NamespacedKey: key, GVR: gvr})
				}
			}, "Enqueue"},
			{"MapFunc", func() { w.put(other, "o") }, "MapFunc"},
		} {
			logged := &logBuffer{}
			w.controller = dynamiccontroller.NewDynamicController(logged.logger(0), dynamiccontroller.Config{ResyncPeriod: -1}, w.client,
				dynamiccontroller.WithMetadataClient(w.metadata()))
			stop := w.run()
			c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil })
			w.serve(gvr, c.handle, dynamiccontroller.Watches(other, func(context.Context, dynamiccontroller.Object) []string {
				return append(slices.Clone(malformed), "good")
			}))
			test.report()
			w.controller.Enqueue(dynamiccontroller.ObjectIdentifiers{NamespacedKey: "good", GVR: gvr})
			synctest.Wait()
			if len(c.at) != 1 || len(c.at["good"]) == 0 {
				t.Errorf("%s: calls for %v", test.name, c.at)
			}
			if n := w.status(gvr).MalformedKeys; n != len(malformed) {
				t.Errorf("%s: the status counts %d malformed keys, want %d", test.name, n, len(malformed))
			}
			if n := logged.count("Malformed key"); n != 1 || logged.count(test.from) != 1 {
				t.Errorf("%s: logged %d times: %q", test.name, n, logged.lines)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestLister_AcceptsEveryFormOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{ResyncPeriod: -1})
		gvr := w.types[0]
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(gvr.GroupVersion().WithKind("Type"))
		object.SetName("x")
		if _, err := w.client.Resource(gvr).Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.put(gvr, "y")
		stop := w.run()
		w.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil })
		lister, err := w.controller.Lister(gvr)
		if err != nil {
			t.Fatal(err)
		}
		id := dynamiccontroller.ObjectIdentifiers{NamespacedKey: "x", GVR: gvr}
		for name, get := range map[string]func() (kruntime.Object, error){
			"by name":                  func() (kruntime.Object, error) { return lister.Get("x") },
			"by NamespacedName":        func() (kruntime.Object, error) { return lister.Get(types.NamespacedName{Name: "x"}.String()) },
			"by the parts of its key":  func() (kruntime.Object, error) { return lister.ByNamespace(id.Namespace()).Get(id.Name()) },
			"a namespaced one by key":  func() (kruntime.Object, error) { return lister.Get("default/y") },
			"a namespaced one by name": func() (kruntime.Object, error) { return lister.ByNamespace("default").Get("y") },
		} {
			if _, err := get(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
