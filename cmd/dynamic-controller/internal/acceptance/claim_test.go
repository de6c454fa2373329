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
	"github.com/dynamic-controller/engine/test/platformtest"
)

func TestClaim_Rank(t *testing.T) {
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
		"created for this Blueprint": {
			claim:  made,
			crd:    crd(ownerNameAnnotation, "a", ownerUIDAnnotation, "1"),
			faulty: true,
			want:   reserved,
		},
		"created for this Blueprint, named in spec.type.crd": {
			claim: naming,
			crd:   crd(ownerNameAnnotation, "a", ownerUIDAnnotation, "1"),
			want:  reserved,
		},
		"retained for the same name": {claim: made, crd: crd(ownerNameAnnotation, "a"), want: reserved},
		"created for a lost Blueprint with the same name": {
			claim: naming,
			crd:   crd(ownerNameAnnotation, "a", ownerUIDAnnotation, "0"),
			want:  reserved,
		},
		"created for another Blueprint": {
			claim:  made,
			crd:    crd(ownerNameAnnotation, "b", ownerUIDAnnotation, "2"),
			stored: true,
			want:   unqualified,
		},
		"retained for another Blueprint": {
			claim:  naming,
			crd:    crd(ownerNameAnnotation, "b"),
			stored: true,
			want:   unqualified,
		},
		"retained for another Blueprint, with consent": {
			claim: naming,
			crd:   crd(ownerNameAnnotation, "b", allowedAnnotation, "a"),
			want:  unqualified,
		},
		"created for another Blueprint, name removed, with consent": {
			claim: naming,
			crd:   crd(ownerUIDAnnotation, "2", allowedAnnotation, "a"),
			want:  unqualified,
		},
		"created by someone else, with consent": {claim: naming, crd: crd(allowedAnnotation, "a"), want: allowed},
		"created by someone else, with consent, not named in spec.type.crd": {
			claim: made,
			crd:   crd(allowedAnnotation, "a"),
			want:  unqualified,
		},
		"created by someone else, with consent for another Blueprint": {
			claim:  naming,
			crd:    crd(allowedAnnotation, "b"),
			stored: true,
			want:   unqualified,
		},
		"created by someone else":           {claim: naming, crd: crd(), stored: true, want: unqualified},
		"new type":                          {claim: made, want: candidate},
		"new type, rejected":                {claim: made, faulty: true, want: unqualified},
		"new type, Blueprint being deleted": {claim: ending, want: unqualified},
		"lost type":                         {claim: made, stored: true, want: established},
		"lost type, rejected":               {claim: made, stored: true, faulty: true, want: established},
		"missing named type":                {claim: naming, want: unqualified},
		"missing named type, served before": {claim: naming, stored: true, want: established},
	} {
		if got := test.claim.rank(test.crd, test.stored, test.faulty); got != test.want {
			t.Errorf("%s: got %d, want %d", name, got, test.want)
		}
	}
}

func TestCompareAge(t *testing.T) {
	older, newer, twin := claim{name: "b", since: 1}, claim{name: "a", since: 2}, claim{name: "c", since: 1}
	for _, pair := range [][2]claim{{older, newer}, {twin, newer}, {older, twin}} {
		if compareAge(pair[0], pair[1]) >= 0 || compareAge(pair[1], pair[0]) <= 0 {
			t.Errorf("%+v is not older than %+v", pair[0], pair[1])
		}
	}
}

