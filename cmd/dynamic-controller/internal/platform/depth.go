package platform

import (
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// maxDepth is how many instances may stand above one. Blueprints may make instances of each other, and those that do so in a
// circle have no end of their own: no Blueprint is wrong alone, and which types another makes may change at any time.
const maxDepth = 16

// depthOf is how many instances stand above one. What somebody else wrote there, and is no such number, is none.
func depthOf(instance *unstructured.Unstructured) int {
	depth, err := strconv.ParseUint(instance.GetAnnotations()[depthKey], 10, 16)
	if err != nil {
		return 0
	}
	return int(depth)
}

// tooDeep stands for an instance from which nothing is made.
var tooDeep = blueprint.Problem{Path: "spec.resources", Reason: fmt.Sprintf(
	"there are more than %d instances above this one, each of which made the next: Blueprints that make instances of each other in a circle have no end", maxDepth)}
