package fairqueue

import (
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Group is a handle on one opening of a group. The opening ends when the group is closed or opened again. From then on,
// all methods do nothing and return zero values.
type Group[T, K comparable, V any] struct {
	q *Queue[T, K, V]
	o *opening[T, K, V] // nil if the group was not open
}

// Stats describes the items of a group.
type Stats struct {
	Live, Background int           // items waiting in each lane
	Delayed          int           // delayed items, including those that also wait in the background lane
	Running          int           // items that are handed out and not done, including those of earlier openings
	Oldest           time.Duration // how long the first item of a lane has been waiting; the maximum of both lanes
}

// Open opens the group, so that it accepts items. Next returns value together with each item of the group. If the group
// is already open, its items are dropped and the earlier opening ends.
//
// The limiter computes the delays for AddRateLimited. It belongs to the opening: each opening must have its own
// limiter, so that failures in one opening do not count against the next. The limiter must be safe for concurrent use.
// It is called without holding the queue's lock. A nil limiter is replaced by client-go's
// DefaultTypedItemBasedRateLimiter.
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
	} else {
		q.clearLocked(g)
	}
	g.opening = &opening[T, K, V]{g: g, value: value}
	g.opening.configureLocked(limits, limiter)
	return Group[T, K, V]{q, g.opening}
}

// Close ends the opening and drops its items. Running items are tracked until Done is called for them.
func (h Group[T, K, V]) Close() {
	h.change(func(g *group[T, K, V]) {
		g.opening = nil
		h.q.clearLocked(g)
		if g.running.len == 0 {
			delete(h.q.groups, g.key)
		}
	})
}

// Configure replaces the limits and the rate limiter. Items that are already running are not affected.
func (h Group[T, K, V]) Configure(limits Limits, limiter workqueue.TypedRateLimiter[T]) {
	h.change(func(*group[T, K, V]) { h.o.configureLocked(limits, limiter) })
}

// Pause makes the group keep its items, without handing out any of them, until Resume is called.
func (h Group[T, K, V]) Pause() { h.change(func(*group[T, K, V]) { h.o.paused = true }) }

// Resume ends a pause.
func (h Group[T, K, V]) Resume() { h.change(func(*group[T, K, V]) { h.o.paused = false }) }

func (h Group[T, K, V]) change(f func(*group[T, K, V])) {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.endedLocked() {
		return
	}
	f(h.o.g)
	h.q.placeLocked(h.o.g)
	h.q.wakeLocked()
	h.q.endShutDownLocked()
}

func (h Group[T, K, V]) endedLocked() bool { return h.o == nil || h.o.g.opening != h.o }

// Add adds the items to the lane. It reports whether the group accepts items. The result is false if the opening has
// ended or the queue is shut down.
//
// An item that is running waits again after Done, even if it is running for an earlier opening. Adding a delayed item
// to the live lane ends the delay. Adding it to the background lane keeps the delay.
func (h Group[T, K, V]) Add(lane Lane, keys ...T) bool {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.q.closed || h.endedLocked() {
		return false
	}
	for _, key := range keys {
		h.q.addLocked(h.o.g, key, lane)
	}
	h.q.wakeLocked()
	return true
}

// AddAfter adds the item to the live lane after d, or immediately if d is not positive. The earliest of several delays
// counts. The call has no effect if the item is waiting in the live lane, or is running and has been added to that lane
// again. If the item is waiting in the background lane, it also stays there until the delay ends or the item is handed
// out.
//
// The delay of an item that is running starts immediately. If it ends before Done, the item waits again after Done.
// This is also true if the item is running for an earlier opening. However, calls for the earlier opening, through its
// own handle or through Queue.AddAfter, have no effect.
func (h Group[T, K, V]) AddAfter(key T, d time.Duration) {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.q.closed || h.endedLocked() {
		return
	}
	if d > 0 {
		h.q.delayLocked(h.o.g, key, d)
		return
	}
	h.q.addLocked(h.o.g, key, Live)
	h.q.wakeLocked()
}

// AddRateLimited calls AddAfter with the delay that the rate limiter returns for the item.
func (h Group[T, K, V]) AddRateLimited(key T) {
	if limiter := h.limiter(); limiter != nil {
		h.AddAfter(key, limiter.When(key))
	}
}

// Forget makes the rate limiter forget the failures of the item.
func (h Group[T, K, V]) Forget(key T) {
	if limiter := h.limiter(); limiter != nil {
		limiter.Forget(key)
	}
}

// NumRequeues returns how many times the rate limiter has been asked for a delay for the item since the last Forget.
func (h Group[T, K, V]) NumRequeues(key T) int {
	if limiter := h.limiter(); limiter != nil {
		return limiter.NumRequeues(key)
	}
	return 0
}

// limiter returns nil if the opening has ended.
func (h Group[T, K, V]) limiter() workqueue.TypedRateLimiter[T] {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.endedLocked() {
		return nil
	}
	return h.o.limiter
}