func TestClaimOf(t *testing.T) {
	for name, test := range map[string]struct {
		of   blueprint.Type
		want string
	}{
		"named CustomResourceDefinition": {blueprint.Type{CRD: "widgets.example.com"}, "widgets.example.com"},
		"new type":                       {blueprint.Type{Group: "example.com", Kind: "Policy"}, "policies.example.com"},
		"new type with a plural": {
			blueprint.Type{Group: "example.com", Kind: "Ox", Plural: "oxen"}, "oxen.example.com",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := &blueprint.Blueprint{Spec: blueprint.Spec{Type: test.of}}
			if got := claimOf(b).crd; got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// holder uses the current Blueprints in the cache, even if no decision has been made about them.
func TestClaims_Holder(t *testing.T) {
	claiming := func(name, kind string, since int64) *blueprint.Blueprint {
		b := &blueprint.Blueprint{Spec: making("Wheel")}
		b.Name, b.UID, b.Spec.Type.Kind, b.CreationTimestamp = name, typesUID(name), kind, metav1.Unix(since, 0)
		return b
	}
	p, _ := newTestController(nil, nil)
	engine := p.engine
	own := claimOf(claiming("own", "Website", 5))
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
		{name: "only this Blueprint", change: change(claiming("own", "Website", 5))},
		{name: "a Blueprint with another type", change: change(claiming("other", "Page", 1))},
		{name: "an older Blueprint", change: change(claiming("older", "Website", 3)), want: "older"},
		{name: "the oldest Blueprint", change: change(claiming("oldest", "Website", 2)), want: "oldest"},
		{name: "the oldest is rejected", change: decide("oldest", true), want: "older"},
		{name: "both others are rejected", change: decide("older", true)},
		{name: "the oldest is accepted", change: decide("oldest", false), want: "oldest"},
		{name: "the type was created for this Blueprint", change: func() {}, crd: crd, faulty: true},
		{
			name:   "only this Blueprint has a stored revision",
			change: func() { add(t, p, stored(t, claiming("own", "Website", 5), 1)) },
			faulty: true,
		},
		{
			name:   "both Blueprints have stored revisions",
			change: func() { add(t, p, stored(t, claiming("older", "Website", 3), 1)) },
			want:   "older",
		},
		{name: "the older Blueprint now claims another type", change: change(claiming("older", "Page", 3))},
	} {
		step.change()
		if got, err := p.definitions.validator.claims.holder(own, step.crd, step.faulty); err != nil || got != step.want {
			t.Errorf("%s: %q, %v, want %q", step.name, got, err, step.want)
		}
	}
}

// The Blueprints are reconciled in both orders. The younger Blueprint gets the type, and keeps it once its spec is
// stored.
func TestClaims_RejectedBlueprintDoesNotBlockOthers(t *testing.T) {
	for name, order := range map[string][]string{"the older first": {"older", "younger"},
		"the younger first": {"younger", "older"}} {
		t.Run(name, func(t *testing.T) {
			older, younger := generations("Missing")[0], generations("Wheel")[0]
			older.Name, older.UID, older.CreationTimestamp = "older", "o", metav1.Unix(1, 0)
			younger.Name, younger.UID, younger.CreationTimestamp = "younger", "y", metav1.Unix(2, 0)
			p, mapper := newTestController([]*unstructured.Unstructured{asObject(t, older), asObject(t, younger)}, nil, wheel)
			decideAll(t, p, order...)
			if d, _ := p.registry.get("older"); d.rejection == nil {
				t.Error("the older Blueprint is accepted")
			}
			if d, _ := p.registry.get("younger"); d.rejection != nil {
				t.Errorf("the younger Blueprint is rejected: %+v", d.rejection)
			}
			// An older Blueprint that becomes valid later does not get the type.
			add(t, p, stored(t, younger, 1))
			mapper.Add(schema.GroupVersionKind{Group: "parts.example.com", Version: "v1", Kind: "Missing"},
				meta.RESTScopeNamespace)
			decideAll(t, p, order...)
			if d, _ := p.registry.get("older"); d.rejection == nil || d.rejection.reason != reasonClaimed {
				t.Errorf("got rejection of the older Blueprint %+v, want reason TypeClaimed", d.rejection)
			}
			if d, _ := p.registry.get("younger"); d.cleansUpOnly() {
				t.Error("the younger Blueprint is not served")
			}
		})
	}
}

func TestClaims_AreCachedAndBounded(t *testing.T) {
	engine := platformtest.NewEngine()
	c := &claims{cache: cache{engine: engine}, registry: newRegistry(), decoded: &decodedClaims{}}
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
		if n := len(c.decoded.known); n > 30 {
			t.Fatalf("got %d cached claims for 10 Blueprints", n)
		}
	}
}

// decideAll reconciles the Blueprints and those that are enqueued meanwhile. It fails if the queue does not drain.
func decideAll(t *testing.T, p *testController, names ...string) {
	t.Helper()
	engine := p.engine
	for n := 0; len(names) > 0; n++ {
		if n > 10 {
			t.Fatalf("the decisions do not settle: %q are still queued", names)
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

// twins returns two Blueprints that claim the same type. The older one is named a.
func twins(kind string) (a, b *blueprint.Blueprint) {
	a, b = generations(kind)[0], generations(kind)[0]
	a.Name, a.UID, a.CreationTimestamp = "a", "ua", metav1.Unix(1, 0)
	b.Name, b.UID, b.CreationTimestamp = "b", "ub", metav1.Unix(2, 0)
	return a, b
}

func TestClaims_TwoRejectedBlueprintsDoNotRetryForever(t *testing.T) {
	a, b := twins("Missing")
	p, _ := newTestController([]*unstructured.Unstructured{asObject(t, a), asObject(t, b)}, nil)
	decideAll(t, p, "a", "b")
	for _, name := range []string{"a", "b"} {
		d, known := p.registry.get(name)
		if !known || d.rejection == nil || d.rejection.reason != reasonInvalid || d.running != nil {
			t.Errorf("got decision %+[2]v for %[1]s, want a rejection", name, d)
		}
	}
}

// Neither Blueprint is allowed to serve the type any longer, because the annotation was removed. Until the first one is
// gone, it completes the deletions of instances that were requested.
func TestClaims_ReleasedTypeIsServedForTheNextBlueprint(t *testing.T) {
	for name, test := range map[string]struct {
		end    func(toolscache.Indexer, *unstructured.Unstructured)
		served bool
	}{
		"deleted": {func(objects toolscache.Indexer, a *unstructured.Unstructured) { _ = objects.Delete(a) }, true},
		"being deleted": {func(objects toolscache.Indexer, a *unstructured.Unstructured) {
			a.SetDeletionTimestamp(&metav1.Time{Time: deletedAt})
			_ = objects.Update(a)
		}, false},
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
				t.Fatalf("while Blueprint a has the type, got decision %+v for b", d)
			}
			if serving, _ := p.blueprints.status.serving(d); serving.Reason != reasonClaimed {
				t.Errorf("got Serving condition %+v", serving)
			}
			test.end(engine.Objects, asObject(t, a))
			decideAll(t, p, "a")
			if d, _ := p.registry.get("b"); (d.running != nil) != test.served || !d.cleansUpOnly() {
				t.Errorf("after the change of Blueprint a, got decision %+v for b", d)
			}
		})
	}
}
