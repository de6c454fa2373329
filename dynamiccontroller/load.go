package dynamiccontroller

import (
	"sync"
	"time"

	"github.com/dynamic-controller/engine/internal/shards"
)

// ShardLoad returns what the run of a shard costs: the number of objects in its caches, and since the run began, the
// time that calls to handlers have taken, and the number of changes of objects of its types. Package replica calls it,
// so that shards are balanced by their cost.
//
// The caches are those of the shard's types, and of the types that they own or watch with [WithBucketLabel]. Other
// watches of owned and watched types are the same for all shards of a process, and do not count.
//
// ShardLoad returns false if no run serves the shard, or while the run reconciles the objects that exist when it
// begins, for at most five minutes. A run without shards serves the shard with index 0 of 1.
func (c *DynamicController) ShardLoad(index, count int) (
	objects int, busy time.Duration, changes int64, ok bool,
) {
	r := c.registry.runOf(shards.Shard{Index: index, Count: count})
	if r == nil {
		return 0, 0, 0, false
	}
	regs := c.registry.servedBy(r)
	counted := map[WatchKey]struct{}{}
	for _, reg := range regs {
		objects += reg.feed.Primary().View().Store().Len()
		busy += reg.busy()
		for key, sub := range reg.feed.Secondaries() {
			key.Owned, key.EveryOwner = false, false // they do not change what is watched
			if _, known := counted[WatchKey(key)]; !known && key.BucketLabel != "" {
				counted[WatchKey(key)] = struct{}{}
				objects += sub.View().Store().Len()
			}
		}
	}
	changes, ok = r.meter.observe(regs)
	return objects, busy, changes, ok
}

// busy returns the time of calls to the handler in the current run, including those that are running.
func (r *registration) busy() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	total := r.spent
	for _, began := range r.running {
		total += time.Since(began)
	}
	return total
}

// maxInitialPass limits the time for which a run counts as reconciling the objects that exist when it begins.
const maxInitialPass = 5 * time.Minute

// meter counts the changes that a run receives after it has reconciled the existing objects.
type meter struct {
	began time.Time // of the run

	mu      sync.Mutex // guards the fields below
	ready   bool       // the existing objects have been reconciled
	seen    map[*registration]int64
	changes int64
}

// observe returns the number of changes since the first call. It returns false while existing objects are reconciled.
func (m *meter) observe(regs []*registration) (changes int64, ready bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen, pending := make(map[*registration]int64, len(regs)), false
	for _, reg := range regs {
		seen[reg] = reg.feed.Primary().View().Changes()
		if before, known := m.seen[reg]; known && seen[reg] > before { // otherwise, the watch was replaced
			m.changes += seen[reg] - before
		}
		pending = pending || !m.ready && (!reg.feed.HasSynced() || reg.group.Stats().Background > 0)
	}
	m.seen = seen
	m.ready = m.ready || !pending || time.Since(m.began) >= maxInitialPass
	return m.changes, m.ready
}
