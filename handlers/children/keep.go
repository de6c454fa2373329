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
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"github.com/dynamic-controller/engine/handlers/internal/ownership"
)

// WholeObject is the path of a KeptField that stands for all fields except apiVersion, kind and metadata.
const WholeObject = "*"

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

// Check returns an error if children of a kind cannot keep the field. It checks the path only, not whether the kind has
// such a field.
func (f KeptField) Check(kind schema.GroupKind) error {
	_, err := f.pathsIn(kind, nil)
	return err
}

// pathsIn returns the paths of the field in an object of the kind.
func (f KeptField) pathsIn(kind schema.GroupKind, object map[string]any) ([]fieldpath.Path, error) {
	if isProtective(kind) {
		return nil, fmt.Errorf("fields of a %s must not be kept, because others could add permissions or connections",
			kind.Kind)
	}
	if f.Path == WholeObject {
		var paths []fieldpath.Path
		for name := range object {
			if name != "apiVersion" && name != "kind" && name != "metadata" {
				paths = append(paths, fieldpath.MakePathOrDie(name))
			}
		}
		slices.SortFunc(paths, fieldpath.Path.Compare)
		return paths, nil
	}
	path, err := parsePath(f.Path)
	if err != nil {
		return nil, fmt.Errorf("path %q: %w", f.Path, err)
	}
	switch first := *path[0].FieldName; {
	case first == "stringData" && kind == secretKind.GroupKind():
		err = errors.New("use data, in which the API server stores stringData")
	case first == "apiVersion", first == "kind", first == "status":
		err = fmt.Errorf("%s cannot be kept", first)
	case first == "metadata" && (len(path) != 3 || path[1].FieldName == nil ||
		*path[1].FieldName != "labels" && *path[1].FieldName != "annotations"):
		err = errors.New(`of metadata, only single labels and annotations can be kept, such as metadata.annotations["a"]`)
	}
	if err != nil {
		return nil, fmt.Errorf("path %q: %w", f.Path, err)
	}
	return []fieldpath.Path{path}, nil
}

// parsePath parses the path of a field.
func parsePath(text string) (path fieldpath.Path, err error) {
	for rest := text; rest != "" || len(path) == 0; {
		var element fieldpath.PathElement
		if strings.HasPrefix(rest, "[") && len(path) > 0 {
			element, rest, err = parseBrackets(rest)
		} else {
			if len(path) > 0 {
				rest = strings.TrimPrefix(rest, ".")
			}
			name := rest
			if end := strings.IndexAny(rest, ".["); end >= 0 {
				name = rest[:end]
			}
			if !isFieldName(name) {
				return nil, errors.New(`must consist of field names that are separated by dots, such as spec.replicas; ` +
					`put other keys in brackets and quotes, such as data["tls.key"]`)
			}
			element, rest = fieldpath.FieldNameElement(name), rest[len(name):]
		}
		if err != nil {
			return nil, err
		}
		path = append(path, element)
	}
	if path[len(path)-1].FieldName == nil {
		return nil, errors.New("must end with a field, because items of a list cannot be kept as a whole")
	}
	return path, nil
}

// parseBrackets parses a quoted key or the keys of a list item.
func parseBrackets(text string) (element fieldpath.PathElement, rest string, err error) {
	if strings.HasPrefix(text, `["`) {
		key, rest, closed := strings.Cut(text[2:], `"]`)
		if !closed || key == "" || strings.Contains(key, `"`) {
			return element, "", errors.New(`a key in brackets must have the form ["key"]`)
		}
		return fieldpath.FieldNameElement(key), rest, nil
	}
	selector, rest, closed := strings.Cut(text[1:], "]")
	var keys value.FieldList
	for pair := range strings.SplitSeq(selector, ",") {
		name, text, isPair := strings.Cut(strings.TrimSpace(pair), "=")
		if !closed || !isPair || !isFieldName(name) || text == "" {
			return element, "", errors.New("an item of a list must be selected by its keys, such as containers[name=web]")
		}
		keys = append(keys, value.Field{Name: name, Value: value.NewValueInterface(scalarOf(text))})
	}
	keys.Sort()
	return fieldpath.PathElement{Key: &keys}, rest, nil
}

// scalarOf returns an integer or a text.
func scalarOf(text string) any {
	var n int64
	if _, err := fmt.Sscanf(text, "%d", &n); err == nil && fmt.Sprint(n) == text {
		return n
	}
	return strings.Trim(text, `"`)
}

func isFieldName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
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

// withoutKept returns the part of the configuration that this Reconciler decides.
func (d *child) withoutKept() *unstructured.Unstructured {
	return withoutPaths(d.config, d.kept)
}

// withoutPaths returns a copy of a configuration without some fields, or the configuration if there are none.
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
