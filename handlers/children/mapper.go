package children

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/dynamic-controller/engine/handlers/children/internal/desire"
)

// ErrKindNotSupported is returned for a desired child if the API server does not support all requests for its kind that
// a [Reconciler] needs.
var ErrKindNotSupported = desire.ErrKindNotSupported

// verbMapper is implemented by mappers that return the verbs in discovery, such as restmapper.Mapper.
type verbMapper interface {
	Verbs(resource schema.GroupVersionResource) ([]string, error)
}

// mapper implements desire.Mapper.
type mapper struct{ meta.RESTMapper }

// Verbs returns the verbs of a resource. A mapper without the method Verbs is assumed to contain only kinds that
// support all verbs.
func (m mapper) Verbs(resource schema.GroupVersionResource) ([]string, error) {
	if verbs, ok := m.RESTMapper.(verbMapper); ok {
		return verbs.Verbs(resource)
	}
	return desire.NeededVerbs, nil
}

// IsUnmapped reports whether a lookup failed because the mapper lacks the kind: the kind is unknown, or its group's
// discovery fails.
func (mapper) IsUnmapped(err error) bool { return meta.IsNoMatchError(err) || isUndiscovered(err) }

// isUndiscovered reports whether a lookup failed because the discovery of the group fails, so that the kind can exist.
func isUndiscovered(err error) bool {
	_, failed := discovery.GroupDiscoveryFailedErrorGroups(err)
	return failed
}

func isClusterScoped(mapping *meta.RESTMapping) bool {
	return mapping.Scope.Name() == meta.RESTScopeNameRoot
}
