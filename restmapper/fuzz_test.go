package restmapper

import (
	"math/rand/v2"
	"testing"
)

// FuzzM2_EventOrders applies random events in random order. The final snapshot must equal one that is created from the
// final state, and its lookups must return the same results as client-go.
func FuzzM2_EventOrders(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 0})
	}
	f.Fuzz(func(t *testing.T, seed uint64, order []byte) {
		const maxEvents = 200
		w, s := newCatalog(), emptySnapshot()
		for _, b := range order[:min(len(order), maxEvents)] {
			// Each event has its own random source, so that the fuzzer can move, repeat and omit single events.
			s = replay(t, w, s, randomEvent(rand.New(rand.NewPCG(seed, uint64(b)))))
		}
		sameSnapshots(t, s, snapshotOf(w))
		// The comparison is slow. An API server always serves at least one group.
		if seed%16 == 0 && len(order) <= 12 && len(s.ordered) > 0 {
			compare(t, w, s)
		}
	})
}
