package acceptance

import (
	"errors"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// withField returns a schema of objects with one field.
func withField(name string) *openapi.Schema {
	return &openapi.Schema{Schema: &spec.Schema{SchemaProps: spec.SchemaProps{
		Type: []string{"object"}, Properties: map[string]spec.Schema{"metadata": {}, name: *spec.StringProperty()},
	}}}
}

func TestValidate_DependsOnPublishedSchemas(t *testing.T) {
	b := &blueprint.Blueprint{Spec: making("Wheel")}
	b.Name, b.UID, b.Generation = "websites", "u", 1
	b.Spec.Resources[0].Template["size"] = "a"
	p, _ := newTestController([]*unstructured.Unstructured{asObject(t, b)},
		[]*apiextensionsv1.CustomResourceDefinition{madeFor(t, b, "u")},
		schema.GroupVersionKind{Group: "parts.example.com", Version: "v1", Kind: "Wheel"})
	add(t, p, stored(t, b, 1))
	schemas := p.schemas
	decided := func() decision {
		t.Helper()
		if err := p.decide(t.Context(), instances.BlueprintID(b.Name)); err != nil {
			t.Fatal(err)
		}
		d, _ := p.registry.get(b.Name)
		return d
	}

	schemas.described, schemas.name = withField("size"), "first"
	first := decided()
	if first.rejection != nil || first.running == nil {
		t.Fatalf("with the field in the schema: got decision %+v", first)
	}
	if again := decided(); again.revision != first.revision {
		t.Error("the Blueprint was validated again although its inputs have not changed")
	}
	schemas.name = "second"
	second := decided()
	if second.revision == first.revision {
		t.Error("the Blueprint was not validated again after a schema changed")
	}
	if second.running != first.running {
		t.Error("the served revision was replaced by an equivalent one")
	}
	schemas.described, schemas.name = withField("width"), "third"
	if third := decided(); third.rejection == nil ||
		!strings.Contains(third.rejection.message, "spec.resources[0].template.size: unknown field in "+
			"parts.example.com/v1 Wheel") ||
		third.running != first.running {
		t.Errorf("without the field in the schema: got decision %+v", third)
	}
}

// While a schema cannot be read, the Blueprint is accepted without checking its templates against the schema.
func TestValidate_ReadsUnavailableSchemasAgain(t *testing.T) {
	b := &blueprint.Blueprint{Spec: making("Wheel")}
	b.Name, b.UID, b.Generation = "websites", "u", 1
	b.Spec.Resources[0].Template["size"] = "a"
	p, _ := newTestController([]*unstructured.Unstructured{asObject(t, b)},
		[]*apiextensionsv1.CustomResourceDefinition{madeFor(t, b, "u")},
		schema.GroupVersionKind{Group: "parts.example.com", Version: "v1", Kind: "Wheel"})
	add(t, p, stored(t, b, 1))
	schemas := p.schemas
	schemas.err = errors.New("the API server is down")
	for range 2 {
		if delay, is := dynamiccontroller.RequeueDelay(p.decide(t.Context(), instances.BlueprintID(b.Name))); !is ||
			delay != SchemaRetryPeriod {
			t.Errorf("got retry delay %s, want %s", delay, SchemaRetryPeriod)
		}
		if d, _ := p.registry.get(b.Name); d.rejection != nil || d.running == nil {
			t.Errorf("got decision %+v", d)
		}
	}
	schemas.err, schemas.described, schemas.name = nil, withField("width"), "first"
	if err := p.decide(t.Context(), instances.BlueprintID(b.Name)); err != nil {
		t.Errorf("with a readable schema: %v", err)
	}
	if d, _ := p.registry.get(b.Name); d.rejection == nil || d.running == nil {
		t.Errorf("with a readable schema: got decision %+v", d)
	}
}

func TestValidate_PrefersTheSchemaOfACRD(t *testing.T) {
	b := &blueprint.Blueprint{Spec: making("Wheel")}
	b.Name, b.UID, b.Generation = "websites", "u", 1
	wheels := &blueprint.Blueprint{Spec: making("Spoke")}
	wheels.Spec.Type.Group, wheels.Spec.Type.Kind = "parts.example.com", "Wheel"
	b.Spec.Resources[0].Template["spec"] = map[string]any{}
	p, _ := newTestController([]*unstructured.Unstructured{asObject(t, b)},
		[]*apiextensionsv1.CustomResourceDefinition{madeFor(t, b, "u"), madeFor(t, wheels, "v")},
		schema.GroupVersionKind{Group: "parts.example.com", Version: "v1", Kind: "Wheel"})
	p.schemas.described = withField("width")
	if err := p.decide(t.Context(), instances.BlueprintID(b.Name)); err != nil {
		t.Fatal(err)
	}
	if d, _ := p.registry.get(b.Name); d.rejection != nil {
		t.Errorf("rejected: %s", d.rejection.message)
	}
}

func TestKindChanged_InvalidatesPublishedSchemas(t *testing.T) {
	p, _ := newTestController(nil, nil)
	p.KindChanged(schema.GroupKind{Group: "parts.example.com", Kind: "Wheel"})
	if got := p.schemas.changed; !slices.Equal(got, []string{"parts.example.com"}) {
		t.Errorf("changed groups: %q", got)
	}
}
