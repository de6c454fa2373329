package instances

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

func TestAllowance(t *testing.T) {
	for written, want := range map[string]int{
		"": maxBudget, "0": 0, "1": 1, "16384": maxBudget, "16385": maxBudget, "99999999999999999999": maxBudget,
		"-1": maxBudget, "x": maxBudget, "1.5": maxBudget, " 7": maxBudget,
	} {
		if got := expansionBudget(instanceWith(written)); got != want {
			t.Errorf("of %q it is %d, want %d", written, got, want)
		}
	}
}

// instanceWith is an instance of the allowance, of none if it is empty.
func instanceWith(allowance string) *unstructured.Unstructured {
	instance := &unstructured.Unstructured{Object: map[string]any{}}
	if allowance != "" {
		instance.SetAnnotations(map[string]string{budgetAnnotation: allowance})
	}
	return instance
}

// becoming is a program whose instances become one object of each kind. Those of example.com have a
// CustomResourceDefinition.
func becoming(kinds ...schema.GroupVersionKind) Revision {
	r := Revision{}
	for i, gvk := range kinds {
		r.Spec.Resources = append(r.Spec.Resources, blueprint.Resource{ID: fmt.Sprintf("r%d", i), Template: map[string]any{
			"apiVersion": gvk.GroupVersion().String(), "kind": gvk.Kind,
		}})
		r.Children = append(r.Children, Child{GVK: gvk, HasCRD: gvk.Group == "example.com"})
	}
	return r
}

var (
	site = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Site"}
	page = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
)

func TestSharesOfAnAllowance(t *testing.T) {
	for name, test := range map[string]struct {
		revision Revision
		of       int
		want     int
	}{
		"one may be an instance, and has half":          {becoming(site, page), maxBudget, maxBudget / 2},
		"each that may be an instance has as much":      {becoming(site, page, site, site), maxBudget, maxBudget / 6},
		"what is left over is nobody's":                 {becoming(site, site), 7, 1},
		"of little there is nothing left":               {becoming(site, site), 3, 0},
		"of nothing there is nothing":                   {becoming(site), 0, 0},
		"nothing is shared that nobody can be given":    {becoming(page), 0, 0},
		"and a Blueprint of no resources shares little": {becoming(), 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.revision.share(test.of); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

// What a child may become is its instance's to say, whatever the template says; objects that are no instances say
// nothing.
func TestChildrenAreMarked(t *testing.T) {
	k := &Reconciler{Revision: becoming(site, page)}
	self := &unstructured.Unstructured{}
	self.SetKind("Website")
	self.SetNamespace("shop")
	self.SetName("flowers")
	for gvk, want := range map[schema.GroupVersionKind]string{site: "3", page: ""} {
		object := instanceWith("16384")
		object.SetGroupVersionKind(gvk)
		object.SetAnnotations(map[string]string{"theirs": "a", budgetAnnotation: "16384"})
		got := k.marked(self, blueprint.Rendered{ID: "r", Object: object}, 3).GetAnnotations()
		if got[budgetAnnotation] != want || got[resourceAnnotation] != "r" || got[instanceAnnotation] != "shop/flowers" ||
			got["theirs"] != "a" {
			t.Errorf("a %s has %v", gvk.Kind, got)
		}
		if _, has := got[budgetAnnotation]; has != (want != "") {
			t.Errorf("a %s has %v", gvk.Kind, got)
		}
	}
}

func TestNothingIsMadeOfAnInstanceThatMayNotBecomeAsMuch(t *testing.T) {
	k, server := newTestReconciler(t, chain(3))
	self := newFlowers(t, server)
	self.SetAnnotations(map[string]string{budgetAnnotation: "2"})
	step, err := applyChildren(t, k, self)
	if err != nil || step.Ready || len(step.Problems) != 1 {
		t.Fatalf("got %+v, %v", step, err)
	}
	if writes := server.Took(); len(writes) > 0 {
		t.Errorf("written: %q", writes)
	}
	if told := step.Problems.Error(); !strings.Contains(told, "3 resources exceed the budget of 2 objects") ||
		!strings.HasSuffix(told, "in a cycle") {
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
		blueprints := map[schema.GroupVersionKind]Revision{}
		for _, gvk := range kinds[1:] {
			blueprints[gvk] = becoming(rapid.SliceOfN(rapid.SampledFrom(kinds), 0, 20).Draw(t, gvk.Kind)...)
		}
		allowance := rapid.IntRange(0, 300).Draw(t, "allowance")
		made := 0
		var bringAbout func(self *unstructured.Unstructured)
		bringAbout = func(self *unstructured.Unstructured) {
			p, has := blueprints[self.GroupVersionKind()]
			if !has || p.exceeds(expansionBudget(self)) != nil {
				return
			}
			for _, r := range p.Spec.Resources {
				if made++; made > 2*allowance {
					t.Fatalf("more than %d objects come of an allowance of %d", 2*allowance, allowance)
				}
				object := &unstructured.Unstructured{Object: map[string]any{}}
				object.SetGroupVersionKind(kindOf(r))
				rendered := blueprint.Rendered{ID: r.ID, Object: object}
				bringAbout((&Reconciler{Revision: p}).marked(self, rendered, p.share(expansionBudget(self))))
			}
		}
		first := instanceWith(fmt.Sprint(allowance))
		first.SetGroupVersionKind(kinds[1])
		bringAbout(first)
	})
}

// As many instances below each other as maxBudget says, where each becomes the next.
func TestAChainOfInstancesEnds(t *testing.T) {
	p, allowance, below := becoming(site), maxBudget, 0
	for ; p.exceeds(allowance) == nil && below < 100; below++ {
		allowance = p.share(allowance)
	}
	if below != 15 {
		t.Errorf("there are %d below the first", below)
	}
}
