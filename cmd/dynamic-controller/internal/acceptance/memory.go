package acceptance

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

// memoryBudget limits the estimated memory of all Blueprints together.
type memoryBudget struct {
	limit  int64 // in bytes; 0 means no limit
	claims *claims
}

// request is the estimated memory of a Blueprint's spec.
type request struct {
	uid    types.UID
	memory int64
}

// allocate grants requests in order, and skips requests that exceed the free memory. If a Blueprint has two requests,
// the second one is granted in place of the first, so that only the difference is subtracted from the free memory.
func allocate(budget int64, requests []request) (granted map[types.UID]int64, free int64) {
	granted, free = map[types.UID]int64{}, budget
	for _, r := range requests {
		if more := max(0, r.memory-granted[r.uid]); more <= free {
			granted[r.uid] += more
			free -= more
		}
	}
	return granted, free
}

// reject returns a rejection if the budget is too small for the spec of b, and nil otherwise. The spec is that of the
// newest generation or of the newest stored revision. All replicas that have the same caches and have made the same
// decisions about the other Blueprints get the same result.
func (m *memoryBudget) reject(b *blueprint.Blueprint) (*rejection, error) {
	if m.limit <= 0 {
		return nil, nil
	}
	requests, err := m.requests(b.UID)
	if err != nil {
		return nil, err
	}
	needed := b.Spec.Memory()
	granted, free := allocate(m.limit, requests)
	if needed <= granted[b.UID] {
		return nil, nil
	}
	return m.exceeded(needed, free, "make the spec smaller, delete another Blueprint, or raise"), nil
}

// rejectOlder returns a rejection if the budget is too small for b, which has the spec of an older revision. It returns
// nil otherwise. Memory is first allocated to accepted specs, to newest specs, to the loaded older specs of other
// Blueprints, and to those of b that are kept. An older revision therefore never displaces an accepted spec.
func (m *memoryBudget) rejectOlder(b *blueprint.Blueprint, kept []instances.Revision) (*rejection, error) {
	if m.limit <= 0 {
		return nil, nil
	}
	requests, err := m.requests("")
	if err != nil {
		return nil, err
	}
	needed := b.Spec.Memory()
	_, free := allocate(m.limit, requests)
	if free -= m.claims.registry.olderMemory(b.Name) + memoryOf(kept); needed <= free {
		return nil, nil
	}
	return m.exceeded(needed, max(0, free), "delete another Blueprint, or raise"), nil
}

func (m *memoryBudget) exceeded(needed, free int64, advice string) *rejection {
	return &rejection{reasonBudget, fmt.Sprintf(
		"spec: about %s of memory is needed, but only %s of the %s for all Blueprints is free; %s --max-blueprint-memory",
		quantity(needed), quantity(free), quantity(m.limit), advice)}
}

// requests returns the requests for the accepted specs, followed by those for the newest specs, so that a new spec
// never displaces an accepted one. Each group is ordered from the oldest to the newest Blueprint. A newest spec that
// was rejected for a reason other than the budget is omitted, unless it belongs to the Blueprint with the UID own.
func (m *memoryBudget) requests(own types.UID) ([]request, error) {
	all, err := m.claims.all()
	if err != nil {
		return nil, err
	}
	stored, err := m.claims.cache.newestRevisions()
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, compareAge)
	var accepted, newest []request
	for _, c := range all {
		if r := stored[c.uid]; r != nil {
			accepted = append(accepted, request{c.uid, r.memory})
		}
		d, _ := m.claims.registry.get(c.name)
		if c.uid == own || d.uid != c.uid || d.rejection == nil || d.rejection.is(reasonBudget) {
			newest = append(newest, request{c.uid, c.memory})
		}
	}
	return append(accepted, newest...), nil
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

// freesMemory reports whether replacing the decision before with the decision next can free memory for other
// Blueprints.
func freesMemory(before, next decision) bool {
	return before.generation != next.generation || before.running != next.running ||
		before.rejection == nil && next.rejection != nil
}
