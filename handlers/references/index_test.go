package references

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// modelReference is a reference in the model of the index. A name or an app is set.
type modelReference struct{ from, namespace, name, app string }

// addTo adds the reference to an index.
func (r modelReference) addTo(x index, attempt uint64) {
	s := selection{NamespacedName: types.NamespacedName{Namespace: r.namespace, Name: r.name}}
	var q *query
	if r.name == "" {
		q = newQuery(labels.SelectorFromSet(labels.Set{"app": r.app}))
		s.selector = q.String()
	}
	k := x.kinds[secrets]
	if k == nil {
		k = newKind(secrets)
		x.kinds[secrets] = k
	}
	x.add(identifiers{GVR: widgets, NamespacedKey: r.from}, attempt, k, s, q)
}

// The index returns the same referrers as a list of all references, and stores nothing that is not needed.
func TestIndex_AgreesWithAModel(t *testing.T) {
	for seed := range uint64(50) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { testIndex(t, rand.New(rand.NewPCG(seed, 0))) })
	}
}

func testIndex(t *testing.T, random *rand.Rand) {
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	x, model := newIndex(), map[modelReference]uint64{}
	remove := func(from string, before uint64) {
		for reference, attempt := range model {
			if reference.from == from && attempt < before {
				delete(model, reference)
			}
		}
		for _, k := range x.removeBefore(identifiers{GVR: widgets, NamespacedKey: from}, before) {
			if x.kinds[k.gvr] != nil || len(model) > 0 {
				t.Fatal("a kind was removed that is in use")
			}
		}
	}
	for attempt := range uint64(300) {
		from := pick("a", "b", "c")
		for range random.IntN(4) {
			reference := modelReference{from: from, namespace: pick("", "n1", "n2"), name: pick("", "x", "y")}
			if reference.name == "" {
				reference.app = pick("p", "q")
			}
			reference.addTo(x, attempt)
			model[reference] = attempt
		}
		if random.IntN(2) == 0 {
			remove(from, attempt+uint64(random.IntN(2)))
		}
		compareWithModel(t, x, model)
	}
	for _, from := range []string{"a", "b", "c"} {
		remove(from, 1000)
	}
	if len(x.referrers) > 0 || len(x.kinds) > 0 {
		t.Errorf("the index still holds %+v", x)
	}
}

func compareWithModel(t *testing.T, x index, model map[modelReference]uint64) {
	t.Helper()
	for _, namespace := range []string{"", "n1", "n2"} {
		for _, name := range []string{"x", "y", "z"} {
			for _, app := range []string{"", "p", "q"} {
				got, want := referrersInIndex(x, namespace, name, app), referrersInModel(model, namespace, name, app)
				if !slices.Equal(got, want) {
					t.Fatalf("%s in namespace %q with app %q has the referrers %v, want %v", name, namespace, app, got, want)
				}
			}
		}
	}
}

// referrersOf returns the objects that refer to an object in its given state.
func referrersOf(k *kind, object dynamiccontroller.Object) []identifiers {
	set := labels.Set(object.GetLabels())
	candidates := k.candidates(object.GetNamespace(), object.GetName(), set)
	return idsOf(slices.Values(slices.DeleteFunc(candidates, func(to *target) bool { return !to.matches(set) })))
}

func referrersInIndex(x index, namespace, name, app string) (keys []string) {
	if k := x.kinds[secrets]; k != nil {
		for _, id := range referrersOf(k, newObject(namespace, name, app)) {
			keys = append(keys, id.NamespacedKey)
		}
	}
	slices.Sort(keys)
	return keys
}

func referrersInModel(model map[modelReference]uint64, namespace, name, app string) (keys []string) {
	for r := range model {
		named := r.name == name && r.namespace == namespace
		selected := r.app != "" && r.app == app && (r.namespace == "" || r.namespace == namespace)
		if named || selected {
			keys = append(keys, r.from)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}
