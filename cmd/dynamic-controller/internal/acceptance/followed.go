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

// trimDelay is the time for which a revision must have been served before kinds that it does not have are dropped. It
// is well above the possible duration of a reconcile with an earlier revision, and the possible lag of the instance
// cache.
const trimDelay = 10 * time.Minute

// followed returns the kinds of children that instances can have: those of the served revision, and those of the stored
// revisions of all Blueprints with the same name. An inventory can name other kinds, because anyone who can update an
// instance can change its inventory. Such kinds are ignored.
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
		if t.Kind != "" {
			crossNamespace := t.setsNamespace || !s.kinds.isNamespaced(t.GroupVersionKind)
			kinds = append(kinds, children.Kind{GroupKind: t.GroupKind(), CrossNamespace: crossNamespace})
		}
	}
	return kinds
}

// areUnused reports whether the kinds of an older revision are absent from the inventories of all instances. If it
// returns false, they must be checked again after retry, or after the next decision if retry is 0.
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

// kindSet is a set of kinds of children. The value reports whether children of the kind can be outside the namespace of
// their instance.
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

// includes reports whether all of the wanted kinds are among the followed ones.
func includes(followed, wanted []children.Kind) bool {
	set := kindSet{}
	set.add(followed...)
	return !slices.ContainsFunc(wanted, func(kind children.Kind) bool {
		crossNamespace, has := set[kind.GroupKind]
		return !has || kind.CrossNamespace && !crossNamespace
	})
}
