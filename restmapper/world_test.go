package restmapper

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// snapshotOf is what a mapper that starts now would make of the world: each table at once, of all its resources.
func snapshotOf(w *world) *snapshot {
	fresh := newWorld()
	fresh.crds, fresh.discovered = w.crds, map[string]map[string]*discovered{}
	for group, versions := range w.discovered {
		fresh.discovered[group] = map[string]*discovered{}
		for version, d := range versions {
			again := *d
			if d.table != nil {
				again.table = newTable(d.resources)
			}
			fresh.discovered[group][version] = &again
		}
	}
	for group, crds := range w.crds {
		for _, c := range crds {
			for _, v := range c.served() {
				if w.discovered[group][v] == nil {
					fresh.setTable(group, v, newTable(resourcesOf(w, schema.GroupVersion{Group: group, Version: v})))
				}
			}
		}
	}
	groups := map[string]groupChange{}
	for name := range w.names() {
		groups[name] = groupChange{now: fresh.group(name), touches: &touched{}}
	}
	return emptySnapshot().with(groups)
}

// event is one thing that a mapper may be told.
type event func(w *world) touchedGroups

func crdEvent(name string, c *crd) event {
	return func(w *world) touchedGroups {
		groups := touchedGroups{}
		w.setCRD(name, c, groups)
		return groups
	}
}

func serviceEvent(gv schema.GroupVersion, s *service) event {
	return func(w *world) touchedGroups {
		groups := touchedGroups{}
		if w.setService(gv, s) {
			groups.whole(gv.Group)
		}
		return groups
	}
}

func documentEvent(core bool, document []documentVersion) event {
	return func(w *world) touchedGroups {
		groups, _, _ := w.setDocument(core, document)
		return groups
	}
}

var (
	testGroups   = []string{"a.example.com", "a.example.org", "b.example.com", "apps", "apps.example.com"}
	testVersions = []string{"v1", "v2", "v1beta1", "v10", "v2alpha1", "2024-01-01", "foo"}
	testNames    = []string{"widgets", "gadgets", "buses", "list", "podlists", "endpoints", "policies", "widgetlists", "buslists"}
	testShorts   = []string{"w", "g", "widget", "po", "list", "gadgets"}
)

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func some[T any](r *rand.Rand, from []T) (picked []T) {
	for _, v := range from {
		if r.IntN(4) == 0 {
			picked = append(picked, v)
		}
	}
	return picked
}

func randomResource(r *rand.Rand, name string) *resource {
	kind := pick(r, []string{"Widget", "Gadget", "WidgetList", "Bus", "Policy", "lower", "Endpoints"})
	return &resource{
		name: name, singular: pick(r, []string{name[:len(name)-1], "widget", "thing", name}), kind: kind,
		namespaced: r.IntN(2) == 0, shortNames: some(r, testShorts), categories: some(r, []string{"all", "mine"}),
	}
}

func randomCRD(r *rand.Rand) (string, *crd) {
	c := &crd{group: pick(r, testGroups), resource: randomResource(r, pick(r, testNames)), established: r.IntN(4) > 0, versions: some(r, testVersions)}
	c.name = c.resource.name + "." + c.group
	return c.name, c
}

func randomDocument(r *rand.Rand) (document []documentVersion) {
	for i, g := range append([]string{"zz.k8s.io"}, some(r, testGroups)...) {
		for j, v := range some(r, testVersions) {
			d := documentVersion{gv: schema.GroupVersion{Group: g, Version: v}, rank: rank{i, j}}
			for _, n := range some(r, testNames) {
				d.resources = append(d.resources, randomResource(r, n))
			}
			document = append(document, d)
		}
	}
	return document
}

func randomEvent(r *rand.Rand) event {
	switch r.IntN(10) {
	case 0:
		return documentEvent(false, randomDocument(r))
	case 1:
		return documentEvent(true, []documentVersion{{gv: schema.GroupVersion{Version: "v1"}, resources: []*resource{
			{name: "pods", singular: "pod", kind: "Pod", namespaced: true, shortNames: []string{"po"}, categories: []string{"all"}},
			{name: "endpoints", singular: "", kind: "Endpoints", namespaced: true},
		}}})
	case 2:
		gv := schema.GroupVersion{Group: pick(r, testGroups), Version: pick(r, testVersions)}
		if r.IntN(2) == 0 {
			return serviceEvent(gv, nil)
		}
		return serviceEvent(gv, &service{groupPriority: r.IntN(3) * 1000, versionPriority: r.IntN(3) * 100})
	case 3, 4:
		name, _ := randomCRD(r)
		return crdEvent(name, nil)
	default:
		return crdEvent(randomCRD(r))
	}
}

