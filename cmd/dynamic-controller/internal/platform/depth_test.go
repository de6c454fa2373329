package platform

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

func TestDepth(t *testing.T) {
	for written, want := range map[string]int{"": 0, "0": 0, "16": 16, "-1": 0, "x": 0, "65535": 65535, "99999999999999999999": 0} {
		instance := &unstructured.Unstructured{Object: map[string]any{}}
		instance.SetAnnotations(map[string]string{depthKey: written})
		if got := depthOf(instance); got != want {
			t.Errorf("of %q it is %d, want %d", written, got, want)
		}
	}
}

// What may be an instance of a Blueprint is one deeper, whatever the template says; other objects have no depth.
func TestChildrenAreMarked(t *testing.T) {
	site, page := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Site"}, schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	k := &instances{program: &program{kinds: []childKind{{gvk: site, defined: true}, {gvk: page}}}}
	self := &unstructured.Unstructured{Object: map[string]any{}}
	self.SetAnnotations(map[string]string{depthKey: "3"})
	id := dynamiccontroller.ObjectIdentifiers{NamespacedKey: "shop/flowers"}
	for gvk, want := range map[schema.GroupVersionKind]string{site: "4", page: ""} {
		object := &unstructured.Unstructured{Object: map[string]any{}}
		object.SetGroupVersionKind(gvk)
		object.SetAnnotations(map[string]string{"theirs": "a"})
		if gvk == site {
			object.SetAnnotations(map[string]string{"theirs": "a", depthKey: "0"})
		}
		got := k.marked(blueprint.Rendered{ID: "r", Object: object}, id, self).GetAnnotations()
		if got[depthKey] != want || got[resourceKey] != "r" || got[instanceKey] != "shop/flowers" || got["theirs"] != "a" {
			t.Errorf("a %s has %v", gvk.Kind, got)
		}
	}
}

func TestNothingIsMadeOfAnInstanceThatIsTooDeep(t *testing.T) {
	self := &unstructured.Unstructured{Object: map[string]any{}}
	self.SetAnnotations(map[string]string{depthKey: "17"})
	step, err := (&instances{}).bringAbout(t.Context(), dynamiccontroller.ObjectIdentifiers{}, self)
	if err != nil || step.Ready || !strings.Contains(step.Problems.Error(), "more than 16 instances above") {
		t.Errorf("got %+v, %v", step, err)
	}
}
