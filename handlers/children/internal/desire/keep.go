package desire

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/internal/keptfields"
)

// keptPaths returns the paths of the fields that a desired child keeps.
func keptPaths(spec Spec, config *unstructured.Unstructured, names decide.Names) (all []fieldpath.Path, err error) {
	for _, field := range spec.KeepExisting {
		paths, err := pathsIn(config.GroupVersionKind().GroupKind(), config.Object, field)
		if err != nil {
			return nil, fmt.Errorf("KeepExisting: %w", err)
		}
		for _, path := range paths {
			if last := *path[len(path)-1].FieldName; strings.HasPrefix(last, string(names)+"/") {
				return nil, fmt.Errorf("KeepExisting: path %q: labels and annotations of the Reconciler cannot be kept", field)
			}
			all = append(all, path)
		}
	}
	if len(all) > 0 && spec.OnImmutable == Recreate {
		return nil, errors.New("KeepExisting must not be set with OnImmutableRecreate, which would lose the values")
	}
	return all, nil
}

// pathsIn returns the paths of a kept field in an object of the kind.
func pathsIn(kind schema.GroupKind, object map[string]any, field string) ([]fieldpath.Path, error) {
	path, err := keptfields.Parse(kind, field)
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
