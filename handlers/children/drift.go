package children

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/dynamic-controller/engine/handlers/internal/applied"
	"github.com/dynamic-controller/engine/handlers/internal/ownership"
)

// The budget for corrections of one child: maxCorrections at once, and then one per correctionPeriod.
const (
	maxCorrections   = 5
	correctionPeriod = 10 * time.Second
)

// driftError is returned if other clients change a child again and again, so that corrections are delayed.
type driftError struct {
	field   string // the first field that differs, such as "spec.replicas"; a list is named as a whole
	manager string // the field manager that changed the field last, or empty if it is not known
	wait    time.Duration
}

// Error names the field and the manager.
func (e *driftError) Error() string {
	manager := "another client"
	if e.manager != "" {
		manager = fmt.Sprintf("field manager %q", e.manager)
	}
	return fmt.Sprintf("field %s is changed again and again by %s; it is corrected at most once in %s; "+
		"remove the field from the template, or stop the other client", e.field, manager, correctionPeriod)
}

// correct brings a child into its desired state, unless it was corrected too often. In this case, it returns a
// driftError. Corrections that protect others are not delayed: permissions, network policies, and the marks and owner
// references without which the object would not belong to its parent.
func (c *call) correct(
	ctx context.Context, child *child, current *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	last := &child.entry.applied
	isCorrection := last.hash == child.hash && last.written.uid == current.GetUID()
	if !isCorrection || isProtective(child.kind) || !c.hasMarks(child, current) {
		return c.converge(ctx, child, current)
	}
	if child.entry.drift == nil {
		child.entry.drift = rate.NewLimiter(rate.Every(correctionPeriod), maxCorrections)
	}
	budget := child.entry.drift
	if missing := 1 - budget.Tokens(); missing > 0 {
		field, path := difference(child.config.Object, current.Object)
		if child.kind == secretKind.GroupKind() && len(path) > 1 {
			field, path = *path[0].FieldName, path[:1] // the keys can be secret, too
		}
		if field == "" {
			field = "metadata.managedFields"
		}
		wait := time.Duration(missing * float64(correctionPeriod))
		return nil, &driftError{field, lastManagerOf(current, path, c.config.Name), wait}
	}
	now, err := c.converge(ctx, child, current)
	if err == nil && now.GetResourceVersion() != current.GetResourceVersion() {
		budget.Allow() // it was changed
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

// isProtective reports whether drift of a kind can give permissions, or open connections, that nobody should have.
func isProtective(kind schema.GroupKind) bool {
	return kind.Group == "rbac.authorization.k8s.io" || strings.HasSuffix(kind.Kind, "NetworkPolicy")
}

// difference returns the first field, in alphabetical order, whose value in the object is not the one of the
// configuration. A list is returned as a whole.
func difference(config, object map[string]any) (field string, path fieldpath.Path) {
	for _, name := range slices.Sorted(maps.Keys(config)) {
		value, current := config[name], object[name]
		if applied.Covers(map[string]any{name: value}, map[string]any{name: current}) {
			continue
		}
		path = fieldpath.Path{fieldpath.FieldNameElement(name)}
		fields, isMap := value.(map[string]any)
		others, isAlsoMap := current.(map[string]any)
		if !isMap || !isAlsoMap {
			return name, path
		}
		below, rest := difference(fields, others)
		if len(rest) == 0 {
			return name, path
		}
		return name + "." + below, append(path, rest...)
	}
	return "", nil
}

// lastManagerOf returns the manager, other than the given one, that changed a path last.
func lastManagerOf(object metav1.Object, path fieldpath.Path, except string) (manager string) {
	entries, err := ownership.Of(object)
	if err != nil || len(path) == 0 {
		return ""
	}
	latest := time.Time{}
	for _, entry := range entries.OwnersOf(path) {
		if entry.Manager != except && entry.Time != nil && !entry.Time.Time.Before(latest) {
			manager, latest = entry.Manager, entry.Time.Time
		}
	}
	return manager
}
