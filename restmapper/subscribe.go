package restmapper

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ChangeType is the type of a [Change].
type ChangeType string

const (
	// Added means that the kind is served, but was not served according to the last change that the subscriber received
	// for the kind, if any.
	Added ChangeType = "Added"
	// Changed means that the list of versions that serve the kind has changed, or that the resource, the scope or the
	// verbs of the kind have changed in one of these versions.
	Changed ChangeType = "Changed"
	// Removed means that the kind is no longer served.
	Removed ChangeType = "Removed"
)

// Change describes how a kind has changed since the subscriber was last called for it. Subscribers share the mappings
// and must not modify them.
type Change struct {
	Type ChangeType
	Kind schema.GroupKind
	// Old and New contain one mapping for each version, the preferred version first. Old is the state that the subscriber
	// last received. It is empty if Type is [Added]. New is empty if Type is [Removed].
	Old, New []*meta.RESTMapping
}

func sameMappings(a, b []*meta.RESTMapping) bool {
	return slices.EqualFunc(a, b, func(a, b *meta.RESTMapping) bool { return *a == *b })
}

// difference returns the changes to the kinds of a group between two states. Either state can be nil.
func difference(old, now *group, touches *touched) []pending {
	var changes []pending
	for _, kind := range touches.between(old, now).kinds {
		if sameKind(old, now, kind) {
			continue
		}
		var p pending
		p.old, p.oldVerbs = old.servedMappings(kind)
		p.now, p.nowVerbs = now.servedMappings(kind)
		if old != nil {
			p.kind = schema.GroupKind{Group: old.order.name, Kind: kind}
		} else {
			p.kind = schema.GroupKind{Group: now.order.name, Kind: kind}
		}
		changes = append(changes, p)
	}
	return changes
}

// sameKind reports whether two states of a group have the same mappings and verbs for a kind. It does not allocate the
// mappings.
func sameKind(a, b *group, kind string) bool {
	i, j := 0, 0
	for {
		va, ea := a.nextServed(kind, &i)
		vb, eb := b.nextServed(kind, &j)
		if ea == nil || eb == nil {
			return ea == nil && eb == nil
		}
		if va.version != vb.version || ea.plural != eb.plural || ea.namespaced != eb.namespaced ||
			!slices.Equal(ea.verbs(), eb.verbs()) {
			return false
		}
	}
}

// servedMappings returns the mappings of a kind that is served, the preferred version first, and a text that identifies
// the verbs in all versions. It does not return guessed list kinds.
func (g *group) servedMappings(kind string) (mappings []*meta.RESTMapping, verbs string) {
	for i := 0; ; {
		v, e := g.nextServed(kind, &i)
		if e == nil {
			return mappings, verbs
		}
		mappings = append(mappings, g.mapping(v, kind, e))
		verbs += strings.Join(e.verbs(), ",") + ";"
	}
}

// nextServed returns the first version at or after index i that serves the kind. It sets *i to the index after that
// version.
func (g *group) nextServed(kind string, i *int) (v *groupVersion, e *kindEntry) {
	for g != nil && *i < len(g.versions) {
		v := &g.versions[*i]
		*i++
		if e := v.kinds.Get(kind); e != nil && e.real {
			return v, e
		}
	}
	return nil, nil
}
