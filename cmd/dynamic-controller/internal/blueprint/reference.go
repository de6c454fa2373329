package blueprint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

// ExternalRef refers to existing objects. They are read and never written.
type ExternalRef struct {
	APIVersion string              `json:"apiVersion"`
	Kind       string              `json:"kind"`
	Metadata   ExternalRefMetadata `json:"metadata"`
}

// ExternalRefMetadata identifies an object by name, or a list of objects by labels. The values can contain expressions.
type ExternalRefMetadata struct {
	Name string `json:"name,omitempty"`
	// Namespace defaults to the namespace of the instance.
	Namespace string                `json:"namespace,omitempty"`
	Selector  *metav1.LabelSelector `json:"selector,omitempty"`
}

// content converts the reference to the form of a template.
func (e *ExternalRef) content() map[string]any {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(e)
	if err != nil {
		panic(err) // cannot happen: all fields can be converted
	}
	return fields
}

// Reference identifies the existing objects that a resource refers to.
type Reference struct {
	ID        string
	GVK       schema.GroupVersionKind
	Namespace string // empty if the kind is cluster-scoped
	Name      string
	// Selector is nil if the reference has a name.
	Selector labels.Selector
}

// String returns the kind, namespace and name of the object. It must be called only if the reference has a name.
func (r Reference) String() string {
	if r.Namespace == "" {
		return r.GVK.Kind + " " + r.Name
	}
	return r.GVK.Kind + " " + r.Namespace + "/" + r.Name
}

// Lookup returns the objects of a reference. Callers must not modify them. For a reference with a name, Lookup returns
// one object, or an error for which apierrors.IsNotFound is true. Objects that match a selector are sorted. An
// [*UnusableError] is reported as a problem. After any other error, resources that use the reference wait
// until Lookup succeeds.
//
// A step calls Lookup once for each reference that is not excluded and whose expressions can be evaluated.
type Lookup func(ctx context.Context, reference Reference) ([]*unstructured.Unstructured, error)

// UnusableError is returned by a [Lookup] if the objects of a reference exist but cannot be used in expressions.
type UnusableError struct{ Reason string }

func (e *UnusableError) Error() string { return e.Reason }

// WithLookup returns a copy of the Instance that uses the lookup. Without a lookup, resources that read references
// wait.
func (i *Instance) WithLookup(lookup Lookup) *Instance {
	next := *i
	next.lookup = lookup
	return &next
}

// checkSelector checks the parts of a selector that contain no expressions.
func checkSelector(selector *metav1.LabelSelector, at string, problems *collector) {
	known := selector.DeepCopy() // values with expressions are replaced with empty strings
	for key, value := range known.MatchLabels {
		known.MatchLabels[key] = withoutExpressions(value)
	}
	for _, e := range known.MatchExpressions {
		for i, value := range e.Values {
			e.Values[i] = withoutExpressions(value)
		}
	}
	if _, problem := parseSelector(known, at); problem != nil {
		problems.add(problem.Path, "", "%s", problem.Reason)
	}
}

func withoutExpressions(value string) string {
	if strings.Contains(value, "${") {
		return ""
	}
	return value
}

// parseSelector returns the selector, or the first problem with it.
func parseSelector(selector *metav1.LabelSelector, at string) (labels.Selector, *Problem) {
	parsed := labels.NewSelector()
	add := func(part metav1.LabelSelector, at string) *Problem {
		s, err := metav1.LabelSelectorAsSelector(&part)
		if err != nil {
			return &Problem{Path: at, Reason: err.Error()}
		}
		requirements, _ := s.Requirements()
		parsed = parsed.Add(requirements...)
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(selector.MatchLabels)) {
		part := metav1.LabelSelector{MatchLabels: map[string]string{key: selector.MatchLabels[key]}}
		if problem := add(part, child(at+".matchLabels", key)); problem != nil {
			return nil, problem
		}
	}
	for i, e := range selector.MatchExpressions {
		part := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{e}}
		if problem := add(part, fmt.Sprintf("%s.matchExpressions[%d]", at, i)); problem != nil {
			return nil, problem
		}
	}
	return parsed, nil
}

// referenceTo returns the reference that a rendered externalRef describes.
func (r *resource) referenceTo(object *unstructured.Unstructured) (Reference, *Problem) {
	at := r.Path + ".metadata"
	reference := Reference{ID: r.ID, GVK: r.GVK, Namespace: object.GetNamespace(), Name: object.GetName()}
	if !r.isList {
		if problems := content.IsPathSegmentName(reference.Name); len(problems) > 0 ||
			len(reference.Name) > validation.DNS1123SubdomainMaxLength {
			return reference, &Problem{Path: at + ".name",
				Reason: fmt.Sprintf("%q is not a valid object name", Cut(reference.Name, maxQuoted))}
		}
		return reference, nil
	}
	var rendered ExternalRef
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &rendered)
	if err != nil || rendered.Metadata.Selector == nil {
		return reference, &Problem{Path: at + ".selector", Reason: "is not a label selector"}
	}
	var problem *Problem
	reference.Selector, problem = parseSelector(rendered.Metadata.Selector, at+".selector")
	return reference, problem
}

var errNoLookup = errors.New("existing objects cannot be looked up here")

// refer looks up the objects of a reference.
func (s *stepping) refer(ctx context.Context, r *resource, object *unstructured.Unstructured) {
	reference, problem := r.referenceTo(object)
	if problem != nil {
		s.problem(r, *problem)
		return
	}
	objects, err := []*unstructured.Unstructured(nil), errNoLookup
	if s.lookup != nil {
		objects, err = s.lookup(ctx, reference)
	}
	var unusable *UnusableError
	if errors.As(err, &unusable) {
		s.problem(r, Problem{Path: r.Path, Reason: unusable.Reason})
		return
	}
	s.out.Referenced = append(s.out.Referenced, r.ID)
	var value any
	reason := ""
	switch {
	case apierrors.IsNotFound(err):
		reason = reference.String() + " does not exist"
	case err != nil:
		reason = Cut(err.Error(), maxReason)
		s.unread = s.unread || s.lookup != nil && s.compiled.report.reads[r.ID]
	default:
		value = r.valueOf(objects)
		s.existing[r.ID] = value
		reason = s.unmet(ctx, r, value)
	}
	if reason != "" {
		s.out.Unready = append(s.out.Unready, Reason{r.ID, reason})
		s.blocked[r] = r.ID
		return
	}
	s.state[r] = ready
	s.ready[r.ID] = value
}

// valueOf returns the value of a reference in expressions. It is an object or, for a reference with a selector, a list.
func (r *resource) valueOf(objects []*unstructured.Unstructured) any {
	if !r.isList {
		return objects[0].Object
	}
	list := make([]any, len(objects))
	for i, object := range objects {
		list[i] = object.Object
	}
	return list
}
