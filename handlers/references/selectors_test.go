package references

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	operator "k8s.io/apimachinery/pkg/selection"
)

// randomSelector returns a selector with up to three requirements on the labels a, b and c.
func randomSelector(t *testing.T, random *rand.Rand) labels.Selector {
	selector := labels.NewSelector()
	all := []operator.Operator{
		operator.In, operator.NotIn, operator.Equals, operator.DoubleEquals, operator.NotEquals, operator.Exists,
		operator.DoesNotExist, operator.GreaterThan, operator.LessThan,
	}
	for range random.IntN(4) {
		op := all[random.IntN(len(all))]
		var values []string
		switch op {
		case operator.Exists, operator.DoesNotExist:
		case operator.In, operator.NotIn:
			for range 1 + random.IntN(3) {
				values = append(values, fmt.Sprint(random.IntN(3)))
			}
		default:
			values = []string{fmt.Sprint(random.IntN(3))}
		}
		requirement, err := labels.NewRequirement(string('a'+rune(random.IntN(3))), op, values)
		if err != nil {
			t.Fatal(err)
		}
		selector = selector.Add(*requirement)
	}
	return selector
}

func randomLabels(random *rand.Rand) labels.Set {
	set := labels.Set{}
	for _, key := range []string{"a", "b", "c", "d"} {
		if value := random.IntN(5); value < 4 {
			set[key] = []string{"0", "1", "2", ""}[value]
		}
	}
	return set
}

// The index finds the same targets as an evaluation of all selectors, each of them once, whatever has been added and
// removed before.
func TestSelectorIndex_AgreesWithAnEvaluationOfAllSelectors(t *testing.T) {
	for seed := range uint64(50) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			testSelectorIndex(t, rand.New(rand.NewPCG(seed, 0)))
		})
	}
}

func testSelectorIndex(t *testing.T, random *rand.Rand) {
	x, k := newIndex(), newKind(secrets)
	var ids []identifiers
	for i := range 200 {
		if len(ids) > 0 && random.IntN(3) == 0 {
			at := random.IntN(len(ids))
			x.removeBefore(ids[at], 2)
			ids = slices.Delete(ids, at, at+1)
		} else {
			id := identifiers{GVR: widgets, NamespacedKey: fmt.Sprint(i)}
			ids = append(ids, id)
			q := newQuery(randomSelector(t, random))
			x.add(id, 1, k, selectionFor(q, []string{"", "n"}[random.IntN(2)]), q)
		}
		compareWithAll(t, k, "n", randomLabels(random))
		compareWithAll(t, k, "", randomLabels(random))
	}
	for _, id := range ids {
		x.removeBefore(id, 2)
	}
	if k.isReferredTo() {
		t.Errorf("the index still holds %+v", k.selected)
	}
}

// selectionFor returns the selection for a query.
func selectionFor(q *query, namespace string) (s selection) {
	s.Namespace, s.selector = namespace, q.String()
	return s
}

func compareWithAll(t *testing.T, k *kind, namespace string, set labels.Set) {
	t.Helper()
	want := map[*target]bool{}
	for to := range k.targets() {
		if in := to.selection.Namespace; (in == "" || in == namespace) && to.selector.Matches(set) {
			want[to] = true
		}
	}
	got := map[*target]bool{}
	for _, to := range k.candidates(namespace, "x", set) {
		if got[to] {
			t.Fatalf("the candidate %q is returned twice", to.selection.selector)
		}
		got[to] = true
	}
	for to := range got {
		if !to.matches(set) {
			delete(got, to)
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%v: %d targets, want %d", set, len(got), len(want))
	}
	for to := range want {
		if !got[to] {
			t.Fatalf("%v: the selector %q is missing", set, to.selection.selector)
		}
	}
}

// Only selectors that can match an object are evaluated, even if all of them require a label that the object has.
func TestSelectorIndex_ReturnsFewCandidates(t *testing.T) {
	for name, form := range map[string]string{
		"one label":              "owner=%d",
		"a shared label":         "app=x,owner=%d,tier=backend",
		"one of two values":      "owner in (%[1]d,x%[1]d)",
		"with other operators":   "!other,owner=%d,tier notin (y)",
		"a label of many values": "app in (x,y,z),owner=%d",
	} {
		t.Run(name, func(t *testing.T) {
			x, k := newIndex(), newKind(secrets)
			for i := range 1000 {
				selector, err := labels.Parse(fmt.Sprintf(form, i))
				if err != nil {
					t.Fatal(err)
				}
				q := newQuery(selector)
				x.add(identifiers{GVR: widgets, NamespacedKey: fmt.Sprint(i)}, 1, k, selectionFor(q, "n"), q)
			}
			set := labels.Set{"app": "x", "tier": "backend", "owner": "500"}
			candidates := k.candidates("n", "s", set)
			if !slices.ContainsFunc(candidates, func(to *target) bool { return to.matches(set) }) || len(candidates) > 2 {
				t.Errorf("%d candidates, want the one that matches and at most one more", len(candidates))
			}
		})
	}
}

// The selectors are evaluated once for an update that does not change the labels. They are evaluated again for other
// labels, for another object and after a new selector was declared.
func TestSelectorsAreEvaluatedOncePerUpdate(t *testing.T) {
	f := newFixture(t)
	evaluated := 0
	declare := func(name, selector string) {
		parsed, err := labels.Parse(selector)
		if err != nil {
			t.Fatal(err)
		}
		counted := userSelector{parsed, func() { evaluated++ }}
		id := identifiers{GVR: widgets, NamespacedKey: name}
		if err := f.tracker.Begin(t.Context(), id).Objects(secrets, "default", counted); err != nil {
			t.Fatal(err)
		}
	}
	declare("a", "app!=y")
	run := f.tracker.runs.For(t.Context())
	k := run.index.kinds[secrets]
	k.watch.synced = true
	for _, step := range []struct {
		what, name, app string
		declares        string
		referrers       int
		evaluated       int
	}{
		{what: "the old state", name: "s", app: "x", referrers: 1, evaluated: 1},
		{what: "the new state", name: "s", app: "x", referrers: 1, evaluated: 0},
		{what: "another object", name: "t", app: "x", referrers: 1, evaluated: 1},
		{what: "other labels", name: "t", app: "y", referrers: 0, evaluated: 1},
		{what: "a new selector", name: "t", app: "y", declares: "app=y", referrers: 1, evaluated: 2},
		{what: "the same again", name: "t", app: "y", referrers: 1, evaluated: 0},
	} {
		if step.declares != "" {
			declare("b", step.declares)
		}
		evaluated = 0
		ids := run.affected(k, newObject("default", step.name, step.app))
		if len(ids) != step.referrers || evaluated != step.evaluated {
			t.Errorf("%s: %d referrers and %d evaluations, want %d and %d",
				step.what, len(ids), evaluated, step.referrers, step.evaluated)
		}
	}
	f.tracker.ForgetType(widgets)
}
