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

// errInstanceCost is returned if the total cost of an instance's expressions is too high.
var errInstanceCost = fmt.Errorf("the expressions of this instance cost more than %d together", MaxInstanceCost)

// evaluation counts the cost of an instance's expressions.
type evaluation struct {
	self map[string]any
	cost uint64
	left int // bytes that further objects can have
}

func (e *evaluation) run(ctx context.Context, at *expressionAt, variables map[string]any) (expression.Value, error) {
	if e.cost > MaxInstanceCost {
		return expression.Value{}, errInstanceCost
	}
	value, cost, err := at.Run(ctx, variables)
	e.cost += cost
	return value, err
}

// condition evaluates a condition. If the evaluation fails, the reason is not empty.
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
	room *expression.Room
}

func (r *rendering) run(ctx context.Context, at *expressionAt) (expression.Value, error) {
	value, err := r.evaluation.run(ctx, at, r.ready)
	return value, at.failed(err)
}

// render returns the object of a resource, or the reason why the resource must wait, or a problem.
func (s *stepping) render(ctx context.Context, r *resource) (*unstructured.Unstructured, string, *Problem) {
	room := &expression.Room{Left: min(MaxObjectBytes, s.left)}
	before := room.Left
	made, _, err := r.body.render(ctx, &rendering{stepping: s, room: room})
	s.left -= before - max(room.Left, 0)
	var failed *evaluationError
	switch {
	case errors.As(err, &failed):
		var missing *expression.MissingError
		if errors.As(err, &missing) && failed.at.waitsFor(missing) {
			return nil, fmt.Sprintf("waiting for %s, which %s reads", failed.at.explainMissing(missing), failed.at.path), nil
		}
		return nil, "", &Problem{failed.at.path, failed.at.String(), failed.at.explain(failed.cause)}
	case errors.Is(err, expression.ErrTooLarge):
		return nil, "", &Problem{Path: r.Path, Reason: fmt.Sprintf(
			"the object has more than %d bytes, or all children of the instance more than %d", MaxObjectBytes, MaxInstanceBytes)}
	case err != nil:
		return nil, "", &Problem{Path: r.Path, Reason: err.Error()}
	}
	object := &unstructured.Unstructured{Object: made.(map[string]any)}
	if problem := checkRenderedMaps(r, object); problem != nil {
		return nil, "", problem
	}
	if problem := s.place(r, object); problem != nil {
		return nil, "", problem
	}
	if problem := s.compiled.checkComputedNamespace(r, object.GetNamespace(), s.ownNamespace()); problem != nil {
		return nil, "", problem
	}
	return object, "", nil
}

// checkRenderedMaps reports an expression that yields a non-string value in labels or annotations.
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

// place checks the name and the namespace of an object. It sets the namespace if it is empty.
func (s *stepping) place(r *resource, object *unstructured.Unstructured) *Problem {
	at := r.Path + ".metadata"
	metadata := object.Object["metadata"].(map[string]any)
	name, is := metadata["name"].(string)
	if !is || name == "" {
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
	id := identity{r.GVK.GroupKind(), object.GetNamespace(), name}
	if other, twice := s.made[id]; twice {
		return &Problem{Path: at + ".name", Reason: fmt.Sprintf("%s %s is also the object of %s", r.GVK.Kind, name, other)}
	}
	s.made[id] = r.ID
	return nil
}

func (s *stepping) ownNamespace() string {
	return (&unstructured.Unstructured{Object: s.self}).GetNamespace()
}

// waitsFor reports whether the missing value can appear later, because it belongs to another resource.
func (e *expressionAt) waitsFor(missing *expression.MissingError) bool {
	if missing.Path != nil {
		return missing.Path[0] != "self"
	}
	for _, name := range e.References() {
		if name != "self" {
			return true
		}
	}
	return false
}

func explained(err error) string {
	var missing *expression.MissingError
	if !errors.As(err, &missing) || missing.Path == nil {
		return err.Error()
	}
	reason := missing.Path.String() + " does not exist"
	if missing.Path[0] == "self" {
		reason += "; test it with has(), or read it with ?"
	}
	return reason
}
