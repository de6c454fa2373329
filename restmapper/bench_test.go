package restmapper

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/restmapper"
)

// benchWorld has groups of CRDs of the same kinds, in two versions.
func benchWorld(groups, kinds int) *world {
	w := newWorld()
	for g := range groups {
		for k := range kinds {
			kind := fmt.Sprintf("Kind%d", k)
			w.setCRD(fmt.Sprintf("kind%ds.g%d.example.com", k, g), &crd{
				name: fmt.Sprintf("kind%ds.g%d.example.com", k, g), group: fmt.Sprintf("g%d.example.com", g),
				established: true, versions: []string{"v1", "v1beta1"},
				resource: &resource{
					name: strings.ToLower(kind) + "s", singular: strings.ToLower(kind), kind: kind, namespaced: true,
					shortNames: []string{fmt.Sprintf("k%d", k)}, categories: []string{"all"},
				},
			})
		}
	}
	return w
}

// BenchmarkLookup is what a lookup costs: here, in client-go's discovery mapper, and in its DefaultRESTMapper of the one
// group alone, which knows of no other groups, priorities or short names.
func BenchmarkLookup(b *testing.B) {
	const groups, kinds = 50, 10
	s := snapshotOf(benchWorld(groups, kinds))
	var m Mapper
	m.now.Store(s)
	single := snapshotOf(benchWorld(1, kinds))
	alone := meta.NewDefaultRESTMapper([]schema.GroupVersion{{Group: "g0.example.com", Version: "v1"}, {Group: "g0.example.com", Version: "v1beta1"}})
	for _, v := range single.groups.get("g0.example.com").versions {
		gv := schema.GroupVersion{Group: "g0.example.com", Version: v.version}
		for _, r := range v.resources {
			alone.AddSpecific(gv.WithKind(r.kind), gv.WithResource(r.name), gv.WithResource(r.singular), meta.RESTScopeNamespace)
		}
	}
	groupResources, err := restmapper.GetAPIGroupResourcesWithContext(b.Context(), serve(s))
	if err != nil {
		b.Fatal(err)
	}
	mappers := []struct {
		name string
		meta.RESTMapper
	}{{"here", &m}, {"client-go/discovery", restmapper.NewDiscoveryRESTMapper(groupResources)}, {"client-go/one-group", alone}}
	gk := schema.GroupKind{Group: "g0.example.com", Kind: "Kind7"}
	full := schema.GroupVersionResource{Group: "g0.example.com", Version: "v1", Resource: "kind7s"}
	part := schema.GroupVersionResource{Group: "g0.example.com", Resource: "kind7s"}
	for _, question := range []struct {
		name string
		ask  func(meta.RESTMapper) error
	}{
		{"RESTMapping", func(m meta.RESTMapper) error { _, err := m.RESTMapping(gk); return err }},
		{"RESTMapping-version", func(m meta.RESTMapper) error { _, err := m.RESTMapping(gk, "v1"); return err }},
		{"KindFor-full", func(m meta.RESTMapper) error { _, err := m.KindFor(full); return err }},
		{"ResourcesFor-full", func(m meta.RESTMapper) error { _, err := m.ResourcesFor(full); return err }},
		{"KindsFor-part", func(m meta.RESTMapper) error { _, err := m.KindsFor(part); return err }},
	} {
		for _, mapper := range mappers {
			b.Run(question.name+"/"+mapper.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := question.ask(mapper.RESTMapper); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkChange is what one CRD's change costs among 2,000: each in a group of its own, ten a group, or all in one.
func BenchmarkChange(b *testing.B) {
	for _, size := range []struct{ groups, kinds int }{{2000, 1}, {200, 10}, {1, 2000}} {
		b.Run(fmt.Sprintf("groups=%d", size.groups), func(b *testing.B) {
			w := benchWorld(size.groups, size.kinds)
			s := snapshotOf(w)
			old := w.crds["g0.example.com"]["kind0s.g0.example.com"]
			changed := *old
			changed.versions = []string{"v1"}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c := old
				if i%2 == 0 {
					c = &changed
				}
				s = replay(w, s, crdEvent(c.name, c))
			}
		})
	}
}

// BenchmarkAtRest is what 2,000 CRDs with schemas of 60 kB keep in memory, each in a group of its own.
func BenchmarkAtRest(b *testing.B) {
	const count = 2000
	properties := map[string]any{}
	for i := range 600 {
		properties[fmt.Sprintf("property%d", i)] = map[string]any{"type": "string", "description": strings.Repeat("words ", 10)}
	}
	schemas, err := json.Marshal(map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": properties}})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		before := heap()
		var m Mapper
		m.world, m.next, m.listed = newWorld(), emptySnapshot(), make(chan struct{})
		var objects []any
		for i := range count {
			object := &customResourceDefinition{}
			document := fmt.Sprintf(`{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1",
				"metadata":{"name":"widgets.g%d.example.com","resourceVersion":"%d","annotations":{"last-applied":"%s"}},
				"spec":{"group":"g%d.example.com","scope":"Namespaced","versions":[
					{"name":"v1","served":true,"schema":%s},{"name":"v2","served":true}]},
				"status":{"acceptedNames":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList","shortNames":["w"]},
					"conditions":[{"type":"Established","status":"True"}]}}`, i, i, strings.Repeat("a", 1000), i, schemas)
			if err := json.Unmarshal([]byte(document), object); err != nil {
				b.Fatal(err)
			}
			object.ObjectMeta = reduceMeta(object.ObjectMeta, "")
			objects = append(objects, object)
		}
		m.replaceCRDs(objects)
		objects = nil
		m.now.Store(m.next)
		after := heap()
		b.ReportMetric(float64(after-before)/(1<<20), "MB-at-rest")
		b.ReportMetric(float64(len(schemas)*count)/(1<<20), "MB-of-schemas")
		runtime.KeepAlive(&m)
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
