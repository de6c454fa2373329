package decide

import (
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/dynamic-controller/engine/handlers/internal/ownership"
)

// keep sets the fields that the child keeps to their values in the object that is about to be compared or changed. A
// write contains the resourceVersion of that object, so that it cannot replace a newer value. A field that the desired
// child no longer has is kept as well, if this Reconciler owns it: otherwise, the apply would remove it.
func (d *childDecision) keep(current *unstructured.Unstructured) {
	if len(d.Kept) == 0 {
		return
	}
	d.config = d.Template.DeepCopy()
	owned := fieldpath.NewSet()
	if entries, err := ownership.Of(current); err == nil {
		owned, _ = entries.AppliedBy(d.manager())
	}
	for _, path := range d.Kept {
		existing, _ := ownership.Lookup(current.Object, path)
		_, isDesired := ownership.Lookup(d.config.Object, path)
		if existing != nil && (isDesired || owned.Has(path)) {
			ownership.Set(d.config.Object, path, runtime.DeepCopyJSONValue(existing))
		}
	}
}

// needsManagedFields reports whether only the managedFields, which a cache can leave out, show that a field must be
// kept.
func (d *childDecision) needsManagedFields(current *unstructured.Unstructured) bool {
	return len(managedFields(current)) == 0 && slices.ContainsFunc(d.Kept, func(path fieldpath.Path) bool {
		existing, _ := ownership.Lookup(current.Object, path)
		_, isDesired := ownership.Lookup(d.Template.Object, path)
		return existing != nil && !isDesired
	})
}

// withoutKept returns the part of the configuration that this Reconciler decides.
func (d *childDecision) withoutKept() *unstructured.Unstructured { return Without(d.config, d.Kept) }

// Without returns a copy of a configuration without the given fields. Without fields, it returns the same object.
func Without(config *unstructured.Unstructured, paths []fieldpath.Path) *unstructured.Unstructured {
	if len(paths) == 0 {
		return config
	}
	rest := config.DeepCopy()
	for _, path := range paths {
		ownership.Remove(rest.Object, path)
	}
	return rest
}
