package decide

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/dynamic-controller/engine/handlers/children/internal/compare"
	"github.com/dynamic-controller/engine/handlers/internal/ownership"
)

// Finding is what differs between a child and its desired state although the child was applied successfully.
type Finding struct {
	Kind FindingKind
	Path fieldpath.Path
	// Manager owns an undesired field, if it is known.
	Manager string
}

// FindingKind is a kind of Finding.
type FindingKind int

const (
	// NoFinding means that nothing differs.
	NoFinding FindingKind = iota
	// StoredDifferently means that the API server stores a field with another value.
	StoredDifferently
	// UndesiredItem means that an item can be an edited item of the child, or an item of another client.
	UndesiredItem
	// UndesiredField means that another manager had set a field before the object was adopted or restored.
	UndesiredField
)

// review returns what is left of the finding in an object that has been changed since.
func (f Finding) review(manager string, config, object *unstructured.Unstructured) Finding {
	if entries, err := ownership.Of(object); err == nil && len(entries) > 0 {
		return storedDifferently(entries, manager, config.Object, object.Object)
	}
	return f // the cache leaves out the managedFields, which show the lists with keys
}

func storedDifferently(entries ownership.Entries, manager string, config, object map[string]any) Finding {
	if path := compare.StoredDifferently(entries, manager, config, object); path != nil {
		return Finding{Kind: StoredDifferently, Path: path}
	}
	return Finding{}
}

// finding returns the finding for the latest version of a child that has been applied.
func (d *childDecision) finding(object *unstructured.Unstructured) Finding {
	known := d.known
	if !known.applied.written.IsAfter(object, d.now) {
		known.kept.update(object, d.manager())
		known.earlier.update(object, d.manager())
	}
	switch {
	case known.applied.finding.Kind != NoFinding:
		return known.applied.finding
	case len(known.kept.undesired) > 0:
		return Finding{Kind: UndesiredItem, Path: known.kept.undesired[0]}
	case len(known.earlier.undesired) > 0:
		path := known.earlier.undesired[0]
		manager := compare.LastOwnerOf(object, d.visible(path), d.manager()).Manager
		return Finding{Kind: UndesiredField, Path: d.visible(path), Manager: manager}
	}
	return Finding{}
}

// visible returns the part of a path that messages can contain. The keys of a Secret can be secret, too.
func (c *Child) visible(path fieldpath.Path) fieldpath.Path {
	if c.GroupKind == (schema.GroupKind{Kind: "Secret"}) && len(path) > 1 {
		return path[:1]
	}
	return path
}

// earlierFields returns the fields that other managers have set in an object that this Reconciler applied for the first
// time. The fields that a manager owns because of an update include defaults, so they are only returned for ConfigMaps
// and Secrets, whose data has none.
func (v *convergence) earlierFields() (paths []fieldpath.Path) {
	if own, _ := v.entries.AppliedBy(v.manager()); !own.Empty() {
		return nil
	}
	for _, entry := range v.entries {
		for path := range entry.Set.All() {
			if entry.Subresource == "" && isContent(path) &&
				(entry.Operation == metav1.ManagedFieldsOperationApply || isData(v.GroupKind, path)) {
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
