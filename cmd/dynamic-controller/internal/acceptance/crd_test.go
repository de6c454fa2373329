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

func TestValidate_OwnerOfTheCRD(t *testing.T) {
	for name, test := range map[string]struct {
		annotations map[string]string
		refused     string // part of the message of the rejection, or "" if the Blueprint is accepted
	}{
		"created for this Blueprint": {
			annotations: map[string]string{ownerNameAnnotation: "websites", ownerUIDAnnotation: "u"},
		},
		"created for this Blueprint, name removed": {annotations: map[string]string{ownerUIDAnnotation: "u"}},
		"retained for the same name":               {annotations: map[string]string{ownerNameAnnotation: "websites"}},
		"created for a lost Blueprint with the same name": {
			annotations: map[string]string{ownerNameAnnotation: "websites", ownerUIDAnnotation: "lost"},
		},
		"created for another Blueprint": {
			map[string]string{ownerNameAnnotation: "others", ownerUIDAnnotation: "o"}, `reserved for Blueprint "others"`,
		},
		"retained for another Blueprint": {map[string]string{ownerNameAnnotation: "others"}, `reserved`},
		"created by someone else":        {nil, "name it in spec.type.crd"},
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
				t.Errorf("got decision %+v with rejection %+v", d, d.rejection)
			case test.refused != "" && (d.rejection == nil || !strings.Contains(d.rejection.message, test.refused)):
				t.Errorf("got rejection %+v, want message %q", d.rejection, test.refused)
			}
		})
	}
}

func TestValidate_NamedTypeMustAllowTheBlueprint(t *testing.T) {
	for name, test := range map[string]struct {
		annotations map[string]string
		reason      string // of the rejection, or "" if the Blueprint is accepted
		message     string
	}{
		"allows this Blueprint":                      {annotations: map[string]string{allowedAnnotation: "websites"}},
		"created for a Blueprint with the same name": {annotations: map[string]string{ownerNameAnnotation: "websites"}},
		"allows no Blueprint": {
			nil, reasonConsent, "kubectl annotate crd websites.shop.example.com platform.example.com/allowed-blueprint=websites",
		},
		"allows another Blueprint": {
			map[string]string{allowedAnnotation: "others"}, reasonConsent, "kubectl annotate crd",
		},
		"reserved for another Blueprint": {
			map[string]string{ownerNameAnnotation: "others"}, reasonNotOwned, "platform.example.com/blueprint- ",
		},
		"reserved for another Blueprint, but allows this one": {
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
				t.Errorf("got rejection %+v", d.rejection)
			}
			// A Blueprint that was never accepted has added no finalizers to instances, so it has nothing to clean up.
			add(t, p, stored(t, b, 1))
			switch d := decide(); {
			case test.reason == "" && d.cleansUpOnly():
				t.Errorf("the Blueprint is not served: %+v", d.rejection)
			case test.reason == reasonConsent && (d.running == nil || !d.cleansUpOnly()):
				t.Errorf("without consent, got served revision %+v", d.running)
			case test.reason == reasonNotOwned && d.running != nil:
				t.Errorf("on the type of another Blueprint, got served revision %+v", d.running)
			}
		})
	}
}

func TestValidate_WithdrawnConsentStopsServing(t *testing.T) {
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
			t.Errorf("with consent %t, got served revision %+v", consents, d.running)
		}
	}
}
