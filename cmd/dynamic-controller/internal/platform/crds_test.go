package platform

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

func TestWhoseADefinitionIs(t *testing.T) {
	for name, test := range map[string]struct {
		annotations map[string]string
		refused     string // with these words
	}{
		"its own": {annotations: map[string]string{madeForKey: "websites", madeByKey: "u"}},
		"its own, of which the name was taken off": {annotations: map[string]string{madeByKey: "u"}},
		"left behind by one of its name":           {annotations: map[string]string{madeForKey: "websites"}},
		"of one of its name that is lost":          {annotations: map[string]string{madeForKey: "websites", madeByKey: "lost"}},
		"another's":                                {map[string]string{madeForKey: "others", madeByKey: "o"}, `was created for Blueprint "others"`},
		"left behind by another":                   {map[string]string{madeForKey: "others"}, `reserved`},
		"nobody's":                                 {nil, "name it with spec.type.crd"},
	} {
		t.Run(name, func(t *testing.T) {
			b := &blueprint.Blueprint{Spec: making("Wheel")}
			b.Name, b.UID, b.Generation = "websites", "u", 1
			crd := madeFor(t, b, "u")
			crd.Annotations = test.annotations
			p, _ := fakePlatform([]*unstructured.Unstructured{asObject(t, b)}, []*apiextensionsv1.CustomResourceDefinition{crd},
				schema.GroupVersionKind{Group: "parts.example.com", Version: "v1", Kind: "Wheel"})
			add(t, p, stored(t, b, 1))
			if err := p.decide(t.Context(), blueprintID(b.Name)); err != nil {
				t.Fatal(err)
			}
			switch d, _ := p.registry.get(b.Name); {
			case test.refused == "" && (d.refusal != nil || d.running == nil):
				t.Errorf("decided %+v, %+v", d, d.refusal)
			case test.refused != "" && (d.refusal == nil || !strings.Contains(d.refusal.message, test.refused)):
				t.Errorf("refused %+v, want %s", d.refusal, test.refused)
			}
		})
	}
}

func TestATypeMustAllowTheBlueprintThatNamesIt(t *testing.T) {
	for name, test := range map[string]struct {
		annotations map[string]string
		reason      string // of the refusal, if any
		message     string
	}{
		"it allows it":                              {annotations: map[string]string{allowedKey: "websites"}},
		"it was created for one of its name":        {annotations: map[string]string{madeForKey: "websites"}},
		"it allows nobody":                          {nil, reasonConsent, "kubectl annotate crd websites.shop.example.com platform.example.com/allowed-blueprint=websites"},
		"it allows another":                         {map[string]string{allowedKey: "others"}, reasonConsent, "kubectl annotate crd"},
		"it is reserved for another":                {map[string]string{madeForKey: "others"}, reasonNotOurs, "platform.example.com/blueprint- "},
		"it is reserved for another, and allows it": {map[string]string{madeForKey: "others", allowedKey: "websites"}, reasonNotOurs, "platform.example.com/blueprint- "},
	} {
		t.Run(name, func(t *testing.T) {
			b := generations("Wheel")[0]
			crd := madeFor(t, b, "u")
			crd.Annotations = test.annotations
			b.Spec.Type = blueprint.Type{CRD: crd.Name}
			p, _ := fakePlatform([]*unstructured.Unstructured{asObject(t, b)}, []*apiextensionsv1.CustomResourceDefinition{crd}, wheel)
			decide := func() decision {
				t.Helper()
				if err := p.decide(t.Context(), blueprintID(b.Name)); err != nil {
					t.Fatal(err)
				}
				d, _ := p.registry.get(b.Name)
				return d
			}
			if d := decide(); test.reason != "" && (d.refusal == nil || d.refusal.reason != test.reason || !strings.Contains(d.refusal.message, test.message) || d.running != nil) {
				t.Errorf("the refusal is %+v", d.refusal)
			}
			// Only a Blueprint that was accepted before cleans up, and has no finalizers on instances otherwise.
			add(t, p, stored(t, b, 1))
			switch d := decide(); {
			case test.reason == "" && d.onlyCleans():
				t.Errorf("it is not served, but refused: %+v", d.refusal)
			case test.reason == reasonConsent && (d.running == nil || !d.onlyCleans()):
				t.Errorf("without consent this runs: %+v", d.running)
			case test.reason == reasonNotOurs && d.running != nil:
				t.Errorf("on a type of another Blueprint this runs: %+v", d.running)
			}
		})
	}
}

func TestConsentThatIsWithdrawnStopsTheProgram(t *testing.T) {
	b := generations("Wheel")[0]
	crd := madeFor(t, b, "u")
	crd.Annotations = map[string]string{allowedKey: "websites"}
	b.Spec.Type = blueprint.Type{CRD: crd.Name}
	p, _ := fakePlatform([]*unstructured.Unstructured{asObject(t, b)}, []*apiextensionsv1.CustomResourceDefinition{crd}, wheel)
	add(t, p, stored(t, b, 1))
	for _, consents := range []bool{true, false, true} {
		now := crd.DeepCopy()
		if !consents {
			now.Annotations = nil
		}
		_ = p.engines.Definitions.(*fakeEngine).secondary.Update(now)
		if err := p.decide(t.Context(), blueprintID(b.Name)); err != nil {
			t.Fatal(err)
		}
		if d, _ := p.registry.get(b.Name); d.running == nil || d.onlyCleans() == consents {
			t.Errorf("with consent %t this runs: %+v", consents, d.running)
		}
	}
}
