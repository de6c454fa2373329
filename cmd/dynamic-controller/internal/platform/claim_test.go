package platform

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

func TestWhichClaimGoesFirst(t *testing.T) {
	older, newer := claim{name: "b", since: 1, uid: "1"}, claim{name: "a", since: 2, uid: "2"}
	twin := claim{name: "c", since: 1, uid: "3"}
	for name, test := range map[string]struct {
		first, second claim
		maker         string
	}{
		"the older":                                {older, newer, ""},
		"that for which the type was made":         {newer, older, "2"},
		"the older, if it was made for another":    {older, newer, "9"},
		"of one second, the first by name":         {older, twin, ""},
		"of one second, for which it was made":     {twin, older, "3"},
		"the older, for which it was made as well": {older, newer, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			if !test.first.goesBefore(test.second, typesUID(test.maker)) || test.second.goesBefore(test.first, typesUID(test.maker)) {
				t.Errorf("%+v does not go before %+v alone", test.first, test.second)
			}
		})
	}
}

func TestWhatIsClaimed(t *testing.T) {
	for name, test := range map[string]struct {
		spec map[string]any
		want string
	}{
		"a type that is named":                 {map[string]any{"crd": "widgets.example.com"}, "widgets.example.com"},
		"a type that is made":                  {map[string]any{"group": "example.com", "kind": "Policy"}, "policies.example.com"},
		"a type that is made, with its plural": {map[string]any{"group": "example.com", "kind": "Ox", "plural": "oxen"}, "oxen.example.com"},
	} {
		t.Run(name, func(t *testing.T) {
			object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"type": test.spec}}}
			if got := claimOf(object).crd; got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// A Blueprint counts from when the cache has it, whether anything has been decided of it or not, and as it is now.
func TestWhoHoldsAType(t *testing.T) {
	claiming := func(name, kind string, since int64) *unstructured.Unstructured {
		b := &blueprint.Blueprint{Spec: making("Wheel")}
		b.Name, b.UID, b.Spec.Type.Kind, b.CreationTimestamp = name, typesUID(name), kind, metav1.Unix(since, 0)
		return asObject(t, b)
	}
	engine := newFakeEngine()
	p := &Platform{engines: Engines{Definitions: engine}}
	own := claimOf(claiming("own", "Website", 5))
	for _, step := range []struct {
		name   string
		change func() error
		maker  types.UID
		want   string
	}{
		{"nobody else", func() error { return engine.objects.Add(claiming("own", "Website", 5)) }, "", ""},
		{"one of another type", func() error { return engine.objects.Add(claiming("other", "Page", 1)) }, "", ""},
		{"one that is older", func() error { return engine.objects.Add(claiming("older", "Website", 3)) }, "", "older"},
		{"one that is older still", func() error { return engine.objects.Add(claiming("oldest", "Website", 2)) }, "", "oldest"},
		{"who it was made for, whoever is older", func() error { return nil }, "own", ""},
		{"the next, when that one claims another type", func() error { return engine.objects.Update(claiming("oldest", "Page", 2)) }, "", "older"},
		{"nobody else, when that one is gone", func() error { return engine.objects.Delete(claiming("older", "Website", 3)) }, "", ""},
	} {
		if err := step.change(); err != nil {
			t.Fatal(err)
		}
		if got, err := p.holder(own, step.maker); err != nil || got != step.want {
			t.Errorf("%s: %q, %v, want %q", step.name, got, err, step.want)
		}
	}
}

func TestClaimsAreReadOnceAndForgotten(t *testing.T) {
	make10 := func() (all []runtime.Object) {
		for range 10 {
			all = append(all, &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"type": map[string]any{"crd": "a"}}}})
		}
		return all
	}
	var c claims
	first := make10()
	if n := len(c.of("a", first)); n != 10 {
		t.Errorf("there are %d", n)
	}
	for _, object := range first {
		object.(*unstructured.Unstructured).Object = nil // nobody does that
	}
	if n := len(c.of("a", first)); n != 10 {
		t.Errorf("%d are remembered", n)
	}
	for range 100 {
		if n := len(c.of("a", make10())); n != 10 {
			t.Fatalf("of others there are %d", n)
		}
		if n := len(c.known); n > 30 {
			t.Fatalf("%d are remembered of 10", n)
		}
	}
}
