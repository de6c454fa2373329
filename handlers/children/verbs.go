package children

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/internal/requestpath"
)

// ErrKindNotSupported is returned for a desired child if the API server does not support all requests for its kind that
// a [Reconciler] needs.
var ErrKindNotSupported = errors.New("the API server does not support all requests for the kind")

// neededVerbs are the verbs that a Reconciler needs for children.
var neededVerbs = []string{"create", "delete", "get", "list", "patch"}

// verbMapper is implemented by mappers that return the verbs in discovery, such as restmapper.Mapper.
type verbMapper interface {
	Verbs(resource schema.GroupVersionResource) ([]string, error)
}

// checkVerbs returns an error if the API server does not support all needed verbs for a kind. A mapper without the
// method Verbs is assumed to contain only kinds that support all verbs.
func (r *Reconciler) checkVerbs(mapping *meta.RESTMapping) error {
	misrouted := requestpath.Misrouted(mapping.Resource.GroupResource(), !isClusterScoped(mapping))
	supported := neededVerbs
	if mapper, ok := r.config.Mapper.(verbMapper); ok {
		var err error
		if supported, err = mapper.Verbs(mapping.Resource); err != nil {
			return fmt.Errorf("find the verbs: %w", err)
		}
	}
	var missing []string
	for _, verb := range neededVerbs {
		if !slices.Contains(supported, verb) || slices.Contains(misrouted, verb) {
			missing = append(missing, verb)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: it lacks %s", ErrKindNotSupported, strings.Join(missing, ", "))
	}
	return nil
}
