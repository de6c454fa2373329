package references

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/labels"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// BenchmarkMemory reports the memory for the first reference of an object, to an object that no other one refers to,
// and for each further reference.
func BenchmarkMemory(b *testing.B) {
	const objects = 20_000
	for _, references := range []int{1, 11} {
		b.Run(fmt.Sprintf("references=%d", references), func(b *testing.B) {
			for b.Loop() {
				names := make([]string, objects*references)
				for i := range names {
					names[i] = fmt.Sprintf("secret-%d", i)
				}
				ids := make([]identifiers, objects)
				for i := range ids {
					ids[i] = identifiers{GVR: widgets, NamespacedKey: fmt.Sprintf("default/%d", i)}
				}
				before := heap()
				x, k := newIndex(), newKind(secrets)
				for i, id := range ids {
					for j := range references {
						s := selection{}
						s.Namespace, s.Name = "default", names[i*references+j]
						x.add(id, 1, k, s, nil)
					}
				}
				b.ReportMetric(float64(heap()-before)/objects, "B/object")
				runtime.KeepAlive(x)
				runtime.KeepAlive(ids)
				runtime.KeepAlive(names)
			}
		})
	}
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// BenchmarkSelectors measures the lookups for a change to an object that no selector matches, in its old and its new
// state. Each object has declared a selector of its own.
func BenchmarkSelectors(b *testing.B) {
	for name, form := range map[string]string{
		"one label":              "owner=%d",
		"a shared and one label": "app=x,owner=%d",
		"no required label":      "owner,owner!=%d,app!=x",
	} {
		b.Run(name, func(b *testing.B) {
			client := fake.NewSimpleDynamicClient(k8sruntime.NewScheme())
			tracker, err := New(Config{Controller: dynamiccontroller.NewDynamicController(logr.Discard(),
				dynamiccontroller.Config{}, client), WatchOptions: wholeObjects})
			if err != nil {
				b.Fatal(err)
			}
			for i := range 2000 {
				selector, err := labels.Parse(fmt.Sprintf(form, i))
				if err != nil {
					b.Fatal(err)
				}
				id := identifiers{GVR: widgets, NamespacedKey: fmt.Sprint(i)}
				if err := tracker.Begin(b.Context(), id).Objects(secrets, "default", selector); err != nil {
					b.Fatal(err)
				}
			}
			run := tracker.runs.For(b.Context())
			k := run.index.kinds[secrets]
			k.watch.synced = true
			set := labels.Set{"app": "x", "owner": "none", "tier": "backend"}
			changed := []dynamiccontroller.Object{newObjectWithLabels("s", set), newObjectWithLabels("t", set)}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				object := changed[i%2] // two objects change in turn
				if n := len(run.affected(k, object)) + len(run.affected(k, object)); n != 0 {
					b.Fatalf("%d referrers, want none", n)
				}
			}
			b.StopTimer()
			tracker.ForgetType(widgets)
		})
	}
}

// BenchmarkEvent measures the lookup for a change to an object that one object refers to.
func BenchmarkEvent(b *testing.B) {
	for name, test := range map[string]struct{ named, selectors int }{
		"100 names":                    {named: 100},
		"100000 names":                 {named: 100_000},
		"100000 names, 10 selectors":   {named: 100_000, selectors: 10},
		"100000 names, 1000 selectors": {named: 100_000, selectors: 1000},
	} {
		b.Run(name, func(b *testing.B) {
			x, k := newIndex(), newKind(secrets)
			for i := range test.named {
				s := selection{}
				s.Namespace, s.Name = "default", fmt.Sprint(i)
				x.add(identifiers{GVR: widgets, NamespacedKey: fmt.Sprint(i)}, 1, k, s, nil)
			}
			for i := range test.selectors {
				selector := labels.SelectorFromSet(labels.Set{"app": fmt.Sprint(i)})
				s := selection{selector: selector.String()}
				s.Namespace = "default"
				x.add(identifiers{GVR: widgets, NamespacedKey: fmt.Sprint(i)}, 1, k, s, newQuery(selector))
			}
			object := newObject("default", "7", "none")
			b.ReportAllocs()
			for b.Loop() {
				if n := len(referrersOf(k, object)); n != 1 {
					b.Fatalf("%d referrers, want 1", n)
				}
			}
		})
	}
}