// replay applies an event as a mapper does: what it touches is made anew, all else is kept. What subscribers would be
// told must be all that has become of the kinds.
func replay(t testing.TB, w *world, s *snapshot, e event) *snapshot {
	t.Helper()
	changed, told := map[string]groupChange{}, []pending{}
	for name, touches := range e(w) {
		c := groupChange{now: w.group(name), touches: touches}
		changed[name] = c
		told = append(told, difference(s.groups.get(name), c.now, touches)...)
	}
	next := s.with(changed)
	if _, isBenchmark := t.(*testing.B); isBenchmark {
		return next
	}
	var want []pending
	for name := range changed {
		want = append(want, difference(s.groups.get(name), next.groups.get(name), &touched{whole: true})...)
	}
	byKind := func(a, b pending) int { return strings.Compare(a.kind.String(), b.kind.String()) }
	slices.SortFunc(told, byKind)
	slices.SortFunc(want, byKind)
	if !slices.EqualFunc(told, want, func(a, b pending) bool {
		return a.kind == b.kind && sameMappings(a.old, b.old) && sameMappings(a.now, b.now)
	}) {
		t.Errorf("subscribers are told %v, and not %v", told, want)
	}
	return next
}

// sameSnapshots compares everything that can be found in two snapshots.
func sameSnapshots(t testing.TB, got, want *snapshot) {
	t.Helper()
	if !slices.Equal(got.ordered, want.ordered) {
		t.Errorf("the groups differ:\n\tgot  %v\n\twant %v", got.ordered, want.ordered)
	}
	same := func(what string, got, want any) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s differ:\n\tgot  %v\n\twant %v", what, got, want)
		}
	}
	same("the groups' names", flatten(t, &got.sorted), flatten(t, &want.sorted))
	same("names", flattenShards(got.names), flattenShards(want.names))
	same("categories", flattenShards(got.categories), flattenShards(want.categories))
	if len(flattenShards(got.groups)) != len(want.ordered) {
		t.Errorf("the groups are %v", flattenShards(got.groups))
	}
	for _, o := range want.ordered {
		g, other := got.groups.get(o.name), want.groups.get(o.name)
		if g == nil || g.order != other.order || len(g.versions) != len(other.versions) {
			t.Errorf("group %s differs:\n\tgot  %v\n\twant %v", o.name, g, other)
			continue
		}
		for i, v := range g.versions {
			w, of := other.versions[i], o.name+"/"+v.version
			same("the versions", v.version, w.version)
			same("kinds of "+of, flatten(t, &v.kinds), flatten(t, &w.kinds))
			same("names of "+of, flatten(t, &v.names), flatten(t, &w.names))
			same("categories of "+of, flatten(t, &v.categories), flatten(t, &w.categories))
			same("the number of resources of "+of, v.count, w.count)
		}
	}
}

func flattenShards[V any](s *shards[V]) map[string]V {
	all := map[string]V{}
	for _, part := range s.parts {
		if part == nil {
			continue
		}
		for _, e := range part.entries {
			all[e.key] = s.get(e.key)
		}
	}
	return all
}

// flatten also looks after the order and the size of the parts.
func flatten[V any](t testing.TB, s *sorted[V]) map[string]V {
	t.Helper()
	all := map[string]V{}
	keys := s.keys(nil)
	if !slices.IsSorted(keys) || len(slices.Compact(slices.Clone(keys))) != len(keys) {
		t.Errorf("keys are out of order: %q", keys)
	}
	for _, c := range s.chunks {
		if len(c.keys) == 0 || len(c.keys) > mostInChunk || len(c.keys) != len(c.values) {
			t.Errorf("a part of %d keys and %d values", len(c.keys), len(c.values))
		}
	}
	for _, key := range keys {
		all[key] = s.get(key)
	}
	return all
}

// Whatever the order of what happened, the table is that of a start from the state in the end, and answers as client-go
// does.
func TestM2_AnyOrderOfEventsEndsInTheTableOfAFreshStart(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		w, s := newWorld(), emptySnapshot()
		for range 1 + r.IntN(60) {
			s = replay(t, w, s, randomEvent(r))
		}
		sameSnapshots(t, s, snapshotOf(w))
		if seed%20 == 0 {
			compare(t, w, s)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
