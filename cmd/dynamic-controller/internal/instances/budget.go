package instances

import (
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// maxBudget is the expansion budget of an instance that was not created by the platform. It far exceeds the needs of
// authors, and etcd can easily store that many objects. If each instance creates only one other instance, the chain
// ends after 15 instances below the first one.
//
// Cycles cannot be ruled out when a Blueprint is accepted: a cycle can involve several Blueprints, and the types that a
// Blueprint creates can change at any time. Therefore, each instance has a budget. Children that can be instances share
// half of it. A budget of n allows at most n + n/2 + n/4 + ... <= 2n objects in total.
const maxBudget = 1 << 14

// expansionBudget returns the number of objects that an instance can create. An invalid annotation is ignored. This is
// safe because anyone who can set the annotation can also create instances, which have the maximum budget.
func expansionBudget(instance *unstructured.Unstructured) int {
	budget, err := strconv.ParseUint(instance.GetAnnotations()[budgetAnnotation], 10, 16)
	if err != nil || budget > maxBudget {
		return maxBudget
	}
	return int(budget)
}

// share returns the budget for each resource whose children can be instances. It counts excluded resources too, so that
// the share does not change while the children are being created.
func (r Revision) share(budget int) int {
	n := 0
	for _, resource := range r.Spec.Resources {
		if r.hasCRD(kindOf(resource)) {
			n++
		}
	}
	return budget / max(2*n, 1)
}

// minItems is the minimum number of parts into which the share of a collection is divided.
const minItems = 16

// itemShare divides the share of a resource among the objects of its collection. The number of parts is a power of two,
// so that adding or removing an object rarely changes the budgets of the other objects.
func itemShare(share, items int) int {
	parts := minItems
	for parts < items {
		parts *= 2
	}
	return share / parts
}

// exceeds returns a problem if the instance has more children than its budget allows. Each resource counts as one
// object. A collection counts as its number of objects once that number is known.
func (r Revision) exceeds(budget int, collections map[string]int) blueprint.Problems {
	resources, objects := len(r.Spec.Resources), len(r.Spec.Resources)
	for _, items := range collections {
		objects += max(items, 1) - 1
	}
	if objects <= budget {
		return nil
	}
	what := fmt.Sprintf("%d resources", resources)
	if objects > resources {
		what += fmt.Sprintf(" with %d objects", objects)
	}
	return blueprint.Problems{{Path: "spec.resources", Reason: fmt.Sprintf(
		"%s exceed the budget of %d objects of this instance (annotation %s), so nothing is created; "+
			"check for Blueprints that create instances of each other in a cycle",
		what, budget, budgetAnnotation)}}
}
