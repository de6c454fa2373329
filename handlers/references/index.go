package references

import (
	"iter"
	"maps"
	"slices"

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
	selected map[string]map[string]*target // by namespace and selector
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
		gvr: gvr, named: map[types.NamespacedName]*target{}, selected: map[string]map[string]*target{},
		watch: kindWatch{started: make(chan struct{})},
	}
}

// isReferredTo reports whether the kind has targets. Its watch has then been started.
func (k *kind) isReferredTo() bool { return len(k.named) > 0 || len(k.selected) > 0 }

// add adds a reference.
func (x *index) add(
	id dynamiccontroller.ObjectIdentifiers, attempt uint64, k *kind, s selection, selector labels.Selector,
) {
	from := x.referrers[id]
	if from == nil {
		from = &referrer{id: id, targets: map[*target]uint64{}}
		x.referrers[id] = from
	}
	to := k.targetOf(s, selector)
	from.targets[to] = max(attempt, from.targets[to])
	to.referrers[from] = struct{}{}
}

// targetOf returns the target for a selection, and adds it if necessary.
func (k *kind) targetOf(s selection, selector labels.Selector) *target {
	to := k.named[s.NamespacedName]
	if selector != nil {
		to = k.selected[s.Namespace][s.selector]
	}
	if to != nil {
		return to
	}
	to = &target{kind: k, selection: s, selector: selector, referrers: map[*referrer]struct{}{}}
	if selector == nil {
		k.named[s.NamespacedName] = to
		return to
	}
	if k.selected[s.Namespace] == nil {
		k.selected[s.Namespace] = map[string]*target{}
	}
	k.selected[s.Namespace][s.selector] = to
	return to
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
	if delete(inNamespace, t.selection.selector); len(inNamespace) == 0 {
		delete(t.kind.selected, t.selection.Namespace)
	}
}

// candidates returns the targets that an object with the name can match.
func (k *kind) candidates(namespace, name string) (candidates []*target) {
	if to := k.named[types.NamespacedName{Namespace: namespace, Name: name}]; to != nil {
		candidates = append(candidates, to)
	}
	candidates = slices.AppendSeq(candidates, maps.Values(k.selected[""])) // all namespaces, or a cluster-scoped type
	if namespace != "" {
		candidates = slices.AppendSeq(candidates, maps.Values(k.selected[namespace]))
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
			for _, to := range selected {
				if !yield(to) {
					return
				}
			}
		}
	}
}

// matches reports whether a candidate refers to an object in its given state. It calls user code and uses only fields
// that do not change.
func (t *target) matches(object dynamiccontroller.Object) bool {
	return t.selector == nil || t.selector.Matches(labels.Set(object.GetLabels()))
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
