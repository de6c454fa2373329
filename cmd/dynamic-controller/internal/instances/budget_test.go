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

func TestExpansionBudget(t *testing.T) {
	for written, want := range map[string]int{
		"": maxBudget, "0": 0, "1": 1, "16384": maxBudget, "16385": maxBudget, "99999999999999999999": maxBudget,
		"-1": maxBudget, "x": maxBudget, "1.5": maxBudget, " 7": maxBudget,
	} {
		if got := expansionBudget(instanceWith(written)); got != want {
			t.Errorf("expansionBudget with %q = %d, want %d", written, got, want)
		}
	}
}

// instanceWith returns an instance with the given budget annotation, or without one if the budget is empty.
func instanceWith(budget string) *unstructured.Unstructured {
	instance := &unstructured.Unstructured{Object: map[string]any{}}
	if budget != "" {
		instance.SetAnnotations(map[string]string{budgetAnnotation: budget})
	}
	return instance
}

// newRevision returns a revision with one resource of each kind. The kinds of example.com have a
// CustomResourceDefinition.
func newRevision(kinds ...schema.GroupVersionKind) Revision {
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

func TestShare(t *testing.T) {
	for name, test := range map[string]struct {
		revision Revision
		of       int
		want     int
	}{
		"one of two children can be an instance":    {newRevision(site, page), maxBudget, maxBudget / 2},
		"equal shares for three possible instances": {newRevision(site, page, site, site), maxBudget, maxBudget / 6},
		"the remainder is not used":                 {newRevision(site, site), 7, 1},
		"a share of less than one":                  {newRevision(site, site), 3, 0},
		"a budget of zero":                          {newRevision(site), 0, 0},
		"no child can be an instance":               {newRevision(page), 0, 0},
		"no resources":                              {newRevision(), 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.revision.share(test.of); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

// The budget annotation of the template is ignored. Children that cannot be instances have no budget.
func TestMarked_SetsBudget(t *testing.T) {
	k := &Reconciler{Revision: newRevision(site, page)}
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

func TestBudget_ExceededCreatesNothing(t *testing.T) {
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
	if problem := step.Problems.Error(); !strings.Contains(problem, "3 resources exceed the budget of 2 objects") ||
		!strings.HasSuffix(problem, "in a cycle") {
		t.Errorf("got the problem %s", problem)
	}
	if problems := k.exceeds(3, nil); problems != nil {
		t.Errorf("exceeds with a sufficient budget returned %v", problems)
	}
}

// Whatever the Blueprints are, an instance results in at most twice as many objects as its budget.
func TestBudget_LimitsAllDescendants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds := []schema.GroupVersionKind{page}
		for i := range rapid.IntRange(1, 5).Draw(t, "types") {
			kinds = append(kinds, schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: fmt.Sprintf("Kind%d", i)})
		}
		blueprints := map[schema.GroupVersionKind]Revision{}
		for _, gvk := range kinds[1:] {
			blueprints[gvk] = newRevision(rapid.SliceOfN(rapid.SampledFrom(kinds), 0, 20).Draw(t, gvk.Kind)...)
		}
		collections := rapid.MapOfN(rapid.SampledFrom([]string{"r0", "r3", "r7"}), rapid.IntRange(0, 40), 0, 3).
			Draw(t, "collections")
		budget := rapid.IntRange(0, 300).Draw(t, "budget")
		created := 0
		var create func(self *unstructured.Unstructured)
		create = func(self *unstructured.Unstructured) {
			p, has := blueprints[self.GroupVersionKind()]
			if !has || p.exceeds(expansionBudget(self), collections) != nil {
				return
			}
			for _, r := range p.Spec.Resources {
				share, items := p.share(expansionBudget(self)), 1
				if count, is := collections[r.ID]; is {
					share, items = itemShare(share, count), count
				}
				for range items {
					if created++; created > 2*budget {
						t.Fatalf("a budget of %d leads to more than %d objects", budget, 2*budget)
					}
					object := &unstructured.Unstructured{Object: map[string]any{}}
					object.SetGroupVersionKind(kindOf(r))
					rendered := blueprint.Rendered{ID: r.ID, Object: object}
					create((&Reconciler{Revision: p}).marked(self, rendered, share))
				}
			}
		}
		first := instanceWith(fmt.Sprint(budget))
		first.SetGroupVersionKind(kinds[1])
		create(first)
	})
}

// A chain of instances, each the only child of the previous one, ends after the number that the comment of maxBudget
// states.
func TestBudget_ChainEnds(t *testing.T) {
	p, budget, below := newRevision(site), maxBudget, 0
	for ; p.exceeds(budget, nil) == nil && below < 100; below++ {
		budget = p.share(budget)
	}
	if below != 15 {
		t.Errorf("got %d instances below the first", below)
	}
}
