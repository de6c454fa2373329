package blueprint

import (
	"context"
	"errors"
	"fmt"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint/expression"
)

// Report is the part of an instance's status that the Blueprint defines in spec.type.status and spec.type.conditions.
type Report struct {
	// Fields maps the fields of spec.type.status to their values. A field without a value is nil.
	Fields     map[string]any
	Conditions []metav1.Condition
	// Problems lists the expressions that fail, except those that read a missing value.
	Problems Problems
}

// Reasons for conditions.
const (
	reasonMet     = "ConditionMet"
	reasonNotMet  = "ConditionNotMet"
	reasonMissing = "ValueMissing"
	reasonFailed  = "ExpressionFailed"
)

const maxConditionMessage = 1 << 10

// reporting computes a Report. Unlike the expressions of templates, those of a Report can read resources that are not
// ready.
type reporting struct {
	*rendering
	out *Report
}

// Reports reports whether a Report depends on the objects of the resource with the given id.
func (c *Compiled) Reports(id string) bool { return c.report.reads[id] }

func (s *stepping) report(ctx context.Context) *Report {
	if s.unread {
		return nil
	}
	r := &reporting{out: &Report{Fields: map[string]any{}}, rendering: &rendering{
		stepping: s, variables: s.reportVariables(ctx), room: s.room(MaxStatusBytes),
	}}
	keys, value := fieldsOf(s.compiled.report.fields)
	for i, key := range keys {
		r.out.Fields[key], _ = r.value(ctx, value(i))
	}
	for _, c := range s.compiled.report.conditions {
		r.out.Conditions = append(r.out.Conditions, r.condition(ctx, c))
	}
	s.out.Memory += r.room.Allocated
	if r.room.Left < 0 {
		r.problem(typePath, "", fmt.Sprintf("the status and the conditions have more than %d bytes", MaxStatusBytes))
	}
	return r.out
}

// reportVariables returns the variables for the expressions of a Report: self, the objects of references, and the
// existing children. The variable of a collection is the list of its existing objects. It is set only if the collection
// is rendered. Excluded resources are absent.
//
// Users who can create objects can also create one with the labels of a child. If a resource is not rendered,
// reportVariables therefore uses an existing object only if it has the namespace and the name that the template yields.
func (s *stepping) reportVariables(ctx context.Context) map[string]any {
	variables, keys := maps.Clone(s.existing), map[string][]string{}
	variables["self"] = s.self
	for _, o := range s.out.Rendered {
		keys[o.ID] = append(keys[o.ID], o.Key)
	}
	for _, r := range s.compiled.resources {
		if s.state[r] == excluded {
			variables[r.ID] = expression.Absent
			continue
		}
		if r.Reference || !s.compiled.report.reads[r.ID] {
			continue
		}
		if r.Collection {
			if _, rendered := s.out.Collections[r.ID]; rendered {
				variables[r.ID] = s.existingOf(keys[r.ID])
			}
			continue
		}
		object := s.observed[r.ID]
		if len(keys[r.ID]) > 0 {
			if object != nil {
				variables[r.ID] = object.Object
			}
			continue
		}
		at, known := s.placeOf(ctx, r, s.ready)
		if !known {
			continue
		}
		s.out.Named = append(s.out.Named, Rendered{ID: r.ID, Key: r.ID, Object: objectAt(r.GVK, at)})
		if object != nil && at == (identity{object.GroupVersionKind().GroupKind(), object.GetNamespace(), object.GetName()}) {
			variables[r.ID] = object.Object
		}
	}
	return variables
}

// objectAt returns an object that has only an API version, a kind, a namespace and a name.
func objectAt(gvk schema.GroupVersionKind, at identity) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(gvk)
	object.SetNamespace(at.namespace)
	object.SetName(at.name)
	return object
}

// existingOf returns the objects of a collection that exist. keys are the keys of its rendered objects.
func (s *stepping) existingOf(keys []string) []any {
	objects := []any{}
	for _, key := range keys {
		if object := s.observed[key]; object != nil {
			objects = append(objects, object.Object)
		}
	}
	return objects
}

// value renders a part of the status. It returns false if the part is absent or null.
func (r *reporting) value(ctx context.Context, n node) (value any, is bool) {
	switch n := n.(type) {
	case object:
		out := map[string]any{}
		for i, key := range n.keys {
			if v, is := r.value(ctx, n.values[i]); is && r.room.Take(len(key)+4) == nil {
				out[key] = v
			}
		}
		return out, true
	case list:
		out := []any{}
		for _, item := range n {
			if v, is := r.value(ctx, item); is {
				out = append(out, v)
			}
		}
		return out, true
	}
	value, is, err := n.render(ctx, r.rendering)
	if err != nil {
		r.failed(err)
		return nil, false
	}
	value = withoutNull(value)
	return value, is && value != nil
}

// withoutNull removes null fields and null items from a value. A status cannot contain null because it is written with
// a merge patch, in which null means that a field is removed.
func withoutNull(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if v[key] = withoutNull(value); v[key] == nil {
				delete(v, key)
			}
		}
	case []any:
		out := v[:0]
		for _, item := range v {
			if item = withoutNull(item); item != nil {
				out = append(out, item)
			}
		}
		return out
	}
	return v
}

func (r *reporting) problem(path, expression, reason string) {
	r.out.Problems = append(r.out.Problems, Problem{path, expression, reason})
}

// failed adds a problem unless the expression reads a missing value. It ignores ErrTooLarge because report checks the
// total size at the end.
func (r *reporting) failed(err error) {
	var missing *expression.MissingError
	var failed *evaluationError
	switch {
	case errors.As(err, &missing), errors.Is(err, expression.ErrTooLarge):
	case errors.As(err, &failed):
		r.problem(failed.at.path, failed.at.String(), failed.at.explain(failed.cause))
	default:
		r.problem(typePath, "", err.Error())
	}
}

func (r *reporting) condition(ctx context.Context, c condition) metav1.Condition {
	out := metav1.Condition{Type: c.kind, Status: metav1.ConditionUnknown}
	value, err := r.run(ctx, c.status)
	var is bool
	if err == nil {
		is, err = value.Bool()
		err = c.status.failed(err)
	}
	var missing *expression.MissingError
	switch {
	case errors.As(err, &missing):
		out.Reason = reasonMissing
		out.Message = Cut(c.status.explainMissing(missing), maxConditionMessage) + " does not exist"
		return out
	case err != nil:
		r.failed(err)
		out.Reason, out.Message = reasonFailed, "the expression failed; see the Ready condition"
		return out
	case is:
		out.Status, out.Reason = metav1.ConditionTrue, reasonMet
	default:
		out.Status, out.Reason = metav1.ConditionFalse, reasonNotMet
	}
	switch reason := r.text(ctx, c.reason, c.path+".reason"); {
	case validReason.MatchString(reason):
		out.Reason = reason
	case reason != "":
		r.problem(c.path+".reason", "", fmt.Sprintf(notAReason, Cut(reason, maxQuoted)))
	}
	out.Message = Cut(r.text(ctx, c.message, c.path+".message"), maxConditionMessage)
	return out
}

// text renders a string. It returns "" if the string is absent or has a problem.
func (r *reporting) text(ctx context.Context, n node, path string) string {
	value, is := r.value(ctx, n)
	text, isText := value.(string)
	if is && !isText {
		r.problem(path, "", "must be a string; convert it with string()")
	}
	return text
}
