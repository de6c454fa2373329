package dynamiccontroller_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// The key of a cluster-scoped object can have a leading slash, because types.NamespacedName formats it that way.
func TestD2_BothFormsOfAClusterScopedKeyIdentifyOneObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 8, ResyncPeriod: -1})
		gvr, other := f.types[0], f.types[1]
		stop := f.run()
		running := 0
		var keys []string
		handler := func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			keys = append(keys, id.NamespacedKey)
			if running++; running > 1 {
				t.Errorf("%d concurrent calls, want only one at a time", running)
			}
			time.Sleep(time.Second)
			running--
			return nil
		}
		slashed := types.NamespacedName{Name: "x"}.String()
		f.serve(gvr, handler, dynamiccontroller.Watches(other, mapTo(slashed, "x")))
		id := func(key string) dynamiccontroller.ObjectIdentifiers {
			return dynamiccontroller.ObjectIdentifiers{NamespacedKey: key, GVR: gvr}
		}
		f.controller.Enqueue(id("x"))
		synctest.Wait()
		f.controller.Enqueue(id(slashed))
		f.put(other, "o")
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := []string{"x", "x"}; !slices.Equal(keys, want) {
			t.Errorf("the handler was called for %v, want %v: one call, and one for all requests during that call", keys, want)
		}
		stop()
	})
}

// Malformed keys are not reconciled. The first one is logged, and the status counts all of them.
func TestMalformedKeys_AreReported(t *testing.T) {
	malformed := []string{"", "/", "ns/", "a/b/c", "//x", "/x/"}
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			name   string
			report func(f *fixture)
			from   string
		}{
			{"Enqueue", func(f *fixture) {
				for _, key := range malformed {
					f.controller.Enqueue(dynamiccontroller.ObjectIdentifiers{NamespacedKey: key, GVR: f.types[0]})
				}
			}, "Enqueue"},
			{"MapFunc", func(f *fixture) { f.put(f.types[1], "o") }, "MapFunc"},
		} {
			logged := &logBuffer{}
			f := newFixtureWithLogger(t, logged.logger(0), 2, dynamiccontroller.Config{ResyncPeriod: -1})
			gvr, other := f.types[0], f.types[1]
			stop := f.run()
			c := newCalls(succeed)
			f.serve(gvr, c.handle, dynamiccontroller.Watches(other, mapTo(append(slices.Clone(malformed), "good")...)))
			test.report(f)
			f.controller.Enqueue(dynamiccontroller.ObjectIdentifiers{NamespacedKey: "good", GVR: gvr})
			synctest.Wait()
			if len(c.at) != 1 || len(c.at["good"]) == 0 {
				t.Errorf("%s: the handler was called for %v, want only the key %q", test.name, c.at, "good")
			}
			if n := f.status(gvr).MalformedKeys; n != len(malformed) {
				t.Errorf("%s: the status counts %d malformed keys, want %d", test.name, n, len(malformed))
			}
			if n := logged.count("Malformed key"); n != 1 || logged.count(test.from) != 1 {
				t.Errorf("%s: malformed keys were logged %d times, want once: %q", test.name, n, logged.lines)
			}
			stop()
		}
	})
}

func TestLister_AcceptsEveryFormOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{ResyncPeriod: -1})
		gvr := f.types[0]
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(gvr.GroupVersion().WithKind("Type"))
		object.SetName("x")
		if _, err := f.client.Resource(gvr).Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		f.put(gvr, "y")
		stop := f.run()
		f.serve(gvr, succeed)
		lister, err := f.controller.Lister(gvr)
		if err != nil {
			t.Fatal(err)
		}
		id := dynamiccontroller.ObjectIdentifiers{NamespacedKey: "x", GVR: gvr}
		for name, get := range map[string]func() (kruntime.Object, error){
			"by name": func() (kruntime.Object, error) { return lister.Get("x") },
			"by NamespacedName": func() (kruntime.Object, error) {
				return lister.Get(types.NamespacedName{Name: "x"}.String())
			},
			"by the parts of its key": func() (kruntime.Object, error) {
				return lister.ByNamespace(id.Namespace()).Get(id.Name())
			},
			"namespaced, by key":  func() (kruntime.Object, error) { return lister.Get("default/y") },
			"namespaced, by name": func() (kruntime.Object, error) { return lister.ByNamespace("default").Get("y") },
		} {
			if _, err := get(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		stop()
	})
}
