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
		"another's":                                {map[string]string{madeForKey: "others", madeByKey: "o"}, `annotation platform.example.com/blueprint is "others"`},
		"left behind by another":                   {map[string]string{madeForKey: "others"}, `is "others"`},
		"nobody's":                                 {nil, `is "")`},
	} {
		t.Run(name, func(t *testing.T) {
			b := &blueprint.Blueprint{Spec: making("Wheel")}
			b.Name, b.UID, b.Generation = "websites", "u", 1
			crd := madeFor(t, b, "u")
			crd.Annotations = test.annotations
			p, _ := fakePlatform([]*unstructured.Unstructured{asObject(t, b)}, []*apiextensionsv1.CustomResourceDefinition{crd},
				schema.GroupVersionKind{Group: "parts.example.com", Version: "v1", Kind: "Wheel"})
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
