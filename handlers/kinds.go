package handlers

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ChildKind is a kind of child that a controller creates, or created in an earlier version.
type ChildKind struct {
	schema.GroupKind
	// Elsewhere reports whether children of this kind can be outside their parent's namespace, where an owner reference
	// has no effect: in another namespace, or cluster-scoped. They are found by listing all namespaces. It has no
	// meaning for cluster-scoped parents, which can own children in any namespace.
	Elsewhere bool
}

// childKinds are the kinds of ChildrenConfig.Kinds. The value reports whether children can be elsewhere.
type childKinds map[schema.GroupKind]bool

func newChildKinds(kinds []ChildKind) (childKinds, error) {
	all := make(childKinds, len(kinds))
	for _, kind := range kinds {
		if kind.Kind == "" {
			return nil, fmt.Errorf("invalid ChildrenConfig.Kinds: %q has no kind", kind.GroupKind)
		}
		all[kind.GroupKind] = all[kind.GroupKind] || kind.Elsewhere
	}
	return all, nil
}

// follows reports whether children of a kind are looked for on behalf of a parent whose inventory names it.
type follows func(schema.GroupKind) bool

// follows accepts the kinds of ChildrenConfig.Kinds.
func (k childKinds) follows(kind schema.GroupKind) bool { _, known := k[kind]; return known }

// follows accepts the kinds of ChildrenConfig.Kinds and those that this call of Reconcile wants.
func (p *pass) follows(kind schema.GroupKind) bool {
	return p.kinds.follows(kind) || slices.Contains(p.plan.named, kind)
}
