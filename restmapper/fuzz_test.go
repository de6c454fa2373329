package restmapper

import (
	"math/rand/v2"
	"testing"
)

// FuzzM2_EventOrders generates events in an order and a state; the table must be that of a fresh start from the state in
// the end, and answer as client-go does.
func FuzzM2_EventOrders(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 0})
	}
	f.Fuzz(func(t *testing.T, seed uint64, order []byte) {
		const enough = 200
		w, s := newWorld(), emptySnapshot()
		for _, b := range order[:min(len(order), enough)] {
			// Each event has its own source, so that the fuzzer can move, repeat and leave out single ones.
			s = replay(t, w, s, randomEvent(rand.New(rand.NewPCG(seed, uint64(b)))))
		}
		sameSnapshots(t, s, snapshotOf(w))
		if seed%16 == 0 && len(order) <= 12 && len(s.ordered) > 0 { // it is slow, and no API server serves nothing
			compare(t, w, s)
		}
	})
}
