package instances

import (
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// maxBudget is the expansion budget of an instance that was not created by the platform. It far exceeds the needs of
// authors, and etcd can easily store that many objects. In a chain in which each instance has one child, 15 instances
// are created below the first one.
//
// A cycle cannot be attributed to a single Blueprint, and the types that another Blueprint creates can change at any
// time. Therefore, each instance has a budget, and children that can be instances share half of it: with a budget of n,
// at most n + n/2 + n/4 + ... <= 2n objects are created.
const maxBudget = 1 << 14

// expansionBudget returns the number of objects that an instance can create. An invalid value is ignored, because
// anyone who can set the annotation can create instances.
func expansionBudget(instance *unstructured.Unstructured) int {
	budget, err := strconv.ParseUint(instance.GetAnnotations()[budgetAnnotation], 10, 16)
	if err != nil || budget > maxBudget {
		return maxBudget
	}
	return int(budget)
}

// share returns the budget of each child that can be an instance. It counts all templates of such children, including
// excluded ones, so that it does not change while the children are created.
func (r Revision) share(budget int) int {
	n := 0
	for _, resource := range r.Spec.Resources {
		if r.hasCRD(kindOf(resource)) {
			n++
		}
	}
	return budget / max(2*n, 1)
}

// exceeds returns a problem if the Blueprint has more resources than the budget of the instance.
func (r Revision) exceeds(budget int) blueprint.Problems {
	if len(r.Spec.Resources) <= budget {
		return nil
	}
	return blueprint.Problems{{Path: "spec.resources", Reason: fmt.Sprintf(
		"%d resources exceed the budget of %d objects of this instance (annotation %s), so nothing is created. "+
			"One instance can lead to about %d objects at all levels, and instances that are created by others have a share "+
			"of their budget: check for Blueprints that create instances of each other in a cycle",
		len(r.Spec.Resources), budget, budgetAnnotation, 2*maxBudget)}}
}
