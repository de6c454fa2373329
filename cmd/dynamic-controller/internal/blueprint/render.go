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

// errInstanceCost says that the expressions of an instance cost too much together.
var errInstanceCost = fmt.Errorf("the expressions of this instance cost more than %d together", MaxInstanceCost)

// evaluation counts what evaluating an instance's expressions costs.
type evaluation struct {
	self map[string]any
	cost uint64
	left int // bytes of objects that may still be made
}

func (e *evaluation) run(ctx context.Context, at *expressionAt, variables map[string]any) (expression.Value, error) {
	if e.cost > MaxInstanceCost {
		return expression.Value{}, errInstanceCost
	}
	value, cost, err := at.Run(ctx, variables)
	e.cost += cost
	return value, err
}

// condition evaluates one. What is not there is a reason like any other.
func (e *evaluation) condition(ctx context.Context, at *expressionAt, variables map[string]any) (is bool, reason string) {
	value, err := e.run(ctx, at, variables)
	if err == nil {
		is, err = value.Bool()
	}
	if err != nil {
		return false, at.explain(err)
	}
	return is, ""
}

// rendering is one object that is being made.
type rendering struct {
	*stepping
	room *expression.Room
}

func (r *rendering) run(ctx context.Context, at *expressionAt) (expression.Value, error) {
	value, err := r.evaluation.run(ctx, at, r.ready)
	return value, at.failed(err)
}

// render makes a resource's object, or says why it cannot be made yet or at all.
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
			return nil, failed.at.explainMissing(missing) + " yet, which " + failed.at.path + " reads", nil
		}
		return nil, "", &Problem{Path: failed.at.path, Expression: failed.at.String(), Reason: failed.at.explain(failed.cause)}
	case errors.Is(err, expression.ErrTooLarge):
		return nil, "", &Problem{Path: r.path, Reason: fmt.Sprintf("%v: more than %d bytes, or with the others of its instance more than %d",
			err, MaxObjectBytes, MaxInstanceBytes)}
	case err != nil:
		return nil, "", &Problem{Path: r.path, Reason: err.Error()}
	}
	object := &unstructured.Unstructured{Object: made.(map[string]any)}
	if problem := notTexts(r, object); problem != nil {
		return nil, "", problem
	}
	if reason := s.place(r, object); reason != "" {
		return nil, "", &Problem{Path: r.path + ".metadata", Reason: reason}
	}
	if problem := s.compiled.checkComputedNamespace(r, object.GetNamespace(), s.ownNamespace()); problem != nil {
		return nil, "", problem
	}
	if problem := s.compiled.policy.checkRendered(r, object.Object); problem != nil {
		return nil, "", problem
	}
	return object, "", nil
}

// notTexts is what expressions made of a map of strings that is none, nil if there is nothing of the kind.
func notTexts(r *resource, object *unstructured.Unstructured) *Problem {
	metadata := object.Object["metadata"].(map[string]any)
	for _, field := range texts {
		path := r.path + ".metadata." + field
		if metadata[field] == nil {
			continue
		}
		values, is := metadata[field].(map[string]any)
		if !is {
			return &Problem{Path: path, Reason: "is no map of strings"}
		}
		for _, key := range slices.Sorted(maps.Keys(values)) {
			if _, is := values[key].(string); !is && r.sensitive {
				return &Problem{Path: path, Reason: "must be a map of strings: convert its values with string()"}
			} else if !is {
				return &Problem{Path: child(path, key), Reason: "has to be a string: make it one with string()"}
			}
		}
	}
	return nil
}

// place says what is wrong with an object's name or namespace, when it has got the one that it has without saying so.
func (s *stepping) place(r *resource, object *unstructured.Unstructured) string {
	metadata := object.Object["metadata"].(map[string]any)
	name, is := metadata["name"].(string)
	if !is || name == "" {
		return "has no name"
	}
	namespace, has := metadata["namespace"]
	if has {
		if n, is := namespace.(string); !is || n == "" {
			return "has a namespace that is not a name"
		}
	} else if r.namespaced {
		own := s.ownNamespace()
		if own == "" {
			return "has no namespace, nor has its instance"
		}
		object.SetNamespace(own)
	}
	id := identity{r.gvk.GroupKind(), object.GetNamespace(), name}
	if other, twice := s.made[id]; twice {
		return fmt.Sprintf("is the same object as that of %s: %s %s", other, r.gvk.Kind, name)
	}
	s.made[id] = r.id
	return ""
}

func (s *stepping) ownNamespace() string {
	return (&unstructured.Unstructured{Object: s.self}).GetNamespace()
}

// waitsFor tells whether what is missing may come: it is of another resource, not of self.
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
	if errors.As(err, &missing) && missing.Path != nil && missing.Path[0] == "self" {
		return err.Error() + ": ask with has() whether it is, or with ? for what is optional"
	}
	return err.Error()
}
