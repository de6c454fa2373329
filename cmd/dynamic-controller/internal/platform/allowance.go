package platform

import (
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// maxAllowance is the allowance of an instance that no other made. It is about half of what may come of one, at all levels:
// more than anybody means to make at once, and little to etcd. A chain, of which each has one child, ends 15 below the first.
//
// Blueprints may make instances of each other, in a circle or many of many. No Blueprint is wrong alone, and which types
// another makes may change at any time. So each instance may become as many objects as its allowance says, and those of its
// children that may be instances have a half of it between them: of allowance a come at most a + a/2 + a/4 + ... <= 2a.
const maxAllowance = 1 << 14

// allowanceOf is how many objects an instance may become. What is no allowance is as if nothing were written: only who may
// write instances writes there, and may make as many as they like.
func allowanceOf(instance *unstructured.Unstructured) int {
	allowance, err := strconv.ParseUint(instance.GetAnnotations()[allowanceKey], 10, 16)
	if err != nil || allowance > maxAllowance {
		return maxAllowance
	}
	return int(allowance)
}

// share is the allowance of each child that may be an instance. All templates of such children count, wanted or not:
// otherwise a share would change while an instance comes about.
func (p *program) share(allowance int) int {
	n := 0
	for _, r := range p.spec.Resources {
		if p.isDefined(kindOf(r)) {
			n++
		}
	}
	return allowance / max(2*n, 1)
}

// isDefined tells whether a kind has a CustomResourceDefinition.
func (p *program) isDefined(gvk schema.GroupVersionKind) bool {
	return slices.ContainsFunc(p.kinds, func(kind childKind) bool { return kind.defined && kind.gvk == gvk })
}

// exceeds says why nothing is made of an instance with the allowance, empty if something is.
func (p *program) exceeds(allowance int) blueprint.Problems {
	if len(p.spec.Resources) <= allowance {
		return nil
	}
	return blueprint.Problems{{Path: "spec.resources", Reason: fmt.Sprintf(
		"nothing is made, for %d resources are more than the %d objects that this instance may become (annotation %s). Of one instance come about %d at all levels, "+
			"and each that others made has a share: one above makes too many, or Blueprints make instances of each other in a circle",
		len(p.spec.Resources), allowance, allowanceKey, 2*maxAllowance)}}
}
