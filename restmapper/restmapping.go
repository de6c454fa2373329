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

// KindFor returns the kind of a resource that may be given in part or by its short name: the first of those it may be.
func (m *Mapper) KindFor(resource schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	s, err := m.snapshot()
	if err != nil {
		return schema.GroupVersionKind{}, err
	}
	return s.kindFor(resource)
}

// KindsFor returns all kinds that a resource, given in part or by its short name, may be, by priority.
func (m *Mapper) KindsFor(resource schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	s, err := m.snapshot()
	if err != nil {
		return nil, err
	}
	return s.kindsFor(resource)
}

// ResourceFor completes a resource that may be given in part, by its singular or by its short name: the first of those
// it may be.
func (m *Mapper) ResourceFor(input schema.GroupVersionResource) (schema.GroupVersionResource, error) {
	s, err := m.snapshot()
	if err != nil {
		return schema.GroupVersionResource{}, err
	}
	return s.resourceFor(input)
}

// ResourcesFor returns all that a resource, given in part, by its singular or by its short name, may be, by priority.
func (m *Mapper) ResourcesFor(input schema.GroupVersionResource) ([]schema.GroupVersionResource, error) {
	s, err := m.snapshot()
	if err != nil {
		return nil, err
	}
	return s.resourcesFor(input)
}

// RESTMapping returns a kind's resource and scope, in the first of the versions that has it, or in the preferred one if
// none are given. The caller may change what it gets.
func (m *Mapper) RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	s, err := m.snapshot()
	if err != nil {
		return nil, err
	}
	return s.mapping(gk, versions)
}

// RESTMappings returns the mappings of a kind in these versions, or in all if none are given, by priority.
func (m *Mapper) RESTMappings(gk schema.GroupKind, versions ...string) ([]*meta.RESTMapping, error) {
	s, err := m.snapshot()
	if err != nil {
		return nil, err
	}
	return s.mappings(gk, versions)
}

// ResourceSingularizer returns the singular of a resource, or what it was given and an error.
func (m *Mapper) ResourceSingularizer(resource string) (string, error) {
	s, err := m.snapshot()
	if err != nil {
		return resource, err
	}
	return s.singular(resource)
}

// Expand returns the resources of a category, each once a version. It knows none before the mapper has synced.
func (m *Mapper) Expand(category string) ([]schema.GroupResource, bool) {
	s, err := m.snapshot()
	if err != nil {
		return nil, false
	}
	return s.category(category)
}

// Reset asks for the discovery documents to be read soon, at most every ten seconds, and does not wait for that: whoever
// resets a mapper that has not found something need not, with this one. The answers stay meanwhile.
func (m *Mapper) Reset() { signal(m.reset) }

// KindForWithContext is KindFor: no lookup waits for anything, so that the context has no meaning.
func (m *Mapper) KindForWithContext(_ context.Context, resource schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	return m.KindFor(resource)
}

// KindsForWithContext is KindsFor: no lookup waits for anything, so that the context has no meaning.
func (m *Mapper) KindsForWithContext(_ context.Context, resource schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	return m.KindsFor(resource)
}

// ResourceForWithContext is ResourceFor: no lookup waits for anything, so that the context has no meaning.
func (m *Mapper) ResourceForWithContext(_ context.Context, input schema.GroupVersionResource) (schema.GroupVersionResource, error) {
	return m.ResourceFor(input)
}

// ResourcesForWithContext is ResourcesFor: no lookup waits for anything, so that the context has no meaning.
func (m *Mapper) ResourcesForWithContext(_ context.Context, input schema.GroupVersionResource) ([]schema.GroupVersionResource, error) {
	return m.ResourcesFor(input)
}

// RESTMappingWithContext is RESTMapping: no lookup waits for anything, so that the context has no meaning.
func (m *Mapper) RESTMappingWithContext(_ context.Context, gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	return m.RESTMapping(gk, versions...)
}

// RESTMappingsWithContext is RESTMappings: no lookup waits for anything, so that the context has no meaning.
func (m *Mapper) RESTMappingsWithContext(_ context.Context, gk schema.GroupKind, versions ...string) ([]*meta.RESTMapping, error) {
	return m.RESTMappings(gk, versions...)
}

// ResourceSingularizerWithContext is ResourceSingularizer: no lookup waits for anything, so that the context has no meaning.
func (m *Mapper) ResourceSingularizerWithContext(_ context.Context, resource string) (string, error) {
	return m.ResourceSingularizer(resource)
}

// ExpandWithContext is Expand: no lookup waits for anything, so that the context has no meaning.
func (m *Mapper) ExpandWithContext(_ context.Context, category string) ([]schema.GroupResource, bool) {
	return m.Expand(category)
}

// ResetWithContext is Reset, which does not wait.
func (m *Mapper) ResetWithContext(context.Context) { m.Reset() }
