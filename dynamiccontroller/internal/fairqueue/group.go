package fairqueue

import (
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Group is a handle for an open group. Once the group has been closed or reopened, the handle's methods do nothing and
// return zero values.
type Group[T, K comparable, V any] struct {
	q       *Queue[T, K, V]
	session *session[T, K, V] // nil if the group was not open
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
func (q *Queue[T, K, V]) Open(
	key K, value V, limits Limits, limiter workqueue.TypedRateLimiter[T],
) Group[T, K, V] {
	q.mu.Lock()
	defer q.mu.Unlock()
	g := q.groups[key]
	if g == nil {
		g = &group[T, K, V]{key: key}
		g.value = g
		q.groups[key] = g
	}
	q.clearLocked(g)
	g.session = &session[T, K, V]{g: g, value: value}
	g.session.configureLocked(limits, limiter)
	return Group[T, K, V]{q, g.session}
}

// Close closes the group and drops its waiting and delayed items. Running items are tracked until they are done.
func (h Group[T, K, V]) Close() {
	h.change(func(g *group[T, K, V]) {
		g.session = nil
		h.q.clearLocked(g)
		if g.running.len == 0 {
			delete(h.q.groups, g.key)
		}
	})
}

// Configure replaces the group's limits and its rate limiter. Running items are not affected.
func (h Group[T, K, V]) Configure(limits Limits, limiter workqueue.TypedRateLimiter[T]) {
	h.change(func(*group[T, K, V]) { h.session.configureLocked(limits, limiter) })
}

// Pause makes Next skip the group until Resume is called. A paused group still accepts items.
func (h Group[T, K, V]) Pause() { h.change(func(*group[T, K, V]) { h.session.paused = true }) }

// Resume ends a pause.
func (h Group[T, K, V]) Resume() { h.change(func(*group[T, K, V]) { h.session.paused = false }) }

func (h Group[T, K, V]) change(f func(*group[T, K, V])) {
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

func (h Group[T, K, V]) endedLocked() bool {
	return h.session == nil || h.session.g.session != h.session
}

// Add adds items to a lane. It returns false if the handle is no longer valid or the queue is shut down.
//
// A running item is handed out again after Done. Adding a delayed item to the live lane cancels the delay.
func (h Group[T, K, V]) Add(lane Lane, keys ...T) bool {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.q.closed || h.endedLocked() {
		return false
	}
	for _, key := range keys {
		h.q.addLocked(h.session.g, key, lane)
	}
	h.q.wakeLocked()
	return true
}

// AddAfter adds an item to the live lane after d, or immediately if d is not positive. It has no effect if the item is
// already in the live lane or due earlier. The delay of a running item starts immediately. AddAfter returns false if
// the handle is no longer valid or the queue is shut down.
func (h Group[T, K, V]) AddAfter(key T, d time.Duration) bool {
	if d <= 0 {
		return h.Add(Live, key)
	}
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.q.closed || h.endedLocked() {
		return false
	}
	h.q.delayLocked(h.session.g, key, d)
	return true
}

// AddRateLimited calls AddAfter with the delay that the rate limiter returns for the item.
func (h Group[T, K, V]) AddRateLimited(key T) {
	if limiter := h.limiter(); limiter != nil {
		h.AddAfter(key, limiter.When(key))
	}
}

// Forget makes the rate limiter forget the item's failures.
func (h Group[T, K, V]) Forget(key T) {
	if limiter := h.limiter(); limiter != nil {
		limiter.Forget(key)
	}
}

// limiter returns the group's rate limiter, or nil if the handle is no longer valid.
func (h Group[T, K, V]) limiter() workqueue.TypedRateLimiter[T] {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.endedLocked() {
		return nil
	}
	return h.session.limiter
}

// Has reports whether the group's item with this key is waiting, delayed or running.
func (h Group[T, K, V]) Has(key T) bool {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	return !h.endedLocked() && h.session.g.items[key] != nil
}

// Stats returns the current statistics in constant time.
func (h Group[T, K, V]) Stats() (s Stats) {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.endedLocked() {
		return s
	}
	g := h.session.g
	s.Live, s.Background = g.lanes[Live].len, g.lanes[Background].len
	s.Delayed, s.Running = len(g.delays), g.running.len
	for _, lane := range g.lanes {
		if lane.head != nil {
			s.Oldest = max(s.Oldest, h.q.now()-lane.head.value.since)
		}
	}
	return s
}

// session is the state of a group from Open until Close or the next Open.
type session[T, K comparable, V any] struct {
	g        *group[T, K, V]
	value    V
	limits   Limits
	limiter  workqueue.TypedRateLimiter[T]
	paused   bool
	returned bool // whether Done has been called for an item handed out since Open
}

func (s *session[T, K, V]) configureLocked(limits Limits, limiter workqueue.TypedRateLimiter[T]) {
	if limiter == nil {
		limiter = workqueue.DefaultTypedItemBasedRateLimiter[T]()
	}
	limits.Weight = max(limits.Weight, 1)
	s.limits, s.limiter = limits, limiter
	s.g.credit = min(s.g.credit, limits.Weight)
}

// group is the queue's state for one group key. A closed group is kept while items are running.
type group[T, K comparable, V any] struct {
	element[*group[T, K, V]] // in the ring
	delay                    // the earliest of the delays below

	key     K
	session *session[T, K, V] // nil if the group is closed
	items   map[T]*item[T, K, V]
	peak    int // the largest number of entries that the map items has had
	lanes   [lanes]list[*item[T, K, V]]
	running list[*item[T, K, V]] // the oldest first
	delays  delayHeap[*item[T, K, V]]

	credit    int // items left in the current turn
	liveTurns int // items taken from the live lane since the last one from the background lane
}

func (g *group[T, K, V]) waitingLocked() int { return g.lanes[Live].len + g.lanes[Background].len }

// item is a key that is waiting, delayed or running. A waiting or running item can be delayed at the same time.
type item[T, K comparable, V any] struct {
	element[*item[T, K, V]] // in a lane or in the list of running items
	delay

	key     T
	session *session[T, K, V] // the group's session when the item was handed out; nil if the item is not running
	since   time.Duration     // when the item started to wait or to run
	queued  bool              // the item is in its lane, or Done will add it to the lane
	lane    Lane
	term    int // the queue's term when the item was handed out
}

// addLocked adds the item to the lane. A queued item can only move from the background to the live lane.
func (q *Queue[T, K, V]) addLocked(g *group[T, K, V], key T, lane Lane) {
	it := q.itemLocked(g, key)
	if lane == Live {
		q.endDelayLocked(g, it)
	}
	before, queued := it.lane, it.queued
	if queued && before <= lane {
		return
	}
	it.queued, it.lane = true, lane
	switch {
	case it.session != nil: // Done will add it to the lane
	case queued:
		g.lanes[before].remove(&it.element)
		g.lanes[lane].pushBack(&it.element)
	default:
		q.pushLocked(g, it)
		q.placeLocked(g)
	}
}

func (q *Queue[T, K, V]) pushLocked(g *group[T, K, V], it *item[T, K, V]) {
	it.since = q.now()
	g.lanes[it.lane].pushBack(&it.element)
	q.waiting++
}

// clearLocked drops all items that are not being processed.
func (q *Queue[T, K, V]) clearLocked(g *group[T, K, V]) {
	q.waiting -= g.waitingLocked()
	g.lanes = [lanes]list[*item[T, K, V]]{}
	g.credit, g.liveTurns = 0, 0
	q.placeLocked(g)
	g.delays = nil
	q.updateDelayLocked(g)

	g.items, g.peak = make(map[T]*item[T, K, V], g.running.len), g.running.len
	for it := range g.running.all() {
		it.queued, it.delay = false, delay{}
		g.items[it.key] = it
	}
}

// maxReused limits the size of maps that are reused. Larger maps are replaced, because maps never shrink.
const maxReused = 1024

// itemLocked returns the group's item for the key, creating it if necessary.
func (q *Queue[T, K, V]) itemLocked(g *group[T, K, V], key T) *item[T, K, V] {
	if it := g.items[key]; it != nil {
		return it
	}
	it, _ := q.free.Get().(*item[T, K, V])
	if it == nil {
		it = &item[T, K, V]{}
	}
	it.value, it.key = it, key
	g.items[key] = it
	g.peak = max(g.peak, len(g.items))
	return it
}

func (q *Queue[T, K, V]) dropItemLocked(g *group[T, K, V], it *item[T, K, V]) {
	delete(g.items, it.key)
	if len(g.items) == 0 && g.peak > maxReused {
		g.items, g.peak, g.delays = map[T]*item[T, K, V]{}, 0, nil
	}
	*it = item[T, K, V]{}
	q.free.Put(it)
}
