package blueprint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint/expression"
)

// Excluded is a resource that is not wanted. Either its own includeWhen is false, or it refers to a resource that is
// not wanted and does not read it only by ?. A resource whose includeWhen cannot be evaluated is not excluded.
type Excluded struct {
	ID  string
	GVK schema.GroupVersionKind
	// Through lists the ids of the excluded resources that exclude this resource. It begins with the one to which the
	// resource refers, and ends with the one whose own includeWhen is false. It is empty if this is the resource itself.
	Through []string
	// Names identifies the objects of the resource. It omits objects whose names are not known yet, and objects that can
	// also belong to another resource.
	Names          []types.NamespacedName
	DeletionPolicy DeletionPolicy
	// Reference reports whether the resource is a reference, which has no objects to delete.
	Reference bool
}

func (e Excluded) String() string { return e.ID }

// Reason explains why the resource is excluded.
func (e Excluded) Reason() string {
	switch n := len(e.Through); n {
	case 0:
		return "excluded by includeWhen"
	case 1:
		return fmt.Sprintf("excluded because it refers to %s, which is excluded by includeWhen", e.Through[0])
	default:
		return fmt.Sprintf("excluded because it refers to %s, which is excluded by includeWhen",
			strings.Join(e.Through, ", which refers to "))
	}
}

// requirement is a resource that another resource cannot exist without.
type requirement struct {
	*resource
	path string // of the first expression that reads it
}

func (r *resource) require(o *resource, path string) {
	if !slices.ContainsFunc(r.requires, func(known requirement) bool { return known.resource == o }) {
		r.requires = append(r.requires, requirement{o, path})
	}
}

// Exclusion is a resource without an includeWhen of its own that is excluded whenever another resource is.
type Exclusion struct{ ID, Path, Through string }

func (e Exclusion) String() string {
	return fmt.Sprintf("%s is excluded whenever %s is, because it reads %[2]s; to keep it, read %[2]s by ?, "+
		"as in %[2]s.?status", e.ID, e.Through)
}

// Exclusions returns the resources that are excluded through another resource, although their own includeWhen lacks the
// conditions of that resource. Path is the path of the expression that reads the other resource.
func (c *Compiled) Exclusions() (all []Exclusion) {
	through := map[*resource]bool{}
	for _, r := range c.resources {
		for _, o := range r.requires {
			conditional := slices.Concat(o.include, o.includeLater)
			if !through[o.resource] && (len(conditional) == 0 || includesAll(r, conditional)) {
				continue
			}
			through[r] = true
			all = append(all, Exclusion{ID: r.ID, Path: o.path, Through: o.ID})
			break
		}
	}
	return all
}

// includesAll reports whether includeWhen of a resource contains all conditions.
func includesAll(r *resource, conditions []*expressionAt) bool {
	own := slices.Concat(r.include, r.includeLater)
	return !slices.ContainsFunc(conditions, func(condition *expressionAt) bool {
		return !slices.ContainsFunc(own, func(o *expressionAt) bool { return o.String() == condition.String() })
	})
}

// maxPlaceBytes limits the size of a name or namespace that placeOf evaluates. Valid names have at most 253 bytes.
const maxPlaceBytes = 1 << 10

// splitConditions separates the conditions that read only self from the conditions that also read other resources. The
// resources must be sorted so that each one follows those that it refers to.
func splitConditions(resources []*resource) {
	for _, r := range resources {
		all := r.include
		r.include = nil
		for _, condition := range all {
			if slices.ContainsFunc(condition.References(), func(name string) bool { return name != "self" }) {
				r.includeLater = append(r.includeLater, condition)
			} else {
				r.include = append(r.include, condition)
			}
		}
		r.decidedLater = len(r.includeLater) > 0 ||
			slices.ContainsFunc(r.requires, func(o requirement) bool { return o.decidedLater })
	}
}

