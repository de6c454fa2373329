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

// benchCRD returns a CRD with two versions.
func benchCRD(group, kind int) *crd {
	name := fmt.Sprintf("kind%d", kind)
	c := &crd{
		group: fmt.Sprintf("g%d.example.com", group), established: true, versions: []string{"v1", "v1beta1"},
		resource: &resource{
			name: name + "s", singular: name, kind: fmt.Sprintf("Kind%d", kind), namespaced: true,
			shortNames: []string{fmt.Sprintf("k%d", kind)}, categories: []string{"all"},
		},
	}
	c.name = c.resource.name + "." + c.group
	return c
}

// benchCatalog returns a catalog with groups of CRDs. All groups contain the same kinds.
func benchCatalog(groups, kinds int) *catalog {
	w := newCatalog()
	for g := range groups {
		for k := range kinds {
			c := benchCRD(g, k)
			w.setCRD(c.name, c, touchedGroups{})
		}
	}
	return w
}

// defaultMapper returns client-go's DefaultRESTMapper with the types in the snapshot.
func defaultMapper(w *catalog, s *snapshot) *meta.DefaultRESTMapper {
	var order []schema.GroupVersion
	for _, o := range s.ordered {
		for _, v := range s.groups.Get(o.name).versions {
			order = append(order, schema.GroupVersion{Group: o.name, Version: v.version})
		}
	}
	m := meta.NewDefaultRESTMapper(order)
	for _, gv := range order {
		for _, r := range resourcesOf(w, gv) {
			m.AddSpecific(gv.WithKind(r.kind), gv.WithResource(r.name), gv.WithResource(r.singular), meta.RESTScopeNamespace)
		}
	}
	return m
}

// BenchmarkLookup measures lookups among 500 kinds in 50 groups with two versions each. It compares a Mapper
// (mapper=here) with client-go's discovery mapper, with client-go's DefaultRESTMapper, and with a DefaultRESTMapper
// that contains a single group.
func BenchmarkLookup(b *testing.B) {
	const groups, kinds = 50, 10
	w := benchCatalog(groups, kinds)
	s := snapshotOf(w)
	var m Mapper
	m.now.Store(s)
	groupResources, err := restmapper.GetAPIGroupResourcesWithContext(b.Context(), discoveryOf(w, s))
	if err != nil {
		b.Fatal(err)
	}
	one := benchCatalog(1, kinds)
	mappers := []struct {
		name string
		meta.RESTMapper
	}{
		{"here", &m},
		{"discovery", restmapper.NewDiscoveryRESTMapper(groupResources)},
		{"default", defaultMapper(w, s)},
		{"default-one-group", defaultMapper(one, snapshotOf(one))},
	}
	gk := schema.GroupKind{Group: "g0.example.com", Kind: "Kind7"}
	for _, query := range []struct {
		name string
		run  func(meta.RESTMapper) error
	}{
		{"RESTMapping", func(m meta.RESTMapper) error { _, err := m.RESTMapping(gk); return err }},
		{"RESTMapping-version", func(m meta.RESTMapper) error { _, err := m.RESTMapping(gk, "v1"); return err }},
		{"RESTMapping-versions", func(m meta.RESTMapper) error { _, err := m.RESTMapping(gk, "v2", "v1beta1"); return err }},
		{"RESTMapping-unknown", func(m meta.RESTMapper) error {
			_, err := m.RESTMapping(schema.GroupKind{Group: gk.Group, Kind: "Other"}, "v1")
			return err
		}},
		{"RESTMappings", func(m meta.RESTMapper) error { _, err := m.RESTMappings(gk); return err }},
		{"RESTMappings-version", func(m meta.RESTMapper) error { _, err := m.RESTMappings(gk, "v1"); return err }},
		{"ResourceSingularizer", func(m meta.RESTMapper) error { _, err := m.ResourceSingularizer("kind7s"); return err }},
	} {
		benchmarkLookup(b, query.name, mappers, query.run)
	}
	for _, query := range []struct {
		name string
		r    schema.GroupVersionResource
	}{
		{"full", schema.GroupVersionResource{Group: gk.Group, Version: "v1", Resource: "kind7s"}},
		{"full-singular", schema.GroupVersionResource{Group: gk.Group, Version: "v1", Resource: "kind7"}},
		{"full-unknown", schema.GroupVersionResource{Group: gk.Group, Version: "v1", Resource: "others"}},
		{"full-unknown-group", schema.GroupVersionResource{Group: "nobody.example.com", Version: "v1", Resource: "kind7s"}},
		{"group", schema.GroupVersionResource{Group: gk.Group, Resource: "kind7s"}},
		{"group-short", schema.GroupVersionResource{Group: gk.Group, Resource: "k7"}},
		{"group-unknown", schema.GroupVersionResource{Group: gk.Group, Resource: "others"}},
		{"group-prefix", schema.GroupVersionResource{Group: "g0", Resource: "kind7s"}},
		{"version", schema.GroupVersionResource{Version: "v1", Resource: "kind7s"}},
		{"name", schema.GroupVersionResource{Resource: "kind7s"}},
		{"name-short", schema.GroupVersionResource{Resource: "k7"}},
		{"name-unknown", schema.GroupVersionResource{Resource: "others"}},
	} {
		benchmarkLookup(b, "KindFor-"+query.name, mappers, func(m meta.RESTMapper) error {
			_, err := m.KindFor(query.r)
			return err
		})
		benchmarkLookup(b, "KindsFor-"+query.name, mappers, func(m meta.RESTMapper) error {
			_, err := m.KindsFor(query.r)
			return err
		})
		benchmarkLookup(b, "ResourceFor-"+query.name, mappers, func(m meta.RESTMapper) error {
			_, err := m.ResourceFor(query.r)
			return err
		})
		benchmarkLookup(b, "ResourcesFor-"+query.name, mappers, func(m meta.RESTMapper) error {
			_, err := m.ResourcesFor(query.r)
			return err
		})
	}
}

