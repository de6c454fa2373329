package platform

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// demand is the memory that a Blueprint needs.
type demand struct {
	claim
	// held is the memory of its accepted spec, 0 if none has been accepted.
	held int64
	// wanted is the memory of its newest spec, 0 if that is refused for other reasons.
	wanted int64
}

// places is how the memory budget is divided among the Blueprints.
type places struct {
	held, wanted map[types.UID]bool // Blueprints with a place for the accepted spec, and for the newest
	left         int64
}

// divide gives places to the accepted specs first, so that a new spec never displaces an accepted one. The rest goes to
// the newest specs, in the order of the age of the Blueprints. A spec that does not fit is skipped.
func divide(budget int64, demands []demand) places {
	slices.SortFunc(demands, func(a, b demand) int {
		return cmp.Or(cmp.Compare(a.since, b.since), cmp.Compare(a.name, b.name))
	})
	p := places{held: map[types.UID]bool{}, wanted: map[types.UID]bool{}, left: budget}
	for _, d := range demands {
		if d.held > 0 && d.held <= p.left {
			p.held[d.uid] = true
			p.left -= d.held
		}
	}
	for _, d := range demands {
		more := d.wanted
		if p.held[d.uid] {
			more = max(0, d.wanted-d.held)
		}
		if d.wanted > 0 && more <= p.left {
			p.wanted[d.uid] = true
			p.left -= more
		}
	}
	return p
}

// overBudget returns a refusal if the memory budget is too small for the spec, which is the newest one of the Blueprint
// or a stored revision, and nil otherwise. All replicas get the same result as far as their caches and their decisions
// on the other Blueprints agree.
func (p *Platform) overBudget(b *blueprint.Blueprint) (*refusal, error) {
	budget := p.options.MaxBlueprintMemory
	if budget <= 0 {
		return nil, nil
	}
	demands, err := p.demands(b.UID)
	if err != nil {
		return nil, err
	}
	needed, divided := b.Spec.Memory(), divide(budget, demands)
	for _, d := range demands {
		if d.uid == b.UID && (divided.held[d.uid] && needed <= d.held || divided.wanted[d.uid] && needed <= d.wanted) {
			return nil, nil
		}
	}
	return &refusal{reasonBudget, fmt.Sprintf(
		"spec: needs about %s of memory, but of the %s for all Blueprints only %s are free: make the spec smaller, delete another Blueprint, or raise --max-blueprint-memory",
		quantity(needed), quantity(budget), quantity(divided.left))}, nil
}

// demands returns the demands of all Blueprints. For the Blueprint with the UID own, the newest spec counts even if it
// was refused for other reasons.
func (p *Platform) demands(own types.UID) ([]demand, error) {
	lister, err := p.engines.Definitions.Lister(blueprints)
	if err != nil {
		return nil, err
	}
	all, err := lister.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	stored, err := p.storedMemory()
	if err != nil {
		return nil, err
	}
	var demands []demand
	for _, c := range p.claims.all(all) {
		d := demand{claim: c, held: stored[c.uid], wanted: c.memory}
		if c.uid != own && p.registry.isRefusedOtherwise(c.name, c.uid) {
			d.wanted = 0
		}
		demands = append(demands, d)
	}
	return demands, nil
}

// quantity formats a number of bytes in whole MiB or KiB.
func quantity(bytes int64) string {
	const mebi, kibi = 1 << 20, 1 << 10
	if bytes >= 10*mebi {
		bytes = bytes / mebi * mebi
	} else {
		bytes = bytes / kibi * kibi
	}
	return resource.NewQuantity(bytes, resource.BinarySI).String()
}

// storedMemory returns what the newest stored spec of each Blueprint takes.
func (p *Platform) storedMemory() (map[types.UID]int64, error) {
	lister, err := p.engines.Definitions.SecondaryLister(blueprints, p.watchRevisions().Key())
	if err != nil {
		return nil, err
	}
	all, err := lister.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	newest := map[types.UID]*revision{}
	for _, object := range all {
		if r, ok := object.(*revision); ok {
			if before := newest[r.blueprintUID]; before == nil || isNewer(r, before) {
				newest[r.blueprintUID] = r
			}
		}
	}
	memory := make(map[types.UID]int64, len(newest))
	for uid, r := range newest {
		memory[uid] = r.memory
	}
	return memory, nil
}

// memoryOf estimates what serving a Blueprint takes.
func memoryOf(object *unstructured.Unstructured) int64 {
	b, err := blueprint.FromUnstructured(object)
	if err != nil {
		return 0 // it is never served
	}
	return b.Spec.Memory()
}

// isRefusedOtherwise reports whether the newest generation of the Blueprint is known to be refused for another reason than the
// memory budget.
func (r *registry) isRefusedOtherwise(name string, uid types.UID) bool {
	d, known := r.get(name)
	return known && d.uid == uid && d.refusal != nil && d.refusal.reason != reasonBudget
}

// overBudget lists the Blueprints that are refused because of the memory budget.
func (r *registry) overBudget() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, d := range r.decisions {
		if d.isOverBudget() {
			names = append(names, name)
		}
	}
	return names
}

// isOverBudget reports whether the newest generation, or the revision that was served before, is refused because of the memory
// budget.
func (d decision) isOverBudget() bool {
	return d.refusal != nil && d.refusal.reason == reasonBudget || d.loadRefusal != nil && d.loadRefusal.reason == reasonBudget
}

// freesMemory reports whether the step from one decision to the next may leave more of the memory budget to other Blueprints.
func freesMemory(before, next decision) bool {
	refused := func(d decision) bool { return d.refusal != nil }
	return before.generation != next.generation || before.running != next.running || !refused(before) && refused(next)
}
