package acceptance

import (
	"fmt"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/platformtest"
)

func TestStandingOfAClaim(t *testing.T) {
	crd := func(annotations ...string) *apiextensionsv1.CustomResourceDefinition {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		crd.Annotations = map[string]string{}
		for i := 0; i < len(annotations); i += 2 {
			crd.Annotations[annotations[i]] = annotations[i+1]
		}
		return crd
	}
	made, naming := claim{name: "a", uid: "1"}, claim{name: "a", uid: "1", named: true}
	ending := claim{name: "a", uid: "1", deleting: true}
	for name, test := range map[string]struct {
		claim          claim
		crd            *apiextensionsv1.CustomResourceDefinition
		stored, faulty bool
		want           claimRank
	}{
		"its own type": {
			claim:  made,
			crd:    crd(ownerNameAnnotation, "a", ownerUIDAnnotation, "1"),
			faulty: true,
			want:   reserved,
		},
		"its own type, by name": {
			claim: naming,
			crd:   crd(ownerNameAnnotation, "a", ownerUIDAnnotation, "1"),
			want:  reserved,
		},
		"retained for its name": {claim: made, crd: crd(ownerNameAnnotation, "a"), want: reserved},
		"of a lost Blueprint of its name": {
			claim: naming,
			crd:   crd(ownerNameAnnotation, "a", ownerUIDAnnotation, "0"),
			want:  reserved,
		},
		"of another": {
			claim:  made,
			crd:    crd(ownerNameAnnotation, "b", ownerUIDAnnotation, "2"),
			stored: true,
			want:   unqualified,
		},
		"retained for another": {
			claim:  naming,
			crd:    crd(ownerNameAnnotation, "b"),
			stored: true,
			want:   unqualified,
		},
		"retained for another, with consent": {
			claim: naming,
			crd:   crd(ownerNameAnnotation, "b", allowedAnnotation, "a"),
			want:  unqualified,
		},
		"of another, whose name was removed, with consent": {
			claim: naming,
			crd:   crd(ownerUIDAnnotation, "2", allowedAnnotation, "a"),
			want:  unqualified,
		},
		"nobody's, with consent": {claim: naming, crd: crd(allowedAnnotation, "a"), want: allowed},
		"nobody's, with consent, not by name": {
			claim: made,
			crd:   crd(allowedAnnotation, "a"),
			want:  unqualified,
		},
		"nobody's, with consent for another": {
			claim:  naming,
			crd:    crd(allowedAnnotation, "b"),
			stored: true,
			want:   unqualified,
		},
		"nobody's":                                    {claim: naming, crd: crd(), stored: true, want: unqualified},
		"a type that is to be created":                {claim: made, want: candidate},
		"a type that is to be created, refused":       {claim: made, faulty: true, want: unqualified},
		"a type that is to be created, being deleted": {claim: ending, want: unqualified},
		"a type that is to be created again":          {claim: made, stored: true, want: established},
		"a type that is to be created again, refused": {claim: made, stored: true, faulty: true, want: established},
		"a type that somebody else may create":        {claim: naming, want: unqualified},
		"a type that somebody else may create again":  {claim: naming, stored: true, want: established},
	} {
		if got := test.claim.rank(test.crd, test.stored, test.faulty); got != test.want {
			t.Errorf("%s: got %d, want %d", name, got, test.want)
		}
	}
}

func TestOlderClaim(t *testing.T) {
	older, newer, twin := claim{name: "b", since: 1}, claim{name: "a", since: 2}, claim{name: "c", since: 1}
	for _, pair := range [][2]claim{{older, newer}, {twin, newer}, {older, twin}} {
		if compareAge(pair[0], pair[1]) >= 0 || compareAge(pair[1], pair[0]) <= 0 {
			t.Errorf("%+v is not older than %+v", pair[0], pair[1])
		}
	}
}

