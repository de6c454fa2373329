package dynamiccontroller

import (
	"context"
	"hash/maphash"
	"math/rand/v2"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
)

// A resync period is cut into slots, and each object belongs to one by a hash of its key, so that it is resynced at
// about the same place of every period. Only a slot's keys are ever held, and each slot's in another order.
const (
	resyncSlots = 64
	// resyncTicks is how often in a slot what is due is enqueued.
	resyncTicks = 100
	// shortestResyncTick bounds that for short periods.
	shortestResyncTick = 10 * time.Millisecond
	// shortestResyncPeriod is what a period without its unit is not.
	shortestResyncPeriod = time.Second
)

// resync enqueues every object of every type about once a period, until ctx ends. It makes no request.
func (c *DynamicController) resync(ctx context.Context) {
	if c.config.ResyncPeriod < 0 {
		return
	}
	slot := c.config.ResyncPeriod / resyncSlots
	tick := time.NewTicker(max(slot/resyncTicks, shortestResyncTick))
	defer tick.Stop()
	seed := maphash.MakeSeed()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for _, reg := range c.registered() {
				if reg.round == nil || reg.round.seed != seed {
					reg.round = &resyncRound{seed: seed, slot: rand.N(resyncSlots), began: now}
				}
				// What is parked may be gone from the cache.
				keys := func(slot int) []string { return slotKeys(append(c.watchOf(reg).Keys(), reg.owed()...), seed, slot) }
				if due := reg.round.due(now, slot, keys); len(due) > 0 {
					reg.group.Add(fairqueue.Background, reg.ids(due)...)
				}
			}
		}
	}
}

// resyncRound is how far a type's resync has come.
type resyncRound struct {
	seed  maphash.Seed // of the run
	slot  int
	began time.Time // the slot
	keys  []string  // of the slot, not enqueued yet
	total int       // of the slot
	known bool      // keys were looked up
}

// due returns the keys that are due by now, at an even pace over the slot.
func (r *resyncRound) due(now time.Time, slot time.Duration, keysOf func(slot int) []string) (due []string) {
	if now.Sub(r.began) > resyncSlots*slot {
		r.began = now.Add(-slot) // the process was suspended: one slot is enough to begin with
	}
	for {
		if !r.known {
			r.keys = keysOf(r.slot)
			r.total, r.known = len(r.keys), true
		}
		elapsed := now.Sub(r.began)
		if elapsed < slot {
			left := r.total - int(float64(r.total)*float64(elapsed)/float64(slot))
			n := max(len(r.keys)-left, 0)
			due = append(due, r.keys[:n]...)
			r.keys = r.keys[n:]
			return due
		}
		due = append(due, r.keys...)
		r.slot, r.began, r.keys, r.known = (r.slot+1)%resyncSlots, r.began.Add(slot), nil, false
	}
}

// slotKeys leaves of the keys those of the slot, in a random order.
func slotKeys(keys []string, seed maphash.Seed, slot int) []string {
	of := keys[:0]
	for _, key := range keys {
		if maphash.String(seed, key)%resyncSlots == uint64(slot) {
			of = append(of, key)
		}
	}
	of = append([]string(nil), of...)
	rand.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
	return of
}
