package restmapper

import (
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// snapshotOf returns the snapshot of a mapper that starts with this catalog. It builds each table in one step from all
// of its resources.
func snapshotOf(w *catalog) *snapshot {
	fresh := newCatalog()
	fresh.crds, fresh.services, fresh.discovered = w.crds, w.services, map[string]map[string]*discovered{}
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
				if w.discovered[group][v] == nil && fresh.tableIndex(group, v) < 0 {
					fresh.setTable(group, v, newTable(resourcesOf(w, schema.GroupVersion{Group: group, Version: v})))
				}
			}
		}
	}
	groups := map[string]groupChange{}
	for name := range w.names() {
		groups[name] = groupChange{now: fresh.group(name), unread: fresh.unread(name), touches: &touched{}}
	}
	return emptySnapshot().with(groups)
}

// event changes a catalog and returns the groups that may have changed.
type event func(w *catalog) touchedGroups

func crdEvent(name string, c *crd) event {
	return func(w *catalog) touchedGroups {
		groups := touchedGroups{}
		w.setCRD(name, c, groups)
		return groups
	}
}

func serviceEvent(gv schema.GroupVersion, s *service) event {
	return func(w *catalog) touchedGroups {
		groups := touchedGroups{}
		w.setService(gv, s, groups)
		return groups
	}
}

func documentEvent(core bool, document []documentVersion) event {
	return func(w *catalog) touchedGroups {
		groups, _, _ := w.setDocument(core, document, time.Now())
		return groups
	}
}

var (
	testGroups   = []string{"a.example.com", "a.example.org", "b.example.com", "apps", "apps.example.com"}
	testVersions = []string{"v1", "v2", "v1beta1", "v10", "v2alpha1", "2024-01-01", "foo"}
	testNames    = []string{
		"widgets", "gadgets", "buses", "list", "podlists", "endpoints", "policies", "widgetlists", "buslists",
	}
	testVerbs  = []string{"create", "get", "list", "watch"}
	testShorts = []string{"w", "g", "widget", "po", "list", "gadgets"}
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
		verbs: some(r, testVerbs),
	}
}

func randomCRD(r *rand.Rand) (string, *crd) {
	c := &crd{
		group: pick(r, testGroups), resource: randomResource(r, pick(r, testNames)),
		established: r.IntN(4) > 0, versions: some(r, testVersions),
	}
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
			switch r.IntN(8) {
			case 0:
				d.resources, d.err = nil, errStale
			case 1:
				d.resources, d.unread = nil, true
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
			{
				name: "pods", singular: "pod", kind: "Pod", namespaced: true,
				shortNames: []string{"po"}, categories: []string{"all"},
			},
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

// replay applies an event as a mapper does: it rebuilds only the groups that may have changed. It checks that
// subscribers would receive exactly the changes between the two snapshots.
func replay(t testing.TB, w *catalog, s *snapshot, e event) *snapshot {
	t.Helper()
	changed, got := map[string]groupChange{}, []pending{}
	for name, touches := range e(w) {
		c := groupChange{now: w.group(name), unread: w.unread(name), touches: touches}
		changed[name] = c
		got = append(got, difference(s.groups.Get(name), c.now, touches)...)
	}
	next := s.with(changed)
	if _, isBenchmark := t.(*testing.B); isBenchmark {
		return next
	}
	var want []pending
	for name := range changed {
		want = append(want, difference(s.groups.Get(name), next.groups.Get(name), &touched{whole: true})...)
	}
	byKind := func(a, b pending) int { return strings.Compare(a.kind.String(), b.kind.String()) }
	slices.SortFunc(got, byKind)
	slices.SortFunc(want, byKind)
	if !slices.EqualFunc(got, want, func(a, b pending) bool {
		return a.kind == b.kind && sameMappings(a.old, b.old) && sameMappings(a.now, b.now) &&
			a.oldVerbs == b.oldVerbs && a.nowVerbs == b.nowVerbs
	}) {
		t.Errorf("subscribers receive %v, want %v", got, want)
	}
	return next
}

// sameSnapshots compares the contents of two snapshots.
func sameSnapshots(t testing.TB, got, want *snapshot) {
	t.Helper()
	if !slices.EqualFunc(got.ordered, want.ordered, func(a, b *order) bool { return *a == *b }) {
		t.Errorf("the groups differ:\n\tgot  %v\n\twant %v", got.ordered, want.ordered)
	}
	same := func(what string, got, want any) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s differ:\n\tgot  %v\n\twant %v", what, got, want)
		}
	}
	same("the names of the groups", got.sorted, want.sorted)
	same("names", maps.Collect(got.names.All()), maps.Collect(want.names.All()))
	same("unread versions", maps.Collect(got.unread.All()), maps.Collect(want.unread.All()))
	same("categories", maps.Collect(got.categories.All()), maps.Collect(want.categories.All()))
	if len(maps.Collect(got.groups.All())) != len(want.ordered) {
		t.Errorf("got groups %v", maps.Collect(got.groups.All()))
	}
	for _, o := range want.ordered {
		g, other := got.groups.Get(o.name), want.groups.Get(o.name)
		if g == nil || *g.order != *other.order || len(g.versions) != len(other.versions) {
			t.Errorf("group %s differs:\n\tgot  %v\n\twant %v", o.name, g, other)
			continue
		}
		for i, v := range g.versions {
			w, of := other.versions[i], o.name+"/"+v.version
			same("the versions", v.version, w.version)
			same("kinds of "+of, maps.Collect(v.kinds.All()), maps.Collect(w.kinds.All()))
			same("names of "+of, maps.Collect(v.names.All()), maps.Collect(w.names.All()))
			same("categories of "+of, maps.Collect(v.categories.All()), maps.Collect(w.categories.All()))
			same("the number of resources of "+of, v.count, w.count)
		}
	}
}

// After random events, the snapshot equals that of a mapper that starts with the resulting catalog, and lookups in it
// return the same results as client-go.
func TestM2_SnapshotDoesNotDependOnEventOrder(t *testing.T) {
	seeds := uint64(200)
	if testing.Short() {
		seeds = 20
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 1))
		w, s := newCatalog(), emptySnapshot()
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
