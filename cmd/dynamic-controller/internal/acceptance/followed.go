package acceptance

import (
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/handlers/children"
)

// trimDelay is how long the newest revision must have been served before older revisions with additional kinds are
// deleted. It is much longer than a reconcile with an older revision can take, and much longer than the instance cache
// can lag.
const trimDelay = 10 * time.Minute

// followed returns the kinds of children that instances can have. These are the kinds in the served revision and in the
// stored revisions of all Blueprints with the same name. A kind that appears only in the inventory of an instance is
// ignored, because anyone who can update the instance can change its inventory.
func (s *historyStore) followed(served *servedRevision, stored history) []children.Kind {
	kinds := kindSet{}
	for _, child := range served.Children {
		kinds.add(children.Kind{GroupKind: child.GVK.GroupKind(), CrossNamespace: child.CrossNamespace})
	}
	for _, r := range stored {
		kinds.add(s.kindsOf(r)...)
	}
	return kinds.list()
}

// kindsOf returns the kinds of a revision's templates.
func (s *historyStore) kindsOf(r *revision) (kinds []children.Kind) {
	for _, t := range r.kinds {
		if t.Kind != "" && !t.isReference {
			crossNamespace := t.setsNamespace || !s.kinds.isNamespaced(t.GroupVersionKind)
			kinds = append(kinds, children.Kind{GroupKind: t.GroupKind(), CrossNamespace: crossNamespace})
		}
	}
	return kinds
}

// areUnused reports whether no instance has one of the kinds in its inventory. The kinds are those of an older
// revision. If unused is false, the caller must check again after retry. If retry is 0, the caller must check again
// after the next decision.
func (s *historyStore) areUnused(
	kinds []children.Kind, d decision, newest *revision,
) (unused bool, retry time.Duration) {
	if d.cleansUpOnly() || d.running.Name != newest.Name {
		return false, 0
	}
	if left := trimDelay - time.Since(d.running.started); left > 0 {
		return false, left
	}
	lister, err := s.instances.Lister(d.running.GVR)
	if err != nil {
		return false, trimDelay
	}
	all, err := lister.List(labels.Everything())
	return err == nil && !slices.ContainsFunc(all, func(object runtime.Object) bool {
		return slices.ContainsFunc(kinds, func(kind children.Kind) bool {
			return instances.InventoryNames(object, kind.GroupKind)
		})
	}), trimDelay
}

// kindSet is a set of kinds of children. The value of a kind reports whether children of the kind can be outside the
// namespace of their instance.
type kindSet map[schema.GroupKind]bool

func (s kindSet) add(kinds ...children.Kind) {
	for _, kind := range kinds {
		s[kind.GroupKind] = s[kind.GroupKind] || kind.CrossNamespace
	}
}

func (s kindSet) list() (kinds []children.Kind) {
	sorted := slices.SortedFunc(maps.Keys(s), func(a, b schema.GroupKind) int {
		return strings.Compare(a.String(), b.String())
	})
	for _, kind := range sorted {
		kinds = append(kinds, children.Kind{GroupKind: kind, CrossNamespace: s[kind]})
	}
	return kinds
}

// includes reports whether followed contains all wanted kinds. A wanted kind with CrossNamespace is contained only if
// followed contains the kind with CrossNamespace.
func includes(followed, wanted []children.Kind) bool {
	set := kindSet{}
	set.add(followed...)
	return !slices.ContainsFunc(wanted, func(kind children.Kind) bool {
		crossNamespace, has := set[kind.GroupKind]
		return !has || kind.CrossNamespace && !crossNamespace
	})
}