func TestWhatIsClaimed(t *testing.T) {
	for name, test := range map[string]struct {
		spec map[string]any
		want string
	}{
		"a type that is named": {map[string]any{"crd": "widgets.example.com"}, "widgets.example.com"},
		"a type that is made": {
			map[string]any{"group": "example.com", "kind": "Policy"}, "policies.example.com",
		},
		"a type that is made, with its plural": {
			map[string]any{"group": "example.com", "kind": "Ox", "plural": "oxen"}, "oxen.example.com",
		},
	} {
		t.Run(name, func(t *testing.T) {
			object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"type": test.spec}}}
			if got := claimOf(object).crd; got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// A Blueprint counts as soon as the cache has it, whether it has been decided on or not, and as it is now.
func TestWhoHoldsAType(t *testing.T) {
	claiming := func(name, kind string, since int64) *blueprint.Blueprint {
		b := &blueprint.Blueprint{Spec: making("Wheel")}
		b.Name, b.UID, b.Spec.Type.Kind, b.CreationTimestamp = name, typesUID(name), kind, metav1.Unix(since, 0)
		return b
	}
	p, _ := newTestController(nil, nil)
	engine := p.engine
	own := claimOf(asObject(t, claiming("own", "Website", 5)))
	change := func(b *blueprint.Blueprint) func() {
		return func() { _ = engine.Objects.Add(asObject(t, b)) }
	}
	decide := func(name string, faulty bool) func() {
		return func() { p.registry.set(name, decision{uid: typesUID(name), validation: validation{faulty: faulty}}) }
	}
	crd := madeFor(t, claiming("own", "Website", 5), "own")
	for _, step := range []struct {
		name   string
		change func()
		crd    *apiextensionsv1.CustomResourceDefinition
		faulty bool
		want   string
	}{
		{name: "nobody else", change: change(claiming("own", "Website", 5))},
		{name: "one of another type", change: change(claiming("other", "Page", 1))},
		{name: "one that is older", change: change(claiming("older", "Website", 3)), want: "older"},
		{name: "one that is older still", change: change(claiming("oldest", "Website", 2)), want: "oldest"},
		{name: "the next, when that one is refused", change: decide("oldest", true), want: "older"},
		{name: "nobody else, when both are", change: decide("older", true)},
		{name: "the oldest again, when it is accepted", change: decide("oldest", false), want: "oldest"},
		{name: "the Blueprint for which it was created, whatever is older", change: func() {}, crd: crd, faulty: true},
		{
			name:   "the Blueprint of which a spec is stored",
			change: func() { add(t, p, stored(t, claiming("own", "Website", 5), 1)) },
			faulty: true,
		},
		{
			name:   "the older of two of which specs are stored",
			change: func() { add(t, p, stored(t, claiming("older", "Website", 3), 1)) },
			want:   "older",
		},
		{name: "nobody else, when that one claims another type", change: change(claiming("older", "Page", 3))},
	} {
		step.change()
		if got, err := p.definitions.validator.claims.holder(own, step.crd, step.faulty); err != nil || got != step.want {
			t.Errorf("%s: %q, %v, want %q", step.name, got, err, step.want)
		}
	}
}

// Both Blueprints are decided on in both orders, and the younger one has the type once it is stored.
func TestARefusedBlueprintDoesNotHoldAType(t *testing.T) {
	for name, order := range map[string][]string{"the older first": {"older", "younger"},
		"the younger first": {"younger", "older"}} {
		t.Run(name, func(t *testing.T) {
			older, younger := generations("Missing")[0], generations("Wheel")[0]
			older.Name, older.UID, older.CreationTimestamp = "older", "o", metav1.Unix(1, 0)
			younger.Name, younger.UID, younger.CreationTimestamp = "younger", "y", metav1.Unix(2, 0)
			p, mapper := newTestController([]*unstructured.Unstructured{asObject(t, older), asObject(t, younger)}, nil, wheel)
			decideAll(t, p, order...)
			if d, _ := p.registry.get("older"); d.rejection == nil {
				t.Error("the older is accepted")
			}
			if d, _ := p.registry.get("younger"); d.rejection != nil {
				t.Errorf("the younger is refused: %+v", d.rejection)
			}
			// An older Blueprint that becomes valid later does not take the type.
			add(t, p, stored(t, younger, 1))
			mapper.Add(schema.GroupVersionKind{Group: "parts.example.com", Version: "v1", Kind: "Missing"},
				meta.RESTScopeNamespace)
			decideAll(t, p, order...)
			if d, _ := p.registry.get("older"); d.rejection == nil || d.rejection.reason != reasonClaimed {
				t.Errorf("the older is accepted, or refused for %+v", d.rejection)
			}
			if d, _ := p.registry.get("younger"); d.cleansUpOnly() {
				t.Error("the younger is not served")
			}
		})
	}
}

func TestClaims_AreCachedAndBounded(t *testing.T) {
	engine := platformtest.NewEngine()
	c := &claims{cache: cache{engine: engine}, registry: newRegistry()}
	replace := func() {
		for i := range 10 {
			object := &unstructured.Unstructured{Object: map[string]any{
				"spec": map[string]any{"type": map[string]any{"crd": "a"}},
			}}
			object.SetName(fmt.Sprint(i))
			_ = engine.Objects.Update(object)
		}
	}
	for range 100 {
		replace()
		for range 2 {
			if all, err := c.all(); err != nil || len(all) != 10 {
				t.Fatalf("got %d claims, %v", len(all), err)
			}
		}
		if n := len(c.known); n > 30 {
			t.Fatalf("%d claims of 10 Blueprints are cached", n)
		}
	}
}

// decideAll decides on the Blueprints, and on those that are enqueued meanwhile. It fails if the decisions do not
// settle.
func decideAll(t *testing.T, p *testController, names ...string) {
	t.Helper()
	engine := p.engine
	for n := 0; len(names) > 0; n++ {
		if n > 10 {
			t.Fatalf("the decisions do not settle: %q are decided on again", names)
		}
		engine.Enqueued = nil
		if err := p.decide(t.Context(), instances.BlueprintID(names[0])); err != nil {
			t.Fatal(err)
		}
		names = names[1:]
		for _, id := range engine.Enqueued {
			names = append(names, id.Name())
		}
	}
}

// twins returns two Blueprints of one type. The older one is named a.
func twins(kind string) (a, b *blueprint.Blueprint) {
	a, b = generations(kind)[0], generations(kind)[0]
	a.Name, a.UID, a.CreationTimestamp = "a", "ua", metav1.Unix(1, 0)
	b.Name, b.UID, b.CreationTimestamp = "b", "ub", metav1.Unix(2, 0)
	return a, b
}

func TestTwoRefusedBlueprintsOfOneTypeSettle(t *testing.T) {
	a, b := twins("Missing")
	p, _ := newTestController([]*unstructured.Unstructured{asObject(t, a), asObject(t, b)}, nil)
	decideAll(t, p, "a", "b")
	for _, name := range []string{"a", "b"} {
		d, known := p.registry.get(name)
		if !known || d.rejection == nil || d.rejection.reason != reasonInvalid || d.running != nil {
			t.Errorf("the decision on %s is %+v", name, d)
		}
	}
}

// The annotation that allowed each of them to serve the type was removed.
func TestATypeIsServedWhenAnotherBlueprintReleasesIt(t *testing.T) {
	for name, end := range map[string]func(toolscache.Indexer, *unstructured.Unstructured){
		"because it is gone": func(objects toolscache.Indexer, a *unstructured.Unstructured) { _ = objects.Delete(a) },
		"because it is being deleted": func(objects toolscache.Indexer, a *unstructured.Unstructured) {
			a.SetDeletionTimestamp(&metav1.Time{Time: deletedAt})
			_ = objects.Update(a)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := twins("Wheel")
			crd := madeFor(t, a, "")
			crd.Annotations = nil
			a.Spec.Type, b.Spec.Type = blueprint.Type{CRD: crd.Name}, blueprint.Type{CRD: crd.Name}
			p, _ := newTestController([]*unstructured.Unstructured{asObject(t, a), asObject(t, b)},
				[]*apiextensionsv1.CustomResourceDefinition{crd}, wheel)
			add(t, p, stored(t, a, 1), stored(t, b, 1))
			engine := p.engine
			decideAll(t, p, "a", "b")
			d, known := p.registry.get("b")
			if !known || d.running != nil || !d.lacksConsent() {
				t.Fatalf("while a has the type, the decision on b is %+v", d)
			}
			if serving, _ := p.blueprints.status.serving(d); serving.Reason != reasonClaimed {
				t.Errorf("the Serving condition is %+v", serving)
			}
			end(engine.Objects, asObject(t, a))
			decideAll(t, p, "a")
			if d, _ := p.registry.get("b"); d.running == nil || !d.cleansUpOnly() {
				t.Errorf("when a has released it, the decision on b is %+v", d)
			}
		})
	}
}
