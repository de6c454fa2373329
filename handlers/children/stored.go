package children

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/dynamic-controller/engine/handlers/internal/applied"
	"github.com/dynamic-controller/engine/handlers/internal/ownership"
)

// finding is what differs between a child and its desired state although the child was applied successfully.
type finding struct {
	reason string // ReasonStoredDifferently, ReasonUndesiredItem, ReasonUndesiredField, or empty
	path   fieldpath.Path
}

// message describes the finding.
func (f finding) message() string {
	if f.reason == ReasonUndesiredItem {
		return fmt.Sprintf("%s can be an edited item of the child, or an item of another client; "+
			"remove it, or add it to the template", f.path)
	}
	if f.reason == ReasonUndesiredField {
		return fmt.Sprintf("field %s was set by another manager before the object was adopted or restored; "+
			"remove it, or add it to the template", fieldOf(f.path))
	}
	return fmt.Sprintf("the API server stores field %s with another value, for example because of an admission webhook; "+
		"set the field to that value, or remove it from the template", fieldOf(f.path))
}

// review returns what is left of the finding in an object that has been changed since.
func (f finding) review(manager string, config, object *unstructured.Unstructured) finding {
	if entries, err := ownership.Of(object); err == nil && len(entries) > 0 {
		return storedDifferently(entries, manager, config.Object, object.Object)
	}
	return f // the cache leaves out the managedFields, which show the lists with keys
}

// finding returns the finding for the latest version of a child that has been applied.
func (d *child) finding(object *unstructured.Unstructured) finding {
	entry := d.entry
	if !entry.applied.written.isAfter(object) {
		entry.kept.update(object, d.manager)
		entry.earlier.update(object, d.manager)
	}
	switch {
	case entry.applied.finding.reason != "":
		return entry.applied.finding
	case len(entry.kept.undesired) > 0:
		return finding{ReasonUndesiredItem, entry.kept.undesired[0]}
	case len(entry.earlier.undesired) > 0:
		path := entry.earlier.undesired[0]
		if d.kind == secretKind.GroupKind() {
			path = path[:1] // the keys can be secret, too
		}
		return finding{ReasonUndesiredField, path}
	}
	return finding{}
}

// earlierFields returns the fields that other managers have set in an object that this Reconciler applied for the first
// time. The fields that a manager owns because of an update include defaults, so they are only returned for ConfigMaps
// and Secrets, whose data has none.
func (v *convergence) earlierFields() (paths []fieldpath.Path) {
	if own, _ := v.entries.AppliedBy(v.config.Name); !own.Empty() {
		return nil
	}
	for _, entry := range v.entries {
		for path := range entry.Set.All() {
			if entry.Subresource == "" && isContent(path) &&
				(entry.Operation == metav1.ManagedFieldsOperationApply || isData(v.child.kind, path)) {
				paths = append(paths, path.Copy())
			}
		}
	}
	return paths
}

// isContent reports whether a path leads to neither metadata nor a status.
func isContent(path fieldpath.Path) bool {
	return len(path) > 0 && path[0].FieldName != nil &&
		!slices.Contains([]string{"apiVersion", "kind", "metadata", "status"}, *path[0].FieldName)
}

// isData reports whether a path leads to an entry in the data of a ConfigMap or a Secret.
func isData(kind schema.GroupKind, path fieldpath.Path) bool {
	return kind.Group == "" && (kind.Kind == "ConfigMap" || kind.Kind == "Secret") && len(path) == 2 &&
		slices.Contains([]string{"data", "binaryData"}, *path[0].FieldName)
}

// othersPaths are items or fields of a child that belong to others.
type othersPaths struct {
	// existing outlasts changes of the desired child, which can get and lose the items and fields.
	existing []fieldpath.Path
	// undesired are those that the Reconciler has not applied.
	undesired []fieldpath.Path
}

// update narrows the paths down to those that exist in an object. Without managedFields, which the cache can leave out,
// the Reconciler has applied what it had applied before.
func (o *othersPaths) update(object *unstructured.Unstructured, manager string) {
	if len(o.existing) == 0 {
		return
	}
	isMissing := func(path fieldpath.Path) bool {
		_, exists := ownership.Lookup(object.Object, path)
		return !exists
	}
	o.existing = slices.DeleteFunc(o.existing, isMissing)
	entries, err := ownership.Of(object)
	if err != nil || len(entries) == 0 {
		o.undesired = slices.DeleteFunc(o.undesired, isMissing)
		return
	}
	applied, _ := entries.AppliedBy(manager)
	o.undesired = slices.DeleteFunc(slices.Clone(o.existing), applied.Has)
}