// include excludes a resource if a condition that reads only self is false, or if the resource requires an excluded
// one. It is called for all resources before any of them is rendered. Rendering, and its cost, therefore cannot affect
// the result.
func (s *stepping) include(ctx context.Context, r *resource) {
	if o := s.excludedIn(r); o != nil {
		s.exclude(r, o)
		return
	}
	for _, condition := range r.include {
		wanted, reason := s.condition(ctx, condition, map[string]any{"self": s.self})
		switch {
		case reason != "":
			s.problem(r, Problem{Path: condition.path, Expression: condition.String(), Reason: reason})
			return
		case !wanted:
			s.exclude(r, nil)
			return
		}
	}
}

// excludedIn returns the first excluded resource that a resource requires, or nil.
func (s *stepping) excludedIn(r *resource) *resource {
	for _, o := range r.requires {
		if s.state[o.resource] == excluded {
			return o.resource
		}
	}
	return nil
}

// includeLater evaluates the conditions that read other resources. It returns false if the resource is excluded, must
// wait for these resources or has a problem.
func (s *stepping) includeLater(ctx context.Context, r *resource) (wanted bool) {
	if o := s.excludedIn(r); o != nil {
		s.exclude(r, o)
		return false
	}
	for _, o := range r.includeNeeds {
		if s.state[o] == blocked {
			s.wait(r, "waiting for "+s.blocked[o])
			return false
		}
	}
	for _, condition := range r.includeLater {
		value, err := s.run(ctx, condition, s.ready)
		is := false
		if err == nil {
			is, err = value.Bool()
		}
		var missing *expression.MissingError
		switch {
		case errors.As(err, &missing) && condition.waitsFor(missing):
			s.wait(r, condition.waiting(missing))
			return false
		case err != nil:
			s.problem(r, Problem{condition.path, condition.String(), condition.explain(err)})
			return false
		case !is:
			s.exclude(r, nil)
			return false
		}
	}
	return true
}

// exclude excludes a resource. through is the excluded resource that it requires, or nil if its own includeWhen is
// false.
func (s *stepping) exclude(r, through *resource) {
	s.state[r] = excluded
	s.ready[r.ID] = expression.Absent
	e := Excluded{ID: r.ID, GVK: r.GVK, DeletionPolicy: r.DeletionPolicy, Reference: r.Reference}
	if through != nil {
		i := slices.IndexFunc(s.out.Excluded, func(o Excluded) bool { return o.ID == through.ID })
		e.Through = append([]string{through.ID}, s.out.Excluded[i].Through...)
	}
	s.out.Excluded = append(s.out.Excluded, e)
}

// nameExcluded sets the names of the objects of excluded resources. It is called first for the resources that include
// has excluded and later, when all resources have been rendered, for those that includeLater has excluded. The cost of
// all calls has a separate limit and therefore cannot prevent other resources from being included or rendered.
// Collections are named last because their cost grows with the lengths of their lists.
func (s *stepping) nameExcluded(ctx context.Context, resources []*resource, all []Excluded) {
	cost := s.cost
	s.cost, s.placed = s.namingCost, 0
	for _, collections := range []bool{false, true} {
		for i := range all {
			e := &all[i]
			r := resources[slices.IndexFunc(resources, func(r *resource) bool { return r.ID == e.ID })]
			if r.Reference || r.Collection != collections {
				continue
			}
			places, _ := s.placesOf(ctx, r)
			for _, at := range places {
				e.Names = append(e.Names, types.NamespacedName{Namespace: at.namespace, Name: at.name})
			}
		}
	}
	s.namingCost, s.cost, s.placed = s.cost, cost, 0
}

