package decide

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/handlers/children/internal/compare"
	"github.com/dynamic-controller/engine/handlers/internal/applied"
	"github.com/dynamic-controller/engine/internal/keptfields"
)

// correct brings the child into its desired state, unless it was corrected too often. In this case, it returns a
// DriftError. Another object with the name of the child, such as a copy that replaced it, is corrected as well.
func (l *life) correct(current *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	l.keep(current)
	if l.known.applied.hash != l.Hash {
		current, err := l.handOver(current)
		if err != nil {
			return nil, err
		}
		return l.converge(current)
	}
	l.known.fights.note(l.config, current, l.manager(), l.now)
	budget := l.known.fights.corrections(l.now)
	if keptfields.IsProtective(l.GroupKind) || !l.hasMarks(current) {
		budget = l.known.fights.protections(l.now)
	}
	if wait := budget.wait(); wait > 0 {
		return nil, l.drift(current, budget)
	}
	now, err := l.converge(current)
	if err == nil && now.GetResourceVersion() != current.GetResourceVersion() {
		budget.now = l.now
		budget.take() // it was changed
		l.known.fights.correctedAll()
	}
	return now, err
}

// drift returns the error for a child that other clients change again and again.
func (l *life) drift(current *unstructured.Unstructured, budget budget) error {
	field, path := compare.Difference(l.config.Object, current.Object)
	if visible := l.visible(path); len(visible) < len(path) {
		field, path = compare.FieldOf(visible), visible
	}
	if field == "" {
		field = "metadata.managedFields"
	}
	manager := compare.LastOwnerOf(current, path, l.manager()).Manager
	return &DriftError{Field: field, Manager: manager, Wait: budget.wait(), period: budget.period}
}

// hasMarks reports whether an object has the metadata that makes it a child, and by which caches find it.
func (l *life) hasMarks(current *unstructured.Unstructured) bool {
	part := func(object *unstructured.Unstructured) map[string]any {
		labels, annotations := object.GetLabels(), object.GetAnnotations()
		owners, _, _ := unstructured.NestedFieldNoCopy(object.Object, "metadata", "ownerReferences")
		marks := map[string]any{
			"ownerReferences": owners, "label": labels[l.parent.ParentLabel()],
			"parent": annotations[l.parent.ParentLabel()], "self": annotations[l.parent.Self()],
		}
		if l.parent.Buckets {
			marks["bucket"] = labels[l.parent.BucketLabel()]
		}
		return marks
	}
	return applied.Covers(part(l.config), part(current))
}
