package children

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/dynamic-controller/engine/handlers/internal/applied"
	"github.com/dynamic-controller/engine/handlers/internal/ownership"
	"github.com/dynamic-controller/engine/internal/keptfields"
)

// driftError is returned if other clients undo again and again what Reconcile does, so that it waits.
type driftError struct {
	field   string // the first field that differs, such as "spec.replicas"; a list is named as a whole
	manager string // the field manager that changed the field last, or empty if it is not known
	gone    string // why the child is deleted again and again, or empty if it is changed
	wait    time.Duration
	period  time.Duration // of the budget
}

// Error names the field and the manager, or says that the child is deleted.
func (e *driftError) Error() string {
	if e.gone != "" {
		return fmt.Sprintf("the object is deleted again and again; it is created at most once in %s; %s", e.period, e.gone)
	}
	manager := "another client"
	if e.manager != "" {
		manager = fmt.Sprintf("field manager %q", e.manager)
	}
	return fmt.Sprintf("field %s is changed again and again by %s; it is corrected at most once in %s; "+
		"let others set it (keepExisting), remove it from the template, or stop the other client", e.field, manager, e.period)
}

// correct brings a child into its desired state, unless it was corrected too often. In this case, it returns a
// driftError. Another object with the name of the child, such as a copy that replaced it, is corrected as well.
func (c *call) correct(
	ctx context.Context, child *child, current *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	child.keep(current)
	if child.entry.applied.hash != child.hash {
		current, err := c.handOver(ctx, child, current)
		if err != nil {
			return nil, err
		}
		return c.converge(ctx, child, current)
	}
	child.entry.fights.note(child.config, current, c.config.Name)
	budget := child.entry.fights.corrections()
	if keptfields.IsProtective(child.kind) || !c.hasMarks(child, current) {
		budget = child.entry.fights.protections()
	}
	if wait := budget.wait(); wait > 0 {
		field, path := difference(child.config.Object, current.Object)
		if child.kind == secretKind.GroupKind() && len(path) > 1 {
			field, path = *path[0].FieldName, path[:1] // the keys can be secret, too
		}
		if field == "" {
			field = "metadata.managedFields"
		}
		return nil, &driftError{
			field: field, manager: lastOwnerOf(current, path, c.config.Name).Manager, wait: wait, period: budget.period,
		}
	}
	now, err := c.converge(ctx, child, current)
	if err == nil && now.GetResourceVersion() != current.GetResourceVersion() {
		budget.Allow() // it was changed
		child.entry.fights.correctedAll()
	}
	return now, err
}

// hasMarks reports whether an object has the metadata that makes it a child, and by which caches find it.
func (c *call) hasMarks(child *child, current *unstructured.Unstructured) bool {
	part := func(object *unstructured.Unstructured) map[string]any {
		labels, annotations := object.GetLabels(), object.GetAnnotations()
		owners, _, _ := unstructured.NestedFieldNoCopy(object.Object, "metadata", "ownerReferences")
		marks := map[string]any{
			"ownerReferences": owners, "label": labels[c.parentLabel()], "parent": annotations[c.parentLabel()],
			"self": annotations[c.selfKey()],
		}
		if c.config.LabelBuckets {
			marks["bucket"] = labels[c.bucketLabel()]
		}
		return marks
	}
	return applied.Covers(part(child.config), part(current))
}

// difference returns the first field, in alphabetical order, whose value in the object is not the one of the
// configuration. A list is returned as a whole.
func difference(config, object map[string]any) (field string, path fieldpath.Path) {
	if paths := differences(nil, config, object, 1); len(paths) > 0 {
		return fieldOf(paths[0]), paths[0]
	}
	return "", nil
}

// differences returns the first n fields, in alphabetical order, whose values in the object are not those of the
// configuration. Lists are returned as a whole.
func differences(at fieldpath.Path, config, object map[string]any, n int) (paths []fieldpath.Path) {
	for _, name := range slices.Sorted(maps.Keys(config)) {
		value, current := config[name], object[name]
		if applied.Covers(map[string]any{name: value}, map[string]any{name: current}) {
			continue
		}
		path := append(at.Copy(), fieldpath.FieldNameElement(name))
		fields, isMap := value.(map[string]any)
		others, isAlsoMap := current.(map[string]any)
		var below []fieldpath.Path
		if isMap && isAlsoMap {
			below = differences(path, fields, others, n-len(paths))
		}
		if len(below) == 0 {
			below = []fieldpath.Path{path}
		}
		if paths = append(paths, below...); len(paths) >= n {
			break
		}
	}
	return paths
}

// lastOwnerOf returns the entry of the manager, other than the given one, that changed a path last. Entries of the
// scale subresource have no time.
func lastOwnerOf(object metav1.Object, path fieldpath.Path, except string) (last ownership.Entry) {
	entries, err := ownership.Of(object)
	if err != nil || len(path) == 0 {
		return last
	}
	for _, entry := range entries.OwnersOf(path) {
		if entry.Manager != except && (last.Manager == "" || last.Time == nil ||
			entry.Time != nil && !entry.Time.Before(last.Time)) {
			last = entry
		}
	}
	return last
}
