package blueprint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint/expression"
)

// errInstanceCost is returned if the expressions of an instance cost more than MaxInstanceCost in total.
var errInstanceCost = fmt.Errorf("the total cost of the instance's expressions exceeds %d", MaxInstanceCost)

// evaluation tracks the cost of an instance's expressions.
type evaluation struct {
	self map[string]any
	cost uint64
	left int // the number of bytes left for further objects
}

func (e *evaluation) run(ctx context.Context, at *expressionAt, variables map[string]any) (expression.Value, error) {
	if e.cost > MaxInstanceCost {
		return expression.Value{}, errInstanceCost
	}
	value, cost, err := at.Run(ctx, variables)
	e.cost += cost
	return value, err
}

// condition evaluates a condition. If the evaluation fails, it returns a non-empty reason.
func (e *evaluation) condition(
	ctx context.Context, at *expressionAt, variables map[string]any,
) (is bool, reason string) {
	value, err := e.run(ctx, at, variables)
	if err == nil {
		is, err = value.Bool()
	}
	if err != nil {
		return false, at.explain(err)
	}
	return is, ""
}

// rendering renders one object.
type rendering struct {
	*stepping
	variables map[string]any
	room      *expression.Room
}

func (r *rendering) run(ctx context.Context, at *expressionAt) (expression.Value, error) {
	value, err := r.evaluation.run(ctx, at, r.variables)
	return value, at.failed(err)
}

// render returns an object for the resource, the reason the resource must wait, or a problem. If the resource is a
// collection, item is the object's position in it.
func (s *stepping) render(
	ctx context.Context, r *resource, variables map[string]any, item string,
) (*unstructured.Unstructured, string, *Problem) {
	room := s.room(min(MaxObjectBytes, s.left))
	before := room.Left
	made, _, err := r.body.render(ctx, &rendering{stepping: s, variables: variables, room: room})
	s.left -= before - max(room.Left, 0)
	s.out.Memory += room.Allocated
	if err != nil {
		reason, problem := explainFailure(r, err)
		return nil, reason, problem
	}
	object := &unstructured.Unstructured{Object: made.(map[string]any)}
	if problem := checkRenderedMaps(r, object); problem != nil {
		return nil, "", problem
	}
	if problem := s.place(r, object, item); problem != nil {
		return nil, "", problem
	}
	if problem := s.compiled.checkComputedNamespace(r, object.GetNamespace(), s.ownNamespace()); problem != nil {
		return nil, "", problem
	}
	return object, "", nil
}

// renderedCopies is the maximum number of copies of a rendered object while it is applied: the object itself, the one
// of the previous step, the one with the platform's metadata, and the request.
const renderedCopies = 4

// room returns the room for an object or a report.
func (s *stepping) room(bytes int) *expression.Room {
	return &expression.Room{Left: bytes, Memory: s.memory, Copies: renderedCopies}
}

// explainFailure returns either the reason why the resource must wait, or the problem with the resource.
func explainFailure(r *resource, err error) (string, *Problem) {
	var failed *evaluationError
	switch {
	case errors.As(err, &failed):
		var missing *expression.MissingError
		if errors.As(err, &missing) && failed.at.waitsFor(missing) {
			return failed.at.waiting(missing), nil
		}
		return "", &Problem{failed.at.path, failed.at.String(), failed.at.explain(failed.cause)}
	case errors.Is(err, expression.ErrTooLarge):
		return "", &Problem{Path: r.Path, Reason: fmt.Sprintf(
			"the object exceeds %d bytes, or all children together exceed %d bytes", MaxObjectBytes, MaxInstanceBytes)}
	}
	return "", &Problem{Path: r.Path, Reason: err.Error()}
}

// checkRenderedMaps checks the labels and annotations of a rendered object.
func checkRenderedMaps(r *resource, object *unstructured.Unstructured) *Problem {
	metadata := object.Object["metadata"].(map[string]any)
	for _, field := range stringMaps {
		path := r.Path + ".metadata." + field
		if metadata[field] == nil {
			continue
		}
		values, is := metadata[field].(map[string]any)
		if !is {
			return &Problem{Path: path, Reason: "must be a map of strings"}
		}
		if setsOwnKey(values) {
			return &Problem{Path: path, Reason: notOwnKeys}
		}
		for _, key := range slices.Sorted(maps.Keys(values)) {
			if _, is := values[key].(string); !is && r.sensitive {
				return &Problem{Path: path, Reason: "must be a map of strings; convert its values with string()"}
			} else if !is {
				return &Problem{Path: child(path, key), Reason: "must be a string; convert it with string()"}
			}
		}
	}
	return nil
}

// place checks the name and namespace of an object. It sets the default namespace if the template sets none.
func (s *stepping) place(r *resource, object *unstructured.Unstructured, item string) *Problem {
	at := r.Path + ".metadata"
	metadata := object.Object["metadata"].(map[string]any)
	name, is := metadata["name"].(string)
	if (!is || name == "") && !r.isList {
		return &Problem{Path: at + ".name", Reason: "must not be empty"}
	}
	namespace, has := metadata["namespace"]
	if has {
		if n, is := namespace.(string); !is || n == "" {
			return &Problem{Path: at + ".namespace", Reason: "must not be empty"}
		}
	} else if r.Namespaced {
		own := s.ownNamespace()
		if own == "" {
			return &Problem{Path: at + ".namespace", Reason: "is required, because the instance has no namespace"}
		}
		object.SetNamespace(own)
	}
	if r.Reference {
		return nil
	}
	id := identity{r.GVK.GroupKind(), object.GetNamespace(), name}
	if other, twice := s.made[id]; twice {
		reason := fmt.Sprintf("%s %s is already rendered by %s; use a different name", r.GVK.Kind, name, other)
		return &Problem{Path: at + ".name", Reason: reason}
	}
	s.made[id] = r.ID
	if item != "" {
		s.made[id] += " with " + item
	}
	return nil
}

func (s *stepping) ownNamespace() string {
	return (&unstructured.Unstructured{Object: s.self}).GetNamespace()
}

// waiting returns the reason why a resource waits if the expression reads a missing value.
func (e *expressionAt) waiting(missing *expression.MissingError) string {
	return fmt.Sprintf("waiting for %s, which %s reads", e.explainMissing(missing), e.path)
}

// waitsFor reports whether the missing value depends on another resource and can therefore appear later.
func (e *expressionAt) waitsFor(missing *expression.MissingError) bool {
	if missing.Path != nil {
		return e.canChange(missing.Path[0].(string))
	}
	return slices.ContainsFunc(e.References(), e.canChange)
}

func (e *expressionAt) explained(err error) string {
	var missing *expression.MissingError
	if !errors.As(err, &missing) || missing.Path == nil {
		return err.Error()
	}
	reason := missing.Path.String() + " does not exist"
	if name := missing.Path[0].(string); name == "self" || e.collection.iterator(name) != nil {
		reason += "; test it with has(), or read it with ?"
	}
	return reason
}
