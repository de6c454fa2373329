package dynamiccontroller

import (
	"sync"
	"time"
)

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
