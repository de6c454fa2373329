package children

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/internal/live"
	"github.com/dynamic-controller/engine/handlers/internal/ownerref"
)

// release removes the marks of the parent's children, so that they are kept, and a later parent with the same name
// neither owns nor prunes them. It returns the kinds and names of these children.
func (d *deletion) release(ctx context.Context, reason error) (kept []string, err error) {
	recorded, _ := d.inventoryOf(d.parent, d.isListed)
	for _, entry := range recorded {
		if !d.canCrossNamespaces(entry.Kind) {
			continue
		}
		gvr, children, err := d.listKind(ctx, entry, nil)
		if err != nil && !d.leaveBehind(dynamiccontroller.ObjectIdentifiers{GVR: gvr}, entry.Kind, err, time.Now()) {
			return nil, fmt.Errorf("release %s: children of kind %s: %w", d.id, entry.Kind, err)
		}
		for _, child := range children {
			if ownerref.CanReach(d.parent, child.GetNamespace()) {
				continue
			}
			id := live.Identify(gvr, child)
			if err := d.removeMark(ctx, target{id, entry.Kind, child}); err != nil {
				return nil, fmt.Errorf("release %s: %w", id, err)
			}
			kept = append(kept, entry.Kind.Kind+" "+id.NamespacedKey)
			if errors.Is(reason, ErrMaybeOrphaned) {
				d.recordLeft(LeftBehind{id, entry.Kind, ErrMaybeOrphaned})
			}
		}
	}
	return kept, nil
}

// removeMark removes the mark of a child.
func (d *deletion) removeMark(ctx context.Context, child target) error {
	bucket := dynamiccontroller.BucketOf(d.id.GVR.GroupResource())
	return d.remove(ctx, child, decide.BeginRelease(d.rules, child.object, bucket, time.Now())).Err
}