// storedDifferently returns the first field whose value in an object is not the applied one, after the API server has
// stored the object.
func storedDifferently(entries ownership.Entries, manager string, config, object map[string]any) finding {
	if applied.Covers(config, object) {
		return finding{}
	}
	if path := (storedForm{entries, manager}).difference(nil, config, object); path != nil {
		return finding{ReasonStoredDifferently, path}
	}
	return finding{}
}

// storedForm compares values as the API server does: defaults are added, empty values are left out, and quantities,
// durations and times have several forms. The managedFields show which lists have keys. Without the schema, texts such
// as "1.0" and "1" are taken for quantities. The comparison is therefore used only for what the API server has returned
// from an apply, and never to decide whether a child has drifted.
type storedForm struct {
	entries ownership.Entries
	manager string
}

// difference returns the path of the first value that differs, or nil.
func (s storedForm) difference(path fieldpath.Path, config, object any) fieldpath.Path {
	switch config := config.(type) {
	case map[string]any:
		fields, isMap := object.(map[string]any)
		if !isMap && !isEmpty(object) {
			return path
		}
		for _, name := range slices.Sorted(maps.Keys(config)) {
			if len(path) == 1 && name == "ownerReferences" {
				continue // compared by their UIDs before
			}
			at := append(path.Copy(), fieldpath.FieldNameElement(name))
			if found := s.difference(at, config[name], fields[name]); found != nil {
				return found
			}
		}
		return nil
	case []any:
		return s.listDifference(path, config, object)
	default:
		if equalStored(config, object) {
			return nil
		}
		return path
	}
}

// listDifference compares lists. A list whose items are owned one by one can have more items.
func (s storedForm) listDifference(path fieldpath.Path, config []any, object any) fieldpath.Path {
	items, _ := object.([]any)
	r := &replacements{entries: s.entries, manager: s.manager}
	keys := r.keysOf(path)
	switch {
	case len(keys) > 0:
		return s.keyedDifference(r, path, keys, config, items)
	case len(r.elements(path)) > 0: // a set
		for _, value := range config {
			if !slices.ContainsFunc(items, func(item any) bool { return applied.Covers(value, item) }) {
				return path
			}
		}
		return nil
	case len(items) != len(config):
		return path
	}
	for i, value := range config {
		if found := s.difference(append(path.Copy(), fieldpath.IndexElement(i)), value, items[i]); found != nil {
			return found
		}
	}
	return nil
}

// keyedDifference compares lists with keys.
func (s storedForm) keyedDifference(
	r *replacements, path fieldpath.Path, keys []string, config, items []any,
) fieldpath.Path {
	items = slices.Clone(items)
	for _, item := range completeFirst(config, keys) {
		i := r.indexOf(path, keys, item, items)
		if i < 0 {
			return path
		}
		at := path.Copy()
		if element, found := r.elementOf(path, items[i]); found {
			at = append(at, element)
		}
		if found := s.difference(at, item, items[i]); found != nil {
			return found
		}
		items = slices.Delete(items, i, i+1)
	}
	return nil
}

// isQuantity matches quantities that can be compared in little time. Anyone who can write an instance can choose a
// text, and the time to parse a quantity grows with its exponent.
var isQuantity = regexp.MustCompile(`^[+-]?[0-9.]{1,18}([eE][+-]?[0-9]{1,2}|[a-zA-Z]{0,2})$`)

// equalStored compares scalars. The API server can replace null and an empty text with a default.
func equalStored(desired, stored any) bool {
	switch {
	case desired == nil || desired == "":
		return true
	case stored == nil:
		return isEmpty(desired)
	case applied.Covers(desired, stored):
		return true
	}
	a, b := scalarText(desired), scalarText(stored)
	if isQuantity.MatchString(a) && isQuantity.MatchString(b) {
		x, errX := resource.ParseQuantity(a)
		y, errY := resource.ParseQuantity(b)
		if errX == nil && errY == nil && x.Cmp(y) == 0 {
			return true
		}
	}
	if x, err := time.ParseDuration(a); err == nil {
		if y, err := time.ParseDuration(b); err == nil && x == y {
			return true
		}
	}
	x, errX := time.Parse(time.RFC3339, a)
	y, errY := time.Parse(time.RFC3339, b)
	return errX == nil && errY == nil && x.Equal(y)
}

// scalarText returns a string or number as text, and an empty string for other values.
func scalarText(value any) string {
	switch value := value.(type) {
	case string:
		return strings.TrimSpace(value)
	case int64, int32, int, float64:
		return fmt.Sprint(value)
	}
	return ""
}

// isEmpty reports whether the API server can leave out a value.
func isEmpty(value any) bool {
	switch value := value.(type) {
	case nil:
		return true
	case map[string]any:
		for _, nested := range value {
			if !isEmpty(nested) {
				return false
			}
		}
		return true
	case []any:
		return len(value) == 0
	case string:
		return value == ""
	case bool:
		return !value
	}
	return applied.Covers(value, int64(0))
}
