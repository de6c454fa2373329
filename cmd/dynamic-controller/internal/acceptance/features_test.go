package acceptance

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

func TestValidate_RejectsDisabledFeatures(t *testing.T) {
	collection := func(r *blueprint.Resource) { r.ForEach = []map[string]string{{"item": "${['a', 'b']}"}} }
	for name, test := range map[string]struct {
		change   func(*blueprint.Resource)
		disabled []Feature
		want     string // part of the message, or "" if the Blueprint is accepted
	}{
		"an unrelated Blueprint": {func(*blueprint.Resource) {}, []Feature{Collections, ExternalReferences}, ""},
		"an enabled feature":     {collection, []Feature{ExternalReferences}, ""},
		"a disabled feature": {
			collection, []Feature{Collections},
			"spec.resources[0].forEach: is disabled by the platform's feature gate Collections",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := generations("Wheel")[0]
			b.Spec.Resources[0].Template["metadata"] = map[string]any{"name": "a"}
			test.change(&b.Spec.Resources[0])
			if len(b.Spec.Resources[0].ForEach) > 0 {
				b.Spec.Resources[0].Template["metadata"] = map[string]any{"name": "${item}"}
			}
			p, _ := newTestController([]*unstructured.Unstructured{asObject(t, b)}, nil, wheel)
			p.config.Disabled = test.disabled
			p.forgetDecisions()
			if err := p.decide(t.Context(), instances.BlueprintID(b.Name)); err != nil && !isRequeue(err) {
				t.Fatal(err)
			}
			d, _ := p.registry.get(b.Name)
			switch {
			case test.want == "" && d.rejection != nil:
				t.Errorf("got rejection %+v", d.rejection)
			case test.want != "" && (d.rejection == nil || !strings.Contains(d.rejection.message, test.want)):
				t.Errorf("got rejection %+v, want %q", d.rejection, test.want)
			}
		})
	}
}

func TestDisabledFeatures_IncludeReferences(t *testing.T) {
	b := &blueprint.Blueprint{Spec: blueprint.Spec{Resources: []blueprint.Resource{
		{ID: "a"}, {ID: "b", ExternalRef: &blueprint.ExternalRef{}},
	}}}
	if got := disabledFeatures(b, []Feature{Collections}); len(got) > 0 {
		t.Errorf("got problems %v", got)
	}
	got := disabledFeatures(b, []Feature{ExternalReferences})
	if len(got) != 1 || got[0].Path != "spec.resources[1].externalRef" {
		t.Errorf("got problems %v", got)
	}
}
