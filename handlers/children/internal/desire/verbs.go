package desire

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/dynamic-controller/engine/internal/requestpath"
)

// ErrKindNotSupported is exported by package children.
var ErrKindNotSupported = errors.New("the API server does not support all requests for the kind")

// NeededVerbs are the verbs that a Reconciler needs for children.
var NeededVerbs = []string{"create", "delete", "get", "list", "patch"}

// checkVerbs returns an error if the API server does not support all needed verbs for a kind.
func checkVerbs(mapping *meta.RESTMapping, supported []string) error {
	misrouted := requestpath.Misrouted(mapping.Resource.GroupResource(), !isClusterScoped(mapping))
	var missing []string
	for _, verb := range NeededVerbs {
		if !slices.Contains(supported, verb) || slices.Contains(misrouted, verb) {
			missing = append(missing, verb)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: it lacks %s", ErrKindNotSupported, strings.Join(missing, ", "))
	}
	return nil
}
