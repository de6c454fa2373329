package restmapper

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/restmapper"
)

var (
	_ meta.ResettableRESTMapper              = (*Mapper)(nil)
	_ meta.ResettableRESTMapperWithContext   = (*Mapper)(nil)
	_ restmapper.CategoryExpander            = (*Mapper)(nil)
	_ restmapper.CategoryExpanderWithContext = (*Mapper)(nil)
)

func (m *Mapper) snapshot() (*snapshot, error) {
	if s := m.now.Load(); s != nil {
		return s, nil
	}
	return nil, ErrNotSynced
}

// KindFor returns the kind of a resource. The resource can be partial, a singular or a short name. If several kinds
// match, KindFor returns the one with the highest priority.
func (m *Mapper) KindFor(resource schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	s, err := m.snapshot()
	if err != nil {
		return schema.GroupVersionKind{}, err
	}
	kind, err := s.kindFor(resource)
	return kind, s.decidedFor(err, resource)
}

// KindsFor returns all kinds that match a resource, in order of priority. The resource can be partial, a singular or a
// short name.
func (m *Mapper) KindsFor(resource schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	s, err := m.snapshot()
	if err != nil {
		return nil, err
	}
	kinds, err := s.kindsFor(resource)
	return kinds, s.decidedFor(err, resource)
}

// ResourceFor returns the full resource for a partial resource, a singular or a short name. If several resources match,
// ResourceFor returns the one with the highest priority.
func (m *Mapper) ResourceFor(input schema.GroupVersionResource) (schema.GroupVersionResource, error) {
	s, err := m.snapshot()
	if err != nil {
		return schema.GroupVersionResource{}, err
	}
	resource, err := s.resourceFor(input)
	return resource, s.decidedFor(err, input)
}

// ResourcesFor returns all resources that match a partial resource, a singular or a short name, in order of priority.
func (m *Mapper) ResourcesFor(input schema.GroupVersionResource) ([]schema.GroupVersionResource, error) {
	s, err := m.snapshot()
	if err != nil {
		return nil, err
	}
	resources, err := s.resourcesFor(input)
	return resources, s.decidedFor(err, input)
}

// RESTMapping returns the resource and scope of a kind in the first of the given versions that contains the kind. If no
// versions are given, it returns the mapping of the preferred version. The caller can modify the result.
func (m *Mapper) RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	s, err := m.snapshot()
	if err != nil {
		return nil, err
	}
	mapping, err := s.mapping(gk, versions)
	return mapping, s.decided(err, gk.Group, versions...)
}

// RESTMappings returns the mappings of a kind in the given versions, or in all versions if none are given, in order of
// priority. The caller can modify the result.
func (m *Mapper) RESTMappings(gk schema.GroupKind, versions ...string) ([]*meta.RESTMapping, error) {
	s, err := m.snapshot()
	if err != nil {
		return nil, err
	}
	mappings, err := s.mappings(gk, versions)
	return mappings, s.decided(err, gk.Group, versions...)
}

// Verbs returns the verbs that the API server supports for a resource, such as "list". The group, the version and the
// plural must be set. Types of CRDs support all verbs. Verbs returns a NoMatch error if the resource is unknown. The
// caller can modify the result.
func (m *Mapper) Verbs(resource schema.GroupVersionResource) ([]string, error) {
	s, err := m.snapshot()
	if err != nil {
		return nil, err
	}
	verbs, err := s.verbs(resource)
	return verbs, s.decided(err, resource.Group, resource.Version)
}

// ResourceSingularizer returns the singular of a resource. If it returns an error, it also returns its argument.
func (m *Mapper) ResourceSingularizer(resource string) (string, error) {
	s, err := m.snapshot()
	if err != nil {
		return resource, err
	}
	return s.singular(resource)
}

// Expand returns the resources of a category. Each resource is listed once for each of its versions. Expand returns
// false if there are no such resources, or if the mapper has not synced.
func (m *Mapper) Expand(category string) ([]schema.GroupResource, bool) {
	s, err := m.snapshot()
	if err != nil {
		return nil, false
	}
	return s.category(category)
}

// Reset requests that the discovery documents be read again soon, at most once every ten seconds. It does not block,
// and lookups continue to return the current data. Unlike with other mappers, callers do not need to call Reset after a
// NoMatch error. [Mapper.Refresh] waits for the result and returns errors.
func (m *Mapper) Reset() { signal(m.reset) }

// KindForWithContext is like KindFor. It ignores the context, because lookups do not block.
func (m *Mapper) KindForWithContext(
	_ context.Context, resource schema.GroupVersionResource,
) (schema.GroupVersionKind, error) {
	return m.KindFor(resource)
}

// KindsForWithContext is like KindsFor. It ignores the context, because lookups do not block.
func (m *Mapper) KindsForWithContext(
	_ context.Context, resource schema.GroupVersionResource,
) ([]schema.GroupVersionKind, error) {
	return m.KindsFor(resource)
}

// ResourceForWithContext is like ResourceFor. It ignores the context, because lookups do not block.
func (m *Mapper) ResourceForWithContext(
	_ context.Context, input schema.GroupVersionResource,
) (schema.GroupVersionResource, error) {
	return m.ResourceFor(input)
}

// ResourcesForWithContext is like ResourcesFor. It ignores the context, because lookups do not block.
func (m *Mapper) ResourcesForWithContext(
	_ context.Context, input schema.GroupVersionResource,
) ([]schema.GroupVersionResource, error) {
	return m.ResourcesFor(input)
}

// RESTMappingWithContext is like RESTMapping. It ignores the context, because lookups do not block.
func (m *Mapper) RESTMappingWithContext(
	_ context.Context, gk schema.GroupKind, versions ...string,
) (*meta.RESTMapping, error) {
	return m.RESTMapping(gk, versions...)
}

// RESTMappingsWithContext is like RESTMappings. It ignores the context, because lookups do not block.
func (m *Mapper) RESTMappingsWithContext(
	_ context.Context, gk schema.GroupKind, versions ...string,
) ([]*meta.RESTMapping, error) {
	return m.RESTMappings(gk, versions...)
}

// ResourceSingularizerWithContext is like ResourceSingularizer. It ignores the context, because lookups do not block.
func (m *Mapper) ResourceSingularizerWithContext(_ context.Context, resource string) (string, error) {
	return m.ResourceSingularizer(resource)
}

// ExpandWithContext is like Expand. It ignores the context, because lookups do not block.
func (m *Mapper) ExpandWithContext(_ context.Context, category string) ([]schema.GroupResource, bool) {
	return m.Expand(category)
}

// ResetWithContext is like Reset. It ignores the context, because Reset does not block.
func (m *Mapper) ResetWithContext(context.Context) { m.Reset() }
