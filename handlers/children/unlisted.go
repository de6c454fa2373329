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
func (c *call) isUnreachable(entry inventory.Entry) bool {
	switch {
	case c.parent.GetNamespace() == "" || c.kinds[entry.Kind]:
		return false
	case len(entry.Namespaces) > 0:
		return true
	case !c.rules.IsWitnessed(c.parent):
		return false
	}
	mapping, err := c.config.Mapper.RESTMapping(entry.Kind)
	if err != nil {
		return !meta.IsNoMatchError(err)
	}
	return isClusterScoped(mapping)
}

// unreachable returns the entries of the inventory whose children can exist but cannot be found.
func (c *call) unreachable() inventory.Inventory {
	listed, others := c.inventoryOf(c.parent, c.isListed)
	return slices.DeleteFunc(slices.Concat(listed, others), func(entry inventory.Entry) bool {
		return !c.isUnreachable(entry)
	})
}

// checkUnreachable returns an error if children can exist but cannot be found.
func (c *call) checkUnreachable() error {
	var kinds []string
	for _, entry := range c.unreachable() {
		kinds = append(kinds, entry.Kind.String())
	}
	if len(kinds) == 0 {
		return nil
	}
	return fmt.Errorf("prune %s: children of kind %s: %w", c.id, decide.FirstOf(kinds), ErrCrossNamespaceNotListed)
}

// leaveUnreachable records the kinds whose children cannot be found as left behind.
func (c *call) leaveUnreachable() {
	for _, entry := range c.unreachable() {
		id := dynamiccontroller.ObjectIdentifiers{GVR: entry.GVR()}
		c.recordLeft(LeftBehind{id, entry.Kind, ErrCrossNamespaceNotListed})
	}
}
