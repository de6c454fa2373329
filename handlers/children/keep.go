package children

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

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
