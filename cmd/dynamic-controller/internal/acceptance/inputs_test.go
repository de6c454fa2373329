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

// withField describes objects that have one field.
func withField(name string) *openapi.Schema {
	return &openapi.Schema{Schema: &spec.Schema{SchemaProps: spec.SchemaProps{
		Type: []string{"object"}, Properties: map[string]spec.Schema{"metadata": {}, name: *spec.StringProperty()},
	}}}
}

func TestWhatIsPublishedIsAmongWhatAJudgementIsOf(t *testing.T) {
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
		t.Fatalf("with its field %+v is decided", first)
	}
	if again := decided(); again.revision != first.revision {
		t.Error("the same was judged twice")
	}
	schemas.name = "second"
	second := decided()
	if second.revision == first.revision {
		t.Error("what is published is another, and nothing was judged")
	}
	if second.running != first.running {
		t.Error("what runs was changed for another that does the same")
	}
	schemas.described, schemas.name = withField("width"), "third"
	if third := decided(); third.rejection == nil ||
		!strings.Contains(third.rejection.message, "spec.resources[0].template.size: unknown field in Wheel of "+
			"parts.example.com/v1") ||
		third.running != first.running {
		t.Errorf("without its field %+v is decided", third)
	}
}

// While what is published cannot be read less is checked, and nobody is held up: what is there comes back when it can
// be.
func TestWhatCannotBeReadIsLookedAtAgain(t *testing.T) {
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
			t.Errorf("it is looked at again in %s", delay)
		}
		if d, _ := p.registry.get(b.Name); d.rejection != nil || d.running == nil {
			t.Errorf("%+v is decided", d)
		}
	}
	schemas.err, schemas.described, schemas.name = nil, withField("width"), "first"
	if err := p.decide(t.Context(), instances.BlueprintID(b.Name)); err != nil {
		t.Errorf("when it can be read: %v", err)
	}
	if d, _ := p.registry.get(b.Name); d.rejection == nil || d.running == nil {
		t.Errorf("when it can be read %+v is decided", d)
	}
}

func TestOfAKindThatHasADefinitionThatSaysWhatThereIs(t *testing.T) {
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
		t.Errorf("refused: %s", d.rejection.message)
	}
}

func TestWhatIsPublishedIsAskedForAgainWhenAKindChanges(t *testing.T) {
	p, _ := newTestController(nil, nil)
	p.KindChanged(schema.GroupKind{Group: "parts.example.com", Kind: "Wheel"})
	if got := p.schemas.changed; !slices.Equal(got, []string{"parts.example.com"}) {
		t.Errorf("told of %q", got)
	}
}
