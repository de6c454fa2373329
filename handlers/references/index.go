package references

import (
	"iter"
	"maps"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// selection identifies the objects of a type to which a reference refers. If the name is empty, the selector applies,
// in the API server's syntax.
type selection struct {
	types.NamespacedName
	selector string
}

// target is what at least one object refers to.
type target struct {
	kind      *kind
	selection selection
	selector  labels.Selector // nil for an object with a name
	labels    []label         // one of which the selector requires, and under which the target is found; can be nil
	referrers map[*referrer]struct{}
}

// referrer is an object that refers to at least one target.
type referrer struct {
	id dynamiccontroller.ObjectIdentifiers
	// targets maps each target to the number of the last attempt that declared it.
	targets map[*target]uint64
}

// kind holds the targets of one type.
type kind struct {
	gvr      schema.GroupVersionResource
	named    map[types.NamespacedName]*target
	selected map[string]*selectorIndex // by namespace
	added    int                       // number of targets that have been added so far
	watch    kindWatch
}

// index holds references. It is not safe for concurrent use.
type index struct {
	referrers map[dynamiccontroller.ObjectIdentifiers]*referrer
	kinds     map[schema.GroupVersionResource]*kind
}

func newIndex() index {
	return index{
		referrers: map[dynamiccontroller.ObjectIdentifiers]*referrer{},
		kinds:     map[schema.GroupVersionResource]*kind{},
	}
}

func newKind(gvr schema.GroupVersionResource) *kind {
	return &kind{
		gvr: gvr, named: map[types.NamespacedName]*target{}, selected: map[string]*selectorIndex{},
		watch: kindWatch{started: make(chan struct{})},
	}
}

// isReferredTo reports whether the kind has targets. Its watch has then been started.
func (k *kind) isReferredTo() bool { return len(k.named) > 0 || len(k.selected) > 0 }

// add adds a reference. The query is nil for an object with a name.
func (x *index) add(id dynamiccontroller.ObjectIdentifiers, attempt uint64, k *kind, s selection, q *query) {
	from := x.referrers[id]
	if from == nil {
		from = &referrer{id: id, targets: map[*target]uint64{}}
		x.referrers[id] = from
	}
	to := k.targetOf(s, q)
	from.targets[to] = max(attempt, from.targets[to])
	to.referrers[from] = struct{}{}
}

// targetOf returns the target for a selection, and adds it if necessary.
func (k *kind) targetOf(s selection, q *query) *target {
	if q == nil {
		to := k.named[s.NamespacedName]
		if to == nil {
			to = k.newTarget(s)
			k.named[s.NamespacedName] = to
		}
		return to
	}
	inNamespace := k.selected[s.Namespace]
	if inNamespace == nil {
		inNamespace = newSelectorIndex()
		k.selected[s.Namespace] = inNamespace
	}
	to := inNamespace.bySelector[s.selector]
	if to == nil {
		to = k.newTarget(s)
		to.selector = q.Selector
		inNamespace.add(to, q)
	}
	return to
}

func (k *kind) newTarget(s selection) *target {
	k.added++
	return &target{kind: k, selection: s, referrers: map[*referrer]struct{}{}}
}

// removeBefore removes the references of an object that no attempt since the given one has declared. It returns the
// kinds that have no targets any more, and removes them.
func (x *index) removeBefore(id dynamiccontroller.ObjectIdentifiers, attempt uint64) (unused []*kind) {
	from := x.referrers[id]
	if from == nil {
		return nil
	}
	for to, last := range from.targets {
		if last >= attempt {
			continue
		}
		delete(from.targets, to)
		if to.remove(from); !to.kind.isReferredTo() {
			unused = append(unused, to.kind)
			x.removeKind(to.kind)
		}
	}
	if len(from.targets) == 0 {
		delete(x.referrers, id)
	}
	return unused
}

// removeKind removes a kind, unless another one has replaced it.
func (x *index) removeKind(k *kind) {
	if x.kinds[k.gvr] == k {
		delete(x.kinds, k.gvr)
	}
}

// remove removes a referrer, and the target from its kind if it was the last referrer.
func (t *target) remove(from *referrer) {
	delete(t.referrers, from)
	if len(t.referrers) > 0 {
		return
	}
	if t.selector == nil {
		delete(t.kind.named, t.selection.NamespacedName)
		return
	}
	inNamespace := t.kind.selected[t.selection.Namespace]
	if inNamespace.remove(t); len(inNamespace.bySelector) == 0 {
		delete(t.kind.selected, t.selection.Namespace)
	}
}

// candidates returns the targets that an object with the name and the labels can match.
func (k *kind) candidates(namespace, name string, set labels.Set) (candidates []*target) {
	if to := k.named[types.NamespacedName{Namespace: namespace, Name: name}]; to != nil {
		candidates = append(candidates, to)
	}
	if everywhere := k.selected[""]; everywhere != nil { // all namespaces, or a cluster-scoped type
		candidates = everywhere.appendCandidates(candidates, set)
	}
	if inNamespace := k.selected[namespace]; namespace != "" && inNamespace != nil {
		candidates = inNamespace.appendCandidates(candidates, set)
	}
	return candidates
}

// targets returns all targets.
func (k *kind) targets() iter.Seq[*target] {
	return func(yield func(*target) bool) {
		for _, to := range k.named {
			if !yield(to) {
				return
			}
		}
		for _, selected := range k.selected {
			for _, to := range selected.bySelector {
				if !yield(to) {
					return
				}
			}
		}
	}
}

// matches reports whether a candidate refers to an object with the labels. It calls user code and uses only fields that
// do not change.
func (t *target) matches(set labels.Set) bool { return t.selector == nil || t.selector.Matches(set) }

// exists reports whether the target is an object, rather than a selector, that is in the cache.
func (t *target) exists(objects dynamiccontroller.Lister) bool {
	if t.selector != nil {
		return false
	}
	_, err := objects.ByNamespace(t.selection.Namespace).Get(t.selection.Name)
	return err == nil
}

// idsOf returns the objects that refer to the targets.
func idsOf(targets iter.Seq[*target]) (ids []dynamiccontroller.ObjectIdentifiers) {
	found := map[*referrer]struct{}{}
	for to := range targets {
		maps.Copy(found, to.referrers)
	}
	for from := range found {
		ids = append(ids, from.id)
	}
	return ids
}
