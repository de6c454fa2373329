package acceptance

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

func TestWhoseADefinitionIs(t *testing.T) {
	for name, test := range map[string]struct {
		annotations map[string]string
		refused     string // with these words
	}{
		"its own": {annotations: map[string]string{ownerNameAnnotation: "websites", ownerUIDAnnotation: "u"}},
		"its own, of which the name was taken off": {annotations: map[string]string{ownerUIDAnnotation: "u"}},
		"left behind by one of its name":           {annotations: map[string]string{ownerNameAnnotation: "websites"}},
		"of one of its name that is lost": {
			annotations: map[string]string{ownerNameAnnotation: "websites", ownerUIDAnnotation: "lost"},
		},
		"another's": {
			map[string]string{ownerNameAnnotation: "others", ownerUIDAnnotation: "o"}, `was created for Blueprint "others"`,
		},
		"left behind by another": {map[string]string{ownerNameAnnotation: "others"}, `reserved`},
		"nobody's":               {nil, "name it with spec.type.crd"},
	} {
		t.Run(name, func(t *testing.T) {
			b := &blueprint.Blueprint{Spec: making("Wheel")}
			b.Name, b.UID, b.Generation = "websites", "u", 1
			crd := madeFor(t, b, "u")
			crd.Annotations = test.annotations
			p, _ := newTestController([]*unstructured.Unstructured{asObject(t, b)},
				[]*apiextensionsv1.CustomResourceDefinition{crd},
				schema.GroupVersionKind{Group: "parts.example.com", Version: "v1", Kind: "Wheel"})
			add(t, p, stored(t, b, 1))
			if err := p.decide(t.Context(), instances.BlueprintID(b.Name)); err != nil {
				t.Fatal(err)
			}
			switch d, _ := p.registry.get(b.Name); {
			case test.refused == "" && (d.rejection != nil || d.running == nil):
				t.Errorf("decided %+v, %+v", d, d.rejection)
			case test.refused != "" && (d.rejection == nil || !strings.Contains(d.rejection.message, test.refused)):
				t.Errorf("refused %+v, want %s", d.rejection, test.refused)
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
		"it allows it":                       {annotations: map[string]string{allowedAnnotation: "websites"}},
		"it was created for one of its name": {annotations: map[string]string{ownerNameAnnotation: "websites"}},
		"it allows nobody": {
			nil, reasonConsent, "kubectl annotate crd websites.shop.example.com platform.example.com/allowed-blueprint=websites",
		},
		"it allows another": {
			map[string]string{allowedAnnotation: "others"}, reasonConsent, "kubectl annotate crd",
		},
		"it is reserved for another": {
			map[string]string{ownerNameAnnotation: "others"}, reasonNotOwned, "platform.example.com/blueprint- ",
		},
		"it is reserved for another, and allows it": {
			map[string]string{ownerNameAnnotation: "others", allowedAnnotation: "websites"}, reasonNotOwned,
			"platform.example.com/blueprint- ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := generations("Wheel")[0]
			crd := madeFor(t, b, "u")
			crd.Annotations = test.annotations
			b.Spec.Type = blueprint.Type{CRD: crd.Name}
			p, _ := newTestController([]*unstructured.Unstructured{asObject(t, b)},
				[]*apiextensionsv1.CustomResourceDefinition{crd}, wheel)
			decide := func() decision {
				t.Helper()
				if err := p.decide(t.Context(), instances.BlueprintID(b.Name)); err != nil {
					t.Fatal(err)
				}
				d, _ := p.registry.get(b.Name)
				return d
			}
			if d := decide(); test.reason != "" &&
				(d.rejection == nil || d.rejection.reason != test.reason || !strings.Contains(d.rejection.message, test.message) ||
					d.running != nil) {
				t.Errorf("the refusal is %+v", d.rejection)
			}
			// Only a Blueprint that was accepted before cleans up, and has no finalizers on instances otherwise.
			add(t, p, stored(t, b, 1))
			switch d := decide(); {
			case test.reason == "" && d.cleansUpOnly():
				t.Errorf("it is not served, but refused: %+v", d.rejection)
			case test.reason == reasonConsent && (d.running == nil || !d.cleansUpOnly()):
				t.Errorf("without consent this runs: %+v", d.running)
			case test.reason == reasonNotOwned && d.running != nil:
				t.Errorf("on a type of another Blueprint this runs: %+v", d.running)
			}
		})
	}
}

func TestConsentThatIsWithdrawnStopsTheProgram(t *testing.T) {
	b := generations("Wheel")[0]
	crd := madeFor(t, b, "u")
	crd.Annotations = map[string]string{allowedAnnotation: "websites"}
	b.Spec.Type = blueprint.Type{CRD: crd.Name}
	p, _ := newTestController([]*unstructured.Unstructured{asObject(t, b)},
		[]*apiextensionsv1.CustomResourceDefinition{crd}, wheel)
	add(t, p, stored(t, b, 1))
	for _, consents := range []bool{true, false, true} {
		now := crd.DeepCopy()
		if !consents {
			now.Annotations = nil
		}
		_ = p.engine.Secondary.Update(now)
		if err := p.decide(t.Context(), instances.BlueprintID(b.Name)); err != nil {
			t.Fatal(err)
		}
		if d, _ := p.registry.get(b.Name); d.running == nil || d.cleansUpOnly() == consents {
			t.Errorf("with consent %t this runs: %+v", consents, d.running)
		}
	}
}
