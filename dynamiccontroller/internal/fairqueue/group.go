package fairqueue

import (
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Group is a handle for an open group. Once the group has been closed or reopened, the handle's methods do nothing and
// return zero values.
type Group[T, K, N comparable, V any] struct {
	q       *Queue[T, K, N, V]
	session *session[T, K, N, V] // nil if the group was not open
}

// Stats describes the items of a group.
type Stats struct {
	Live, Background int           // items waiting in each lane
	Delayed          int           // delayed items, including those that also wait in the background lane
	Running          int           // items for which Done has not been called, even if they were handed out before Open
	Oldest           time.Duration // how long the first item of either lane has been waiting, whichever is longer
}

// Open opens a group, so that it accepts items. Next returns value together with each item of the group. If the group
// is already open, its items are dropped and the previous handle becomes invalid.
//
// The limiter computes the delays for AddRateLimited. It must be safe for concurrent use. Pass a new limiter to each
// Open, so that earlier failures do not count. If limiter is nil, client-go's DefaultTypedItemBasedRateLimiter is used.
// The limiter is never called while the queue is locked.
func (q *Queue[T, K, N, V]) Open(
	key K, value V, limits Limits, limiter workqueue.TypedRateLimiter[T],
) Group[T, K, N, V] {
	q.mu.Lock()
	defer q.mu.Unlock()
	g := q.groups[key]
	if g == nil {
		g = &group[T, K, N, V]{key: key}
		g.value = g
		q.groups[key] = g
	}
	q.clearLocked(g)
	g.session = &session[T, K, N, V]{g: g, value: value}
	g.session.configureLocked(limits, limiter)
	return Group[T, K, N, V]{q, g.session}
}

// Close closes the group and drops its waiting and delayed items. Running items are tracked until they are done.
func (h Group[T, K, N, V]) Close() {
	h.change(func(g *group[T, K, N, V]) {
		g.session = nil
		h.q.clearLocked(g)
		if g.running.len == 0 {
			delete(h.q.groups, g.key)
		}
	})
}

// Configure replaces the group's limits and its rate limiter. Running items are not affected.
func (h Group[T, K, N, V]) Configure(limits Limits, limiter workqueue.TypedRateLimiter[T]) {
	h.change(func(*group[T, K, N, V]) { h.session.configureLocked(limits, limiter) })
}

// Pause makes Next skip the group until Resume is called. A paused group still accepts items.
func (h Group[T, K, N, V]) Pause() { h.change(func(*group[T, K, N, V]) { h.session.paused = true }) }

// Resume ends a pause.
func (h Group[T, K, N, V]) Resume() { h.change(func(*group[T, K, N, V]) { h.session.paused = false }) }

func (h Group[T, K, N, V]) change(f func(*group[T, K, N, V])) {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.endedLocked() {
		return
	}
	f(h.session.g)
	h.q.placeLocked(h.session.g)
	h.q.wakeLocked()
	h.q.endShutDownLocked()
}

func (h Group[T, K, N, V]) endedLocked() bool {
	return h.session == nil || h.session.g.session != h.session
}

// Add adds items to a lane. It returns false if the handle is no longer valid or the queue is shut down.
//
// A running item is handed out again after Done. Adding a delayed item to the live lane cancels the delay.
func (h Group[T, K, N, V]) Add(lane Lane, names ...N) bool {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.q.closed || h.endedLocked() {
		return false
	}
	now := h.q.now()
	for _, name := range names {
		h.q.addLocked(h.session.g, name, lane, now)
	}
	h.q.wakeLocked()
	return true
}

// AddAfter adds an item to the live lane after d, or immediately if d is not positive. It has no effect if the item is
// already in the live lane or due earlier. The delay of a running item starts immediately. AddAfter returns false if
// the handle is no longer valid or the queue is shut down.
func (h Group[T, K, N, V]) AddAfter(name N, d time.Duration) bool {
	if d <= 0 {
		return h.Add(Live, name)
	}
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.q.closed || h.endedLocked() {
		return false
	}
	h.q.delayLocked(h.session.g, name, d)
	return true
}

// AddRateLimited calls AddAfter with the delay that the rate limiter returns for the item.
func (h Group[T, K, N, V]) AddRateLimited(name N) {
	if limiter := h.limiter(); limiter != nil {
		h.AddAfter(name, limiter.When(h.q.itemOf(h.session.g.key, name)))
	}
}

// Forget makes the rate limiter forget the item's failures.
func (h Group[T, K, N, V]) Forget(name N) {
	if limiter := h.limiter(); limiter != nil {
		limiter.Forget(h.q.itemOf(h.session.g.key, name))
	}
}

// limiter returns the group's rate limiter, or nil if the handle is no longer valid.
func (h Group[T, K, N, V]) limiter() workqueue.TypedRateLimiter[T] {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.endedLocked() {
		return nil
	}
	return h.session.limiter
}

// Has reports whether the group's item with this name is waiting, delayed or running.
func (h Group[T, K, N, V]) Has(name N) bool {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	return !h.endedLocked() && h.session.g.items[name] != nil
}

// Stats returns the current statistics in constant time.
func (h Group[T, K, N, V]) Stats() (s Stats) {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.endedLocked() {
		return s
	}
	g, now := h.session.g, h.q.now()
	s = Stats{Live: g.live.len, Background: g.background.len, Delayed: len(g.delays), Running: g.running.len}
	if s.Live > 0 {
		s.Oldest = now - g.live.head.value.since
	}
	if s.Background > 0 {
		s.Oldest = max(s.Oldest, now-g.background.batches[0].since)
	}
	return s
}

// session is the state of a group from Open until Close or the next Open.
type session[T, K, N comparable, V any] struct {
	g        *group[T, K, N, V]
	value    V
	limits   Limits
	limiter  workqueue.TypedRateLimiter[T]
	paused   bool
	returned bool // whether Done has been called for an item handed out since Open
}

func (s *session[T, K, N, V]) configureLocked(limits Limits, limiter workqueue.TypedRateLimiter[T]) {
	if limiter == nil {
		limiter = workqueue.DefaultTypedItemBasedRateLimiter[T]()
	}
	limits.Weight = max(limits.Weight, 1)
	s.limits, s.limiter = limits, limiter
	s.g.credit = min(s.g.credit, limits.Weight)
}

// group is the queue's state for one group key. A closed group is kept while items are running.
type group[T, K, N comparable, V any] struct {
	element[*group[T, K, N, V]] // in the ring
	delay                       // the earliest of the delays below

	key        K
	session    *session[T, K, N, V] // nil if the group is closed
	items      map[N]*item[T, K, N, V]
	peak       int // largest len(items) seen by dropItemLocked
	live       list[*item[T, K, N, V]]
	background backlog[T, K, N, V]
	running    list[*item[T, K, N, V]] // oldest first
	delays     delayHeap[*item[T, K, N, V]]

	credit    int // items left in the current turn
	liveTurns int // items taken from the live lane since the last one from the background lane
}

func (g *group[T, K, N, V]) waitingLocked() int { return g.live.len + g.background.len }

// item is the state of an item that is waiting, delayed or running. A waiting or running item can also be delayed.
type item[T, K, N comparable, V any] struct {
	element[*item[T, K, N, V]] // in the live lane or in the list of running items
	delay

	name    N                    // not set in a shared item
	session *session[T, K, N, V] // the group's session when the item was handed out; nil if the item is not running
	since   time.Duration        // when the item started to wait or to run
	queued  bool                 // the item is in its lane, or Done will add it to the lane
	shared  bool                 // the struct represents several items; see backlog
	lane    Lane
	term    int // the queue's term when the item was handed out
}

// clearLocked drops all items that are not being processed.
func (q *Queue[T, K, N, V]) clearLocked(g *group[T, K, N, V]) {
	q.waiting -= g.waitingLocked()
	g.live, g.background = list[*item[T, K, N, V]]{}, backlog[T, K, N, V]{}
	g.credit, g.liveTurns = 0, 0
	q.placeLocked(g)
	g.delays = nil
	q.updateDelayLocked(g)

	g.items, g.peak = make(map[N]*item[T, K, N, V], g.running.len), g.running.len
	for it := range g.running.all() {
		it.queued, it.delay = false, delay{}
		g.items[it.name] = it
	}
}

// maxReused limits the size of maps that are reused. Larger maps are replaced, because maps never shrink.
const maxReused = 1024

// itemLocked returns the group's item with this name, creating it if necessary. The result is not shared.
func (q *Queue[T, K, N, V]) itemLocked(g *group[T, K, N, V], name N) *item[T, K, N, V] {
	before := g.items[name]
	if before != nil && !before.shared {
		return before
	}
	it, _ := q.free.Get().(*item[T, K, N, V])
	if it == nil {
		it = &item[T, K, N, V]{}
	}
	if before != nil {
		it.queued, it.lane, it.since = true, Background, before.since
	}
	it.value, it.name = it, name
	g.items[name] = it
	return it
}

func (q *Queue[T, K, N, V]) dropItemLocked(g *group[T, K, N, V], it *item[T, K, N, V]) {
	g.peak = max(g.peak, len(g.items))
	delete(g.items, it.name)
	if len(g.items) == 0 && g.peak > maxReused {
		g.items, g.peak, g.delays = map[N]*item[T, K, N, V]{}, 0, nil
	}
	*it = item[T, K, N, V]{}
	q.free.Put(it)
}
