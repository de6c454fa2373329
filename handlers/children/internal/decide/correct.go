package decide

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/handlers/children/internal/compare"
	"github.com/dynamic-controller/engine/handlers/internal/applied"
	"github.com/dynamic-controller/engine/internal/keptfields"
)

// correct brings the child into its desired state, unless it was corrected too often. In this case, it returns a
// DriftError. Another object with the name of the child, such as a copy that replaced it, is corrected as well.
func (d *childDecision) correct(current *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	d.keep(current)
	if d.known.applied.hash != d.Hash {
		current, err := d.handOver(current)
		if err != nil {
			return nil, err
		}
		return d.converge(current)
	}
	d.known.fights.note(d.config, current, d.manager(), d.now)
	budget := d.known.fights.corrections(d.now)
	if keptfields.IsProtective(d.GroupKind) || !d.hasMarks(current) {
		budget = d.known.fights.protections(d.now)
	}
	if wait := budget.wait(); wait > 0 {
		return nil, d.drift(current, budget)
	}
	now, err := d.converge(current)
	if err == nil && now.GetResourceVersion() != current.GetResourceVersion() {
		budget.now = d.now
		budget.take() // it was changed
		d.known.fights.correctedAll()
	}
	return now, err
}

// drift returns the error for a child that other clients change again and again.
func (d *childDecision) drift(current *unstructured.Unstructured, budget budget) error {
	field, path := compare.Difference(d.config.Object, current.Object)
	if visible := d.visible(path); len(visible) < len(path) {
		field, path = compare.FieldOf(visible), visible
	}
	if field == "" {
		field = "metadata.managedFields"
	}
	manager := compare.LastOwnerOf(current, path, d.manager()).Manager
	return &DriftError{Field: field, Manager: manager, Wait: budget.wait(), period: budget.period}
}

// hasMarks reports whether an object has the metadata that makes it a child, and by which caches find it.
func (d *childDecision) hasMarks(current *unstructured.Unstructured) bool {
	part := func(object *unstructured.Unstructured) map[string]any {
		labels, annotations := object.GetLabels(), object.GetAnnotations()
		owners, _, _ := unstructured.NestedFieldNoCopy(object.Object, "metadata", "ownerReferences")
		marks := map[string]any{
			"ownerReferences": owners, "label": labels[d.parent.ParentLabel()],
			"parent": annotations[d.parent.ParentLabel()], "self": annotations[d.parent.Self()],
		}
		if d.parent.Buckets {
			marks["bucket"] = labels[d.parent.BucketLabel()]
		}
		return marks
	}
	return applied.Covers(part(d.config), part(current))
}