// benchmarkLookup runs a lookup on each mapper. Errors are valid results: client-go's mappers do not support short
// names, and a name in several groups is ambiguous to a DefaultRESTMapper.
func benchmarkLookup(b *testing.B, name string, mappers []struct {
	name string
	meta.RESTMapper
}, lookup func(meta.RESTMapper) error) {
	for _, mapper := range mappers {
		b.Run(name+"/mapper="+mapper.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = lookup(mapper.RESTMapper)
			}
		})
	}
}

// BenchmarkChange measures changing the versions of a CRD, and adding and removing a CRD. It runs with two CRDs in one
// group, and with 2,000 CRDs: in one group, in groups of ten, and in groups of one.
func BenchmarkChange(b *testing.B) {
	for _, size := range []struct{ groups, kinds int }{{1, 2}, {1, 2000}, {200, 10}, {2000, 1}} {
		w := benchCatalog(size.groups, size.kinds)
		s := snapshotOf(w)
		versions := *benchCRD(0, size.kinds/2)
		versions.versions = []string{"v1"}
		for _, c := range []struct {
			name   string
			states [2]*crd
		}{
			{"versions", [2]*crd{&versions, benchCRD(0, size.kinds/2)}},
			{"comes-and-goes", [2]*crd{nil, benchCRD(0, size.kinds/2)}},
		} {
			b.Run(fmt.Sprintf("%s/groups=%d/kinds=%d", c.name, size.groups, size.kinds), func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					s = replay(b, w, s, crdEvent(c.states[1].name, c.states[i%2]))
				}
			})
		}
	}
}

// BenchmarkAtRest measures the memory that a mapper retains for 2,000 CRDs with schemas of 60 kB, each in its own
// group.
func BenchmarkAtRest(b *testing.B) {
	const count = 2000
	properties := map[string]any{}
	for i := range 600 {
		properties[fmt.Sprintf("property%d", i)] = map[string]any{
			"type": "string", "description": strings.Repeat("words ", 10),
		}
	}
	schemas, err := json.Marshal(map[string]any{
		"openAPIV3Schema": map[string]any{"type": "object", "properties": properties},
	})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		before := heap()
		var m Mapper
		m.catalog, m.next, m.listed = newCatalog(), emptySnapshot(), make(chan struct{})
		var objects []any
		for i := range count {
			object := &customResourceDefinition{}
			document := fmt.Sprintf(`{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1",
				"metadata":{"name":"widgets.g%d.example.com","resourceVersion":"%d","annotations":{"last-applied":"%s"}},
				"spec":{"group":"g%d.example.com","scope":"Namespaced","versions":[
					{"name":"v1","served":true,"schema":%s},{"name":"v2","served":true}]},
				"status":{"acceptedNames":{"plural":"widgets","singular":"widget","kind":"Widget",
						"listKind":"WidgetList","shortNames":["w"]},
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
