package fairqueue

import "time"

// Group is one opening of a group. Its methods do nothing once it was closed or opened again.
type Group[T, K comparable, V any] struct {
	q     *Queue[T, K, V]
	g     *group[T, K, V]
	epoch uint64
}

// Stats is what a group holds.
type Stats struct {
	Live, Background int           // waiting, a lane
	Delayed          int           // waiting for their time
	Running          int           // handed out and not Done
	Oldest           time.Duration // how long the longest waiting head of a lane has waited
}

// Open makes the queue take items of the group. Value is handed out with each of them. A group that is open already is
// opened anew: what it holds is dropped and the earlier opening is closed.
func (q *Queue[T, K, V]) Open(key K, value V, limits Limits) Group[T, K, V] {
	q.mu.Lock()
	defer q.mu.Unlock()
	g := q.groups[key]
	if g == nil {
		g = &group[T, K, V]{key: key, delaysAt: -1}
		g.delays = heap[*item[T, K, V]]{before: dueBefore[T, K, V], moved: func(it *item[T, K, V], at int) { it.delayAt = at }}
		q.groups[key] = g
	} else {
		q.clearLocked(g)
	}
	g.open, g.held, g.value = true, false, value
	g.epoch++
	g.setLimits(limits)
	return Group[T, K, V]{q: q, g: g, epoch: g.epoch}
}

// Close drops what the group holds. From now on it takes and hands out nothing.
func (h Group[T, K, V]) Close() {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.stale() {
		return
	}
	var none V
	h.g.open, h.g.value = false, none
	h.q.clearLocked(h.g)
	if h.g.working.len == 0 {
		delete(h.q.groups, h.g.key)
	}
	if h.q.closed {
		h.q.handOut.Broadcast()
		h.q.drained.Broadcast()
	}
}

// Add puts the items in the lane. It tells whether they were taken, which a queue that was shut down does not.
func (h Group[T, K, V]) Add(lane Lane, keys ...T) bool {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.q.closed || h.stale() {
		return false
	}
	for _, key := range keys {
		h.q.addLocked(h.g, key, lane)
	}
	return true
}

// SetLimits replaces the group's limits, with effect on the next item.
func (h Group[T, K, V]) SetLimits(limits Limits) {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.stale() {
		return
	}
	h.g.setLimits(limits)
	h.q.seatLocked(h.g)
}

// Hold makes the group keep what it is given and hand out nothing, until Release.
func (h Group[T, K, V]) Hold() { h.hold(true) }

// Release ends a Hold.
func (h Group[T, K, V]) Release() { h.hold(false) }

func (h Group[T, K, V]) hold(held bool) {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.stale() {
		return
	}
	h.g.held = held
	h.q.seatLocked(h.g)
}

// Stats tells what the group holds. It costs the same whatever the group holds.
func (h Group[T, K, V]) Stats() Stats {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.stale() {
		return Stats{}
	}
	s := Stats{
		Live:       h.g.lines[Live].len,
		Background: h.g.lines[Background].len,
		Delayed:    h.g.delays.len(),
		Running:    h.g.working.len,
	}
	for _, line := range h.g.lines {
		if line.head != nil {
			s.Oldest = max(s.Oldest, time.Since(h.q.began)-line.head.since)
		}
	}
	return s
}

func (h Group[T, K, V]) stale() bool { return !h.g.open || h.g.epoch != h.epoch }

// group is what the queue knows of a group. The queue's lock guards it.
type group[T, K comparable, V any] struct {
	key    K
	value  V
	open   bool
	held   bool
	epoch  uint64 // of the newest opening
	limits Limits

	items   map[T]*item[T, K, V] // all that are known: waiting, delayed, running
	peak    int                  // the most that items has held since it was made
	lines   [lanes]line[T, K, V]
	working line[T, K, V] // handed out and not Done, of earlier openings too
	skipped int           // live items handed out since the background lane had a turn

	delays   heap[*item[T, K, V]]
	delaysAt int // in the queue's heap, -1 when not there

	credit     int // what is left of its turn, zero when it has none
	inRing     bool
	prev, next *group[T, K, V]
}

func (g *group[T, K, V]) setLimits(limits Limits) {
	limits.Weight = max(limits.Weight, 1)
	g.limits = limits
	g.credit = min(g.credit, limits.Weight)
}

func (g *group[T, K, V]) waiting() int { return g.lines[Live].len + g.lines[Background].len }

func (g *group[T, K, V]) eligible() bool {
	return !g.held && g.waiting() > 0 && (g.limits.Concurrency < 1 || g.working.len < g.limits.Concurrency)
}

// popLocked takes the next item off its lane.
func (g *group[T, K, V]) popLocked() *item[T, K, V] {
	lane := Live
	switch {
	case g.lines[Background].len == 0:
		g.skipped = 0
	case g.lines[Live].len == 0 || g.skipped >= backgroundShare-1:
		lane, g.skipped = Background, 0
	default:
		g.skipped++
	}
	it := g.lines[lane].head
	g.lines[lane].remove(it)
	it.waiting = false
	return it
}

func (g *group[T, K, V]) dueBefore(other *group[T, K, V]) bool {
	return g.delays.first().due.Before(other.delays.first().due)
}

// shrinkAbove is the size above which an emptied map is given back: Go's maps keep their largest size.
const shrinkAbove = 1024

func (g *group[T, K, V]) shrink() {
	if len(g.items) == 0 && g.peak > shrinkAbove {
		g.items, g.peak = nil, 0
		g.delays.elements = nil
	}
}

// clearLocked drops all but the items being processed.
func (q *Queue[T, K, V]) clearLocked(g *group[T, K, V]) {
	q.ring.leave(g)
	q.waiting -= g.waiting()
	g.lines = [lanes]line[T, K, V]{}
	g.skipped, g.credit = 0, 0
	g.delays.elements = nil
	q.rescheduleLocked(g)

	g.items, g.peak = nil, g.working.len
	if g.working.len > 0 {
		g.items = make(map[T]*item[T, K, V], g.working.len)
	}
	for it := g.working.head; it != nil; it = it.next {
		it.again, it.delayAt = false, -1
		g.items[it.key] = it
	}
}

// item is one key that the queue knows: it waits in a lane, or is delayed, or runs, or runs and is delayed or wanted
// again.
type item[T, K comparable, V any] struct {
	key        T
	prev, next *item[T, K, V] // in its lane, or among those being processed
	since      time.Duration  // when it began to wait, from when the queue began
	due        time.Time      // when delayed
	delayAt    int            // in its group's heap, -1 when not delayed
	epoch      uint64         // of the opening that it was handed out for
	lane       Lane
	waiting    bool
	running    bool
	again      bool // wanted again after Done
}

func (it *item[T, K, V]) delayed() bool { return it.delayAt >= 0 }

func dueBefore[T, K comparable, V any](a, b *item[T, K, V]) bool { return a.due.Before(b.due) }
