package restmapper

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// snapshotOf is what a mapper that starts now would make of the world.
func snapshotOf(w *world) *snapshot {
	groups := map[string]*group{}
	for name := range w.names() {
		groups[name] = w.group(name)
	}
	return emptySnapshot().with(groups)
}

// event is one thing that a mapper may be told.
type event func(w *world) (groups map[string]bool)

func crdEvent(name string, c *crd) event {
	return func(w *world) map[string]bool {
		if group, changed := w.setCRD(name, c); changed {
			return map[string]bool{group: true}
		}
		return nil
	}
}

func serviceEvent(gv schema.GroupVersion, s *service) event {
	return func(w *world) map[string]bool {
		if w.setService(gv, s) {
			return map[string]bool{gv.Group: true}
		}
		return nil
	}
}

func documentEvent(core bool, document []documentVersion) event {
	return func(w *world) map[string]bool {
		groups, _, _ := w.setDocument(core, document)
		return groups
	}
}

var (
	testGroups   = []string{"a.example.com", "a.example.org", "b.example.com", "apps", "apps.example.com"}
	testVersions = []string{"v1", "v2", "v1beta1", "v10", "v2alpha1", "2024-01-01", "foo"}
	testNames    = []string{"widgets", "gadgets", "buses", "list", "podlists", "endpoints", "policies"}
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

// replay applies events as a mapper does: each group concerned is made anew, the others are kept.
func replay(w *world, s *snapshot, e event) *snapshot {
	changed := map[string]*group{}
	for name := range e(w) {
		changed[name] = w.group(name)
	}
	return s.with(changed)
}

// sameSnapshots compares everything that can be found in two snapshots.
func sameSnapshots(t testing.TB, got, want *snapshot) {
	t.Helper()
	if !slices.Equal(got.ordered, want.ordered) {
		t.Errorf("the groups differ:\n\tgot  %v\n\twant %v", describeGroups(got), describeGroups(want))
	}
	for i := range shardCount {
		for what, pair := range map[string][2]any{
			"groups": {got.groups.parts[i], want.groups.parts[i]}, "names": {got.names.parts[i], want.names.parts[i]},
			"categories": {got.categories.parts[i], want.categories.parts[i]},
		} {
			a, b := reflect.ValueOf(pair[0]), reflect.ValueOf(pair[1])
			if a.Len()+b.Len() > 0 && !reflect.DeepEqual(pair[0], pair[1]) {
				t.Errorf("%s of shard %d differ:\n\tgot  %v\n\twant %v", what, i, pair[0], pair[1])
			}
		}
	}
}

func describeGroups(s *snapshot) (all []string) {
	for _, o := range s.ordered {
		g := s.groups.get(o.name)
		for _, v := range g.versions {
			line := fmt.Sprint(g.order, " ", v.version, ":")
			for _, r := range v.resources {
				line += fmt.Sprintf(" %+v", *r)
			}
			all = append(all, line)
		}
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
			s = replay(w, s, randomEvent(r))
		}
		sameSnapshots(t, s, snapshotOf(w))
		if seed%20 == 0 {
			compare(t, s)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
