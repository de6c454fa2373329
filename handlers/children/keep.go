package children

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/dynamic-controller/engine/handlers/internal/ownership"
	"github.com/dynamic-controller/engine/internal/keptfields"
)

// WholeObject is the path of a KeptField that stands for all fields except apiVersion, kind and metadata.
const WholeObject = keptfields.WholeObject

// KeptField is a field whose existing value is kept. See [Child].KeepExisting.
type KeptField struct {
	// Path is the path of the field, such as spec.replicas. A key that contains other characters than letters, digits, -
	// and _ is in brackets and quotes, and an item of a list with keys is selected by its keys:
	//
	//	data["tls.key"]
	//	spec.template.spec.containers[name=web].image
	//	*  (WholeObject)
	Path string
	// Reason says why the field is kept, for readers of the code. It has no effect.
	Reason string
}

// pathsIn returns the paths of the field in an object of the kind.
func (f KeptField) pathsIn(kind schema.GroupKind, object map[string]any) ([]fieldpath.Path, error) {
	path, err := keptfields.Parse(kind, f.Path)
	if err != nil || path != nil {
		return []fieldpath.Path{path}, err
	}
	var paths []fieldpath.Path
	for name := range object {
		if name != "apiVersion" && name != "kind" && name != "metadata" {
			paths = append(paths, fieldpath.MakePathOrDie(name))
		}
	}
	slices.SortFunc(paths, fieldpath.Path.Compare)
	return paths, nil
}

// keptPaths returns the paths of the fields that a desired child keeps.
func (c *call) keptPaths(desired Child, config *unstructured.Unstructured) (all []fieldpath.Path, err error) {
	for _, field := range desired.KeepExisting {
		paths, err := field.pathsIn(config.GroupVersionKind().GroupKind(), config.Object)
		if err != nil {
			return nil, fmt.Errorf("KeepExisting: %w", err)
		}
		for _, path := range paths {
			if last := *path[len(path)-1].FieldName; strings.HasPrefix(last, c.config.Name+"/") {
				return nil, fmt.Errorf("KeepExisting: path %q: labels and annotations of the Reconciler cannot be kept", field.Path)
			}
			all = append(all, path)
		}
	}
	if len(all) > 0 && desired.OnImmutable == OnImmutableRecreate {
		return nil, errors.New("KeepExisting must not be set with OnImmutableRecreate, which would lose the values")
	}
	return all, nil
}

// keep sets the fields that the child keeps to their values in the object that is about to be compared or changed. A
// write contains the resourceVersion of that object, so that it cannot replace a newer value. A field that the desired
// child no longer has is kept as well, if this Reconciler owns it: otherwise, the apply would remove it.
func (d *child) keep(current *unstructured.Unstructured) {
	if len(d.kept) == 0 {
		return
	}
	d.config = d.template.DeepCopy()
	owned := fieldpath.NewSet()
	if entries, err := ownership.Of(current); err == nil {
		owned, _ = entries.AppliedBy(d.manager)
	}
	for _, path := range d.kept {
		existing, _ := ownership.Lookup(current.Object, path)
		_, isDesired := ownership.Lookup(d.config.Object, path)
		if existing != nil && (isDesired || owned.Has(path)) {
			ownership.Set(d.config.Object, path, runtime.DeepCopyJSONValue(existing))
		}
	}
}

// needsOwners reports whether only the managedFields, which a cache can leave out, show that a field must be kept.
func (d *child) needsOwners(current *unstructured.Unstructured) bool {
	return len(managedFields(current)) == 0 && slices.ContainsFunc(d.kept, func(path fieldpath.Path) bool {
		existing, _ := ownership.Lookup(current.Object, path)
		_, isDesired := ownership.Lookup(d.template.Object, path)
		return existing != nil && !isDesired
	})
}

// withoutKept returns the part of the configuration that this Reconciler decides.
func (d *child) withoutKept() *unstructured.Unstructured {
	return withoutPaths(d.config, d.kept)
}

// withoutPaths returns a copy of a configuration without the given fields. Without fields, it returns the same object.
func withoutPaths(config *unstructured.Unstructured, paths []fieldpath.Path) *unstructured.Unstructured {
	if len(paths) == 0 {
		return config
	}
	rest := config.DeepCopy()
	for _, path := range paths {
		ownership.Remove(rest.Object, path)
	}
	return rest
}
