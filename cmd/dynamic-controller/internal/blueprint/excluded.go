package blueprint

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint/expression"
)

// Excluded is a resource that is not wanted, because its includeWhen, or that of a resource that it refers to, is
// false. A resource whose includeWhen cannot be evaluated is not excluded.
type Excluded struct {
	ID  string
	GVK schema.GroupVersionKind
	// Namespace and Name identify its object. Name is empty if they depend on other resources, or if a resource that is
	// not excluded has the same object.
	Namespace, Name string
	DeletionPolicy  DeletionPolicy
}

func (e Excluded) String() string { return e.ID }

// maxPlaceBytes limits the lengths of the name and the namespace of an excluded resource. Names have at most 253 bytes.
const maxPlaceBytes = 1 << 10

// include decides whether a resource is wanted. It is called before any resource is rendered, so that the decision
// depends neither on the results of other resources nor on the cost of their expressions.
func (s *stepping) include(ctx context.Context, r *resource) {
	for _, o := range r.needs {
		if s.state[o] == excluded {
			s.exclude(ctx, r)
			return
		}
	}
	for _, condition := range r.include {
		wanted, reason := s.condition(ctx, condition, map[string]any{"self": s.self})
		switch {
		case reason != "":
			s.problem(r, Problem{Path: condition.path, Expression: condition.String(), Reason: reason})
			return
		case !wanted:
			s.exclude(ctx, r)
			return
		}
	}
}

func (s *stepping) exclude(ctx context.Context, r *resource) {
	s.state[r] = excluded
	e := Excluded{ID: r.ID, GVK: r.GVK, DeletionPolicy: r.DeletionPolicy}
	if at, known := s.placeOf(ctx, r); known {
		e.Namespace, e.Name = at.namespace, at.name
	}
	s.out.Excluded = append(s.out.Excluded, e)
}

// placesInUse returns the identities of the objects of resources that are not excluded, if they depend only on the
// instance. It returns only identities whose kind is also the kind of an excluded resource.
func (s *stepping) placesInUse(ctx context.Context, resources []*resource) map[identity]bool {
	kinds := map[schema.GroupKind]bool{}
	for _, e := range s.out.Excluded {
		kinds[e.GVK.GroupKind()] = true
	}
	used := map[identity]bool{}
	for _, r := range resources {
		if s.state[r] == excluded || !kinds[r.GVK.GroupKind()] {
			continue
		}
		if at, known := s.placeOf(ctx, r); known {
			used[at] = true
		}
	}
	return used
}

// dropShared removes the names of excluded resources whose object is also the object of another resource, rendered or
// not. Templates that exclude each other often share a name.
func (s *stepping) dropShared(used map[identity]bool) {
	for i := range s.out.Excluded {
		e := &s.out.Excluded[i]
		at := identity{e.GVK.GroupKind(), e.Namespace, e.Name}
		if _, made := s.made[at]; made || used[at] {
			e.Namespace, e.Name = "", ""
		}
	}
}

// placeOf returns the identity of a resource's object, if it can already be determined. It does not render the rest of
// the object.
func (s *stepping) placeOf(ctx context.Context, r *resource) (at identity, known bool) {
	metadata, has := field(r.body, "metadata")
	if !has {
		return at, false
	}
	at.kind = r.GVK.GroupKind()
	if at.name, known = s.textOf(ctx, metadata, "name"); !known || at.name == "" {
		return at, false
	}
	if _, has := field(metadata, "namespace"); has {
		at.namespace, known = s.textOf(ctx, metadata, "namespace")
		return at, known && at.namespace != ""
	}
	if r.Namespaced {
		at.namespace = (&unstructured.Unstructured{Object: s.self}).GetNamespace()
	}
	return at, true
}

// textOf evaluates a field that is a string.
func (s *stepping) textOf(ctx context.Context, of node, name string) (text string, known bool) {
	n, has := field(of, name)
	if !has {
		return "", false
	}
	value, _, err := n.render(ctx, &rendering{stepping: s, room: &expression.Room{Left: maxPlaceBytes}})
	text, known = value.(string)
	return text, known && err == nil
}

// field returns a field of an object in a template.
func field(of node, name string) (node, bool) {
	switch of := of.(type) {
	case object:
		for i, key := range of.keys {
			if key == name {
				return of.values[i], true
			}
		}
	case literal:
		if fields, is := of.value.(map[string]any); is {
			value, has := fields[name]
			return literal{value: value}, has
		}
	}
	return nil, false
}
