package platform

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

func TestAllowance(t *testing.T) {
	for written, want := range map[string]int{
		"": maxAllowance, "0": 0, "1": 1, "16384": maxAllowance, "16385": maxAllowance, "99999999999999999999": maxAllowance,
		"-1": maxAllowance, "x": maxAllowance, "1.5": maxAllowance, " 7": maxAllowance,
	} {
		if got := allowanceOf(instanceWith(written)); got != want {
			t.Errorf("of %q it is %d, want %d", written, got, want)
		}
	}
}

// instanceWith is an instance of the allowance, of none if it is empty.
func instanceWith(allowance string) *unstructured.Unstructured {
	instance := &unstructured.Unstructured{Object: map[string]any{}}
	if allowance != "" {
		instance.SetAnnotations(map[string]string{allowanceKey: allowance})
	}
	return instance
}

// becoming is a program whose instances become one object of each kind. Those of example.com have a
// CustomResourceDefinition.
func becoming(kinds ...schema.GroupVersionKind) *program {
	p := &program{}
	for i, gvk := range kinds {
		p.spec.Resources = append(p.spec.Resources, blueprint.Resource{ID: fmt.Sprintf("r%d", i), Template: map[string]any{
			"apiVersion": gvk.GroupVersion().String(), "kind": gvk.Kind,
		}})
		p.kinds = append(p.kinds, childKind{gvk: gvk, defined: gvk.Group == "example.com"})
	}
	return p
}

var (
	site = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Site"}
	page = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
)

func TestSharesOfAnAllowance(t *testing.T) {
	for name, test := range map[string]struct {
		program *program
		of      int
		want    int
	}{
		"one may be an instance, and has half":          {becoming(site, page), maxAllowance, maxAllowance / 2},
		"each that may be an instance has as much":      {becoming(site, page, site, site), maxAllowance, maxAllowance / 6},
		"what is left over is nobody's":                 {becoming(site, site), 7, 1},
		"of little there is nothing left":               {becoming(site, site), 3, 0},
		"of nothing there is nothing":                   {becoming(site), 0, 0},
		"nothing is shared that nobody can be given":    {becoming(page), 0, 0},
		"and a Blueprint of no resources shares little": {becoming(), 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.program.share(test.of); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

// What a child may become is its instance's to say, whatever the template says; objects that are no instances say nothing.
func TestChildrenAreMarked(t *testing.T) {
	k := &instances{program: becoming(site, page)}
	id := dynamiccontroller.ObjectIdentifiers{NamespacedKey: "shop/flowers"}
	for gvk, want := range map[schema.GroupVersionKind]string{site: "3", page: ""} {
		object := instanceWith("16384")
		object.SetGroupVersionKind(gvk)
		object.SetAnnotations(map[string]string{"theirs": "a", allowanceKey: "16384"})
		got := k.marked(blueprint.Rendered{ID: "r", Object: object}, id, 3).GetAnnotations()
		if got[allowanceKey] != want || got[resourceKey] != "r" || got[instanceKey] != "shop/flowers" || got["theirs"] != "a" {
			t.Errorf("a %s has %v", gvk.Kind, got)
		}
		if _, has := got[allowanceKey]; has != (want != "") {
			t.Errorf("a %s has %v", gvk.Kind, got)
		}
	}
}

func TestNothingIsMadeOfAnInstanceThatMayNotBecomeAsMuch(t *testing.T) {
	k, server := bringing(t, chain(3))
	self := newFlowers(t, server)
	self.SetAnnotations(map[string]string{allowanceKey: "2"})
	step, err := k.bringAbout(t.Context(), flowers, self)
	if err != nil || step.Ready || len(step.Problems) != 1 {
		t.Fatalf("got %+v, %v", step, err)
	}
	if writes := server.took(); len(writes) > 0 {
		t.Errorf("written: %q", writes)
	}
	if told := step.Problems.Error(); !strings.Contains(told, "3 resources are more than the 2 objects") || !strings.HasSuffix(told, "in a circle") {
		t.Errorf("it says %s", told)
	}
	if problems := k.exceeds(3); problems != nil {
		t.Errorf("of an instance that may become as much: %v", problems)
	}
}

// Whatever Blueprints there are, of an instance come at most twice as many objects as its allowance says.
func TestWhatComesOfAnInstanceIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds := []schema.GroupVersionKind{page}
		for i := range rapid.IntRange(1, 5).Draw(t, "types") {
			kinds = append(kinds, schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: fmt.Sprintf("Kind%d", i)})
		}
		blueprints := map[schema.GroupVersionKind]*program{}
		for _, gvk := range kinds[1:] {
			blueprints[gvk] = becoming(rapid.SliceOfN(rapid.SampledFrom(kinds), 0, 20).Draw(t, gvk.Kind)...)
		}
		allowance := rapid.IntRange(0, 300).Draw(t, "allowance")
		made := 0
		var bringAbout func(self *unstructured.Unstructured)
		bringAbout = func(self *unstructured.Unstructured) {
			p := blueprints[self.GroupVersionKind()]
			if p == nil || p.exceeds(allowanceOf(self)) != nil {
				return
			}
			for _, r := range p.spec.Resources {
				if made++; made > 2*allowance {
					t.Fatalf("more than %d objects come of an allowance of %d", 2*allowance, allowance)
				}
				object := &unstructured.Unstructured{Object: map[string]any{}}
				object.SetGroupVersionKind(kindOf(r))
				bringAbout((&instances{program: p}).marked(blueprint.Rendered{ID: r.ID, Object: object}, dynamiccontroller.ObjectIdentifiers{}, p.share(allowanceOf(self))))
			}
		}
		first := instanceWith(fmt.Sprint(allowance))
		first.SetGroupVersionKind(kinds[1])
		bringAbout(first)
	})
}

// As many instances below each other as maxAllowance says, where each becomes the next.
func TestAChainOfInstancesEnds(t *testing.T) {
	p, allowance, below := becoming(site), maxAllowance, 0
	for ; p.exceeds(allowance) == nil && below < 100; below++ {
		allowance = p.share(allowance)
	}
	if below != 15 {
		t.Errorf("there are %d below the first", below)
	}
}
