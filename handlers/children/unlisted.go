package children

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/children/internal/inventory"
)

// ErrCrossNamespaceNotListed is returned if a parent's inventory contains a kind whose children Kubernetes does not
// delete with the parent, and Config.Kinds lacks the kind or its CrossNamespace. Such children cannot be found. All
// other children are applied and pruned, and the inventory is kept, so that a version of the controller that lists the
// kind can prune them. When the parent is deleted, they are reported to [Desired].LeftBehind.
var ErrCrossNamespaceNotListed = errors.New("the controller does not list the kind with CrossNamespace")

// isUnreachable reports whether children of a kind in the inventory can exist where neither the Reconciler nor
// Kubernetes finds them: in other namespaces, or at cluster scope. Without a witness, a parent has no cluster-scoped
// children.
func (l *ledger) isUnreachable(entry inventory.Entry) bool {
	switch {
	case l.parent.GetNamespace() == "" || l.kinds[entry.Kind]:
		return false
	case len(entry.Namespaces) > 0:
		return true
	case !l.rules.IsWitnessed(l.parent):
		return false
	}
	mapping, err := l.config.Mapper.RESTMapping(entry.Kind)
	if err != nil {
		return !meta.IsNoMatchError(err)
	}
	return isClusterScoped(mapping)
}

// unreachable returns the entries of the inventory whose children can exist but cannot be found.
func (l *ledger) unreachable() inventory.Inventory {
	listed, others := l.inventoryOf(l.parent, l.isListed)
	return slices.DeleteFunc(slices.Concat(listed, others), func(entry inventory.Entry) bool {
		return !l.isUnreachable(entry)
	})
}

// checkUnreachable returns an error if children can exist but cannot be found.
func (l *ledger) checkUnreachable() error {
	var kinds []string
	for _, entry := range l.unreachable() {
		kinds = append(kinds, entry.Kind.String())
	}
	if len(kinds) == 0 {
		return nil
	}
	return fmt.Errorf("prune %s: children of kind %s: %w", l.id, decide.FirstOf(kinds), ErrCrossNamespaceNotListed)
}

// leaveUnreachable records the kinds whose children cannot be found as left behind.
func (d *deletion) leaveUnreachable() {
	for _, entry := range d.unreachable() {
		id := dynamiccontroller.ObjectIdentifiers{GVR: entry.GVR()}
		d.recordLeft(LeftBehind{id, entry.Kind, ErrCrossNamespaceNotListed})
	}
}
