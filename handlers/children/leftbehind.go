package children

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/internal/requestpath"
)

// LeftBehind describes children that can still exist after their parent has been deleted: the API server does not
// support listing or deleting them, the controller no longer lists their kind with CrossNamespace, or they are kept
// because nothing shows whether the dependents of the parent were orphaned.
type LeftBehind struct {
	// ObjectIdentifiers identifies the child. If the children of the kind cannot be listed, the NamespacedKey is empty.
	// The GVR is empty if the kind is unknown.
	dynamiccontroller.ObjectIdentifiers
	Kind schema.GroupKind
	// Err is the error from the list or the deletion, ErrCrossNamespaceNotListed or ErrMaybeOrphaned.
	Err error
}

// checkRoute returns an error if the API server misroutes lists of the resource in all namespaces.
func checkRoute(gvr schema.GroupVersionResource, namespaced bool) error {
	if slices.Contains(requestpath.Misrouted(gvr.GroupResource(), namespaced), "list") {
		return decide.ErrMisrouted
	}
	return nil
}

// leaveBehind records children of a parent that is being deleted if the request that returned err at a time is not
// supported. It
// reports whether the deletion of the parent can continue without them.
func (d *deletion) leaveBehind(
	id dynamiccontroller.ObjectIdentifiers, kind schema.GroupKind, err error, at time.Time,
) bool {
	if d.parent.GetDeletionTimestamp() == nil || !d.rules.IsUnsupported(err, at) {
		return false
	}
	d.recordLeft(LeftBehind{id, kind, err})
	return true
}

func (d *deletion) recordLeft(left LeftBehind) {
	if d.left == nil {
		d.left = map[childKey]LeftBehind{}
	}
	d.left[childKey{Kind: left.Kind, Name: left.NamespacedKey}] = left
}

// isLeftBehind reports whether the deletion of the parent continues without the child.
func (d *deletion) isLeftBehind(child decide.Doomed) bool {
	_, left := d.left[child.Key]
	return left
}

// reportLeftBehind calls Desired.LeftBehind, or logs the children if it is not set.
func (d *deletion) reportLeftBehind(ctx context.Context) error {
	if len(d.left) == 0 {
		return nil
	}
	all := make([]LeftBehind, 0, len(d.left))
	for _, left := range d.left {
		all = append(all, left)
	}
	slices.SortFunc(all, func(a, b LeftBehind) int {
		return cmp.Or(cmp.Compare(a.Kind.String(), b.Kind.String()), cmp.Compare(a.NamespacedKey, b.NamespacedKey))
	})
	if d.planner != nil {
		return nil
	}
	if d.reportLeft != nil {
		return d.reportLeft(ctx, all)
	}
	texts := make([]string, len(all))
	for i, left := range all {
		texts[i] = fmt.Sprintf("%s %s: %v", left.Kind, left.NamespacedKey, left.Err)
	}
	logr.FromContextOrDiscard(ctx).Info("Children can still exist after the deletion of their parent",
		keyObjects, decide.FirstOf(texts))
	return nil
}