// Stats returns the current statistics in constant time.
func (h Group[T, K, V]) Stats() (s Stats) {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.endedLocked() {
		return s
	}
	g := h.o.g
	s.Live, s.Background = g.lanes[Live].len, g.lanes[Background].len
	s.Delayed, s.Running = len(g.delays), g.running.len
	for _, lane := range g.lanes {
		if lane.head != nil {
			s.Oldest = max(s.Oldest, h.q.now()-lane.head.value.since)
		}
	}
	return s
}

// opening is the state of a group from Open until Close or the next Open.
type opening[T, K comparable, V any] struct {
	g        *group[T, K, V]
	value    V
	limits   Limits
	limiter  workqueue.TypedRateLimiter[T]
	paused   bool
	returned bool // at least one item that was handed out for this opening is done
}

func (o *opening[T, K, V]) configureLocked(limits Limits, limiter workqueue.TypedRateLimiter[T]) {
	if limiter == nil {
		limiter = workqueue.DefaultTypedItemBasedRateLimiter[T]()
	}
	limits.Weight = max(limits.Weight, 1)
	o.limits, o.limiter = limits, limiter
	o.g.credit = min(o.g.credit, limits.Weight)
}

// group holds the items of all openings of a group. A closed group is kept while items are running.
type group[T, K comparable, V any] struct {
	element[*group[T, K, V]] // the group's element in the ring
	delay                    // the earliest of delays

	key     K
	opening *opening[T, K, V] // nil if the group is closed
	items   map[T]*item[T, K, V]
	peak    int // the largest size of items
	lanes   [lanes]list[*item[T, K, V]]
	running list[*item[T, K, V]] // the oldest first
	delays  delayHeap[*item[T, K, V]]

	inRing    bool
	credit    int // items left in the current turn
	liveTurns int // items taken from the live lane since the last one from the background lane
}

func (g *group[T, K, V]) waitingLocked() int { return g.lanes[Live].len + g.lanes[Background].len }

// item is a key that is waiting, delayed or running. It can be delayed while it is waiting or running.
type item[T, K comparable, V any] struct {
	element[*item[T, K, V]] // in a lane or in the list of running items
	delay

	key     T
	opening *opening[T, K, V] // the opening for which the item is running; nil if it is not running
	since   time.Duration     // when it started to wait or to run
	lane    Lane
	term    int // the term in which it was handed out
	waiting bool
	again   bool // running, and was added again
}

// addLocked adds the item to the lane. If the item is waiting in the background lane, it can move to the live lane. If
// it is running, it is marked to wait again after Done.
func (q *Queue[T, K, V]) addLocked(g *group[T, K, V], key T, lane Lane) {
	if q.closed || g.opening == nil {
		return
	}
	it := g.items[key]
	if it == nil {
		it = q.newItemLocked(g, key)
	} else if lane == Live {
		q.endDelayLocked(g, it)
	}
	switch {
	case (it.waiting || it.again) && it.lane <= lane:
	case it.waiting:
		g.lanes[it.lane].remove(&it.element)
		g.lanes[lane].push(&it.element)
		it.lane = lane
	case it.opening != nil:
		it.again, it.lane = true, lane
	default:
		it.lane = lane
		q.pushLocked(g, it)
		q.placeLocked(g)
	}
}

func (q *Queue[T, K, V]) pushLocked(g *group[T, K, V], it *item[T, K, V]) {
	it.waiting, it.since = true, q.now()
	g.lanes[it.lane].push(&it.element)
	q.waiting++
}

// clearLocked drops all items except for those that are running.
func (q *Queue[T, K, V]) clearLocked(g *group[T, K, V]) {
	q.waiting -= g.waitingLocked()
	g.lanes = [lanes]list[*item[T, K, V]]{}
	g.credit, g.liveTurns = 0, 0
	q.placeLocked(g)
	g.delays = nil
	q.updateDelayLocked(g)

	g.items, g.peak = nil, g.running.len
	if g.running.len > 0 {
		g.items = make(map[T]*item[T, K, V], g.running.len)
	}
	for e := g.running.head; e != nil; e = e.next {
		e.value.again, e.value.delay = false, delay{}
		g.items[e.value.key] = e.value
	}
}

const (
	maxFree = 1024 // the maximum number of items kept for reuse
	// shrinkAbove is the number of items above which the map of items is not reused. If a map has ever held more items,
	// it is dropped when it is empty, because maps never shrink.
	shrinkAbove = 1024
)

func (q *Queue[T, K, V]) newItemLocked(g *group[T, K, V], key T) *item[T, K, V] {
	var it *item[T, K, V]
	if q.free.len > 0 {
		it = q.free.head.value
		q.free.remove(&it.element)
	} else {
		it = &item[T, K, V]{}
		it.value = it
	}
	it.key = key
	if g.items == nil {
		g.items = map[T]*item[T, K, V]{}
	}
	g.items[key] = it
	g.peak = max(g.peak, len(g.items))
	return it
}

func (q *Queue[T, K, V]) dropItemLocked(g *group[T, K, V], it *item[T, K, V]) {
	delete(g.items, it.key)
	if len(g.items) == 0 && g.peak > shrinkAbove {
		g.items, g.peak, g.delays = nil, 0, nil
	}
	if q.free.len < maxFree {
		*it = item[T, K, V]{}
		it.value = it
		q.free.push(&it.element)
	}
}