// dropShared removes the names of objects that can also belong to a resource that is not excluded. Such objects must
// not be deleted. For example, alternative templates, of which includeWhen selects one, often have the same name.
// dropShared is called after all resources have been rendered.
func (s *stepping) dropShared(ctx context.Context, resources []*resource) {
	used, unknown := s.placesInUse(ctx, resources)
	for i := range s.out.Excluded {
		e := &s.out.Excluded[i]
		kind := e.GVK.GroupKind()
		e.Names = slices.DeleteFunc(e.Names, func(name types.NamespacedName) bool {
			at := identity{kind, name.Namespace, name.Name}
			_, made := s.made[at]
			return made || used[at] || unknown[kind]
		})
	}
}

// placesInUse returns the identities of the objects of all resources that are neither rendered nor excluded. It also
// returns the kinds for which some of these identities are not known yet. It ignores resources whose kind differs from
// the kinds of all excluded resources.
func (s *stepping) placesInUse(
	ctx context.Context, resources []*resource,
) (used map[identity]bool, unknown map[schema.GroupKind]bool) {
	done, kinds := map[string]bool{}, map[schema.GroupKind]bool{}
	for _, o := range s.out.Rendered {
		done[o.ID] = true
	}
	for id := range s.out.Collections { // including empty collections
		done[id] = true
	}
	for _, e := range s.out.Excluded {
		done[e.ID], kinds[e.GVK.GroupKind()] = true, true
	}
	s.placed = 0
	used, unknown = map[identity]bool{}, map[schema.GroupKind]bool{}
	for _, r := range resources {
		kind := r.GVK.GroupKind()
		if r.Reference || done[r.ID] || !kinds[kind] {
			continue
		}
		places, complete := s.placesOf(ctx, r)
		for _, at := range places {
			used[at] = true
		}
		unknown[kind] = unknown[kind] || !complete
	}
	return used, unknown
}

// placesOf returns the identities of the objects of a resource, as far as they are known, without rendering the
// objects. complete is false if some identities are not known yet.
func (s *stepping) placesOf(ctx context.Context, r *resource) (all []identity, complete bool) {
	objects, variables := &combinations{count: 1}, s.ready
	if r.Collection {
		if objects, _, _ = s.combine(ctx, r); objects == nil {
			return nil, false
		}
		defer s.release(objects)
		if s.placed += objects.count; s.placed > MaxCollected {
			return nil, false
		}
		variables = maps.Clone(s.ready)
	}
	complete = true
	for n := range objects.count {
		objects.set(n, variables)
		at, known := s.placeOf(ctx, r, variables)
		if complete = complete && known; known {
			all = append(all, at)
		}
	}
	return all, complete
}

// placeOf returns the kind, namespace and name of an object without rendering the rest of it. known is false if the
// namespace or the name cannot be evaluated yet.
func (s *stepping) placeOf(ctx context.Context, r *resource, variables map[string]any) (at identity, known bool) {
	metadata, has := field(r.body, "metadata")
	if !has {
		return at, false
	}
	at.kind = r.GVK.GroupKind()
	if at.name, known = s.textOf(ctx, metadata, "name", variables); !known || at.name == "" {
		return at, false
	}
	if _, has := field(metadata, "namespace"); has {
		at.namespace, known = s.textOf(ctx, metadata, "namespace", variables)
		return at, known && at.namespace != ""
	}
	if r.Namespaced {
		at.namespace = s.ownNamespace()
	}
	return at, true
}

// textOf evaluates a string field of a part of a template. known is false if the field is absent or cannot be
// evaluated.
func (s *stepping) textOf(
	ctx context.Context, of node, name string, variables map[string]any,
) (text string, known bool) {
	n, has := field(of, name)
	if !has {
		return "", false
	}
	room := &expression.Room{Left: maxPlaceBytes}
	value, _, err := n.render(ctx, &rendering{stepping: s, variables: variables, room: room})
	text, known = value.(string)
	return text, known && err == nil
}

// field returns a field of a part of a template.
func field(of node, name string) (node, bool) {
	keys, value := fieldsOf(of)
	if i := slices.Index(keys, name); i >= 0 {
		return value(i), true
	}
	return nil, false
}
