package acceptance

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// memoryBudget limits the estimated memory of all Blueprints together.
type memoryBudget struct {
	limit  int64 // in bytes; 0 means no limit
	claims *claims
}

// request is the memory that a spec of a Blueprint needs.
type request struct {
	uid    types.UID
	memory int64
}

// allocate grants the requests in order. A request that does not fit is skipped. If a Blueprint has two requests, the
// later one only needs the difference.
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

// reject returns a rejection if the budget is too small for the spec of b, and nil otherwise. The spec can be the
// newest one of the Blueprint or that of its newest stored revision. All replicas get the same result if their caches
// and their decisions on the other Blueprints agree.
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

// rejectOlder returns a rejection if the spec of b does not fit in addition to the newest specs and the older ones that
// have been loaded. Older revisions never displace the accepted spec of a Blueprint.
func (m *memoryBudget) rejectOlder(b *blueprint.Blueprint) (*rejection, error) {
	if m.limit <= 0 {
		return nil, nil
	}
	requests, err := m.requests("")
	if err != nil {
		return nil, err
	}
	needed := b.Spec.Memory()
	_, free := allocate(m.limit, requests)
	if free -= m.claims.registry.olderMemory(); needed <= free {
		return nil, nil
	}
	return m.exceeded(needed, max(0, free), "delete another Blueprint, or raise"), nil
}

func (m *memoryBudget) exceeded(needed, free int64, advice string) *rejection {
	return &rejection{reasonBudget, fmt.Sprintf(
		"spec: needs about %s of memory, but of the %s for all Blueprints only %s are free: %s --max-blueprint-memory",
		quantity(needed), quantity(m.limit), quantity(free), advice)}
}

// requests returns the requests of the accepted specs, followed by those of the newest specs, so that a new spec never
// displaces an accepted one. Both are ordered by the age of the Blueprints, the oldest first. The newest spec of
// a Blueprint is omitted if it was rejected for reasons other than the budget, unless the UID of the Blueprint is own.
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

// freesMemory reports whether replacing one decision with the next can free memory for other Blueprints.
func freesMemory(before, next decision) bool {
	return before.generation != next.generation || before.running != next.running ||
		before.rejection == nil && next.rejection != nil
}
