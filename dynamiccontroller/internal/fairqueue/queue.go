package fairqueue

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Lane is one of the two lanes of a group.
type Lane uint8

const (
	// Live is the lane for events, retries that are due, and explicit requests.
	Live Lane = iota
	// Background is the lane for initial lists, promotions and resyncs.
	Background
)

// Options determines how the items of a group are handed out.
type Options[T, N comparable] struct {
	// Weight is the number of items that are handed out per turn. Defaults to 1.
	Weight int
	// Concurrency limits how many items run at once. The dynamic threshold applies as well. Defaults to no limit.
	Concurrency int
	// FlowsOf returns the names of the flows to which items of the group belong, one for each item. It must be a pure
	// function. It is never called while the queue is locked. By default, the group has a single flow.
	FlowsOf func([]N) []string
	// FlowConcurrency limits how many items of each flow run at once. Defaults to no limit.
	FlowConcurrency int
	// KeepDelays keeps the delay of an item that is handed out or added to the live lane before the delay has expired, as
	// client-go's queue does. By default, the delay is cancelled.
	KeepDelays bool
	// Limiter computes the delays for AddRateLimited. It must be safe for concurrent use. Pass a new limiter to each Open,
	// so that earlier failures do not count. It is never called while the queue is locked. Defaults to client-go's
	// DefaultTypedItemBasedRateLimiter.
	Limiter workqueue.TypedRateLimiter[T]
}

// Queue hands out items of type T. Each item belongs to a group with a key of type K and a value of type V, and has a
// name of type N within its group. All methods are safe for concurrent use.
type Queue[T, K, N comparable, V any] struct {
	groupOf func(T) K
	nameOf  func(T) N
	itemOf  func(K, N) T
	created time.Time // times are stored as durations since then, because time.Since is faster than time.Now

	// mu guards the fields below and the fields of groups, openings and items. It is not held while user code is called,
	// except for groupOf, nameOf and itemOf.
	mu        sync.Mutex
	available sync.Cond // signals that an item can be handed out or that the queue shuts down
	drained   sync.Cond // signals that no item is waiting or running

	groups map[K]*group[T, K, N, V]
	ring   list[*group[T, K, N, V]] // groups with items to hand out, in the order of their turns

	waiting int  // items in lanes
	running int  // items that were handed out and for which Done has not been called
	idle    int  // goroutines in Next
	waking  bool // a goroutine in Next was signalled and has not run yet
	closed  bool // shut down and not restarted

	delays delayHeap[*group[T, K, N, V]] // groups with delayed items
	timer  *time.Timer
	armed  time.Duration  // when the timer expires; 0 if it is not set
	firing sync.WaitGroup // pending calls to fire

	free sync.Pool // of *item[T, K, N, V]
}

var _ workqueue.TypedRateLimitingInterface[string] = (*Queue[string, string, string, any])(nil)

// New returns an empty queue. groupOf and nameOf return the two parts of an item, and itemOf is their inverse. These
// functions must be fast, because they are called while the queue is locked.
func New[T, K, N comparable, V any](groupOf func(T) K, nameOf func(T) N, itemOf func(K, N) T) *Queue[T, K, N, V] {
	q := &Queue[T, K, N, V]{groupOf: groupOf, nameOf: nameOf, itemOf: itemOf, created: time.Now()}
	q.groups = map[K]*group[T, K, N, V]{}
	q.available.L, q.drained.L = &q.mu, &q.mu
	return q
}

// Add adds an item to the live lane of its group. The item is dropped if the group is not open.
func (q *Queue[T, K, N, V]) Add(key T) {
	q.mu.Lock()
	h := Group[T, K, N, V]{q: q}
	if g := q.groups[q.groupOf(key)]; g != nil {
		h.opening = g.opening
	}
	q.mu.Unlock()
	h.Add(Live, q.nameOf(key))
}

// AddAfter calls [Group.AddAfter] on the current handle of the item's group or, if the item is running, on the handle
// that was current when the item was handed out. AddRateLimited, Forget and NumRequeues use the same handle.
func (q *Queue[T, K, N, V]) AddAfter(key T, d time.Duration) {
	q.groupFor(key).AddAfter(q.nameOf(key), d)
}

// AddRateLimited calls [Group.AddRateLimited].
func (q *Queue[T, K, N, V]) AddRateLimited(key T) { q.groupFor(key).AddRateLimited(q.nameOf(key)) }

// Forget calls [Group.Forget].
func (q *Queue[T, K, N, V]) Forget(key T) { q.groupFor(key).Forget(q.nameOf(key)) }

// NumRequeues returns the number of failures of the item according to its group's rate limiter.
func (q *Queue[T, K, N, V]) NumRequeues(key T) int {
	if limiter := q.groupFor(key).limiter(); limiter != nil {
		return limiter.NumRequeues(key)
	}
	return 0
}

func (q *Queue[T, K, N, V]) groupFor(key T) Group[T, K, N, V] {
	q.mu.Lock()
	defer q.mu.Unlock()
	h := Group[T, K, N, V]{q: q}
	if g := q.groups[q.groupOf(key)]; g != nil {
		h.opening = g.opening
		if it := g.items[q.nameOf(key)]; it != nil && it.held() && !it.isOf(g.opening) {
			h.opening = nil
		}
	}
	return h
}

// Get is like Next, but does not return the value of the group.
func (q *Queue[T, K, N, V]) Get() (key T, shutdown bool) {
	key, _, _, shutdown = q.Next(nil)
	return key, shutdown
}

// Wait describes the waiting of an item that is handed out.
type Wait[T comparable] struct {
	For   time.Duration // the time that the item waited in its lane
	Cause Cause[T]      // the merged causes for which the item was added
}

// Next blocks until it can return an item, the value of its group, and how long and why the item waited. The caller
// must call Done after processing the item. If shutdown is true, the queue is shut down and no items are waiting, or
// over, which can be nil, is true.
//
// A caller that shuts down the queue and may restart it at once must set over before. Otherwise, goroutines in Next can
// miss the shutdown.
func (q *Queue[T, K, N, V]) Next(over *atomic.Bool) (key T, value V, wait Wait[T], shutdown bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.idle++
	var g *group[T, K, N, V]
	for {
		if over != nil && over.Load() {
			q.idle--
			q.wakeLocked() // because this goroutine may have been woken for an item
			return key, value, wait, true
		}
		if g = q.pickLocked(); g != nil {
			break
		}
		if q.closed && q.waiting == 0 {
			q.idle--
			return key, value, wait, true
		}
		q.available.Wait()
		q.waking = false
	}
	q.idle--
	it, wait := q.takeLocked(g)
	q.wakeLocked()
	q.endShutDownLocked()
	return q.itemOf(g.key, it.name), g.opening.value, wait, false
}

// Settle gives back the place of a running item, which was processed, but must not be handed out again yet: the item no
// longer counts toward limits, nor to what ShutDownWithDrain waits for. Additions merge, as for a running item, until
// Done is called. Settle returns false, and has no effect, if the item is not running, or if its group was stopped,
// closed or opened again since the item was handed out.
func (q *Queue[T, K, N, V]) Settle(key T) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	g, it := q.heldLocked(key)
	if it == nil || it.hold != running || !it.isOf(g.opening) {
		return false
	}
	q.leaveRunningLocked(g, it)
	it.hold = settling
	g.settling.pushBack(&it.element)
	q.placeLocked(g)
	q.wakeLocked()
	q.endShutDownLocked()
	return true
}

// heldLocked returns an item that is running or settling, and its group. It returns nil if there is no such item.
func (q *Queue[T, K, N, V]) heldLocked(key T) (*group[T, K, N, V], *item[T, K, N, V]) {
	g := q.groups[q.groupOf(key)]
	if g == nil {
		return nil, nil
	}
	if it := g.items[q.nameOf(key)]; it != nil && it.held() {
		return g, it
	}
	return g, nil
}

// leaveRunningLocked must be called when an item stops running.
func (q *Queue[T, K, N, V]) leaveRunningLocked(g *group[T, K, N, V], it *item[T, K, N, V]) {
	q.running--
	g.listOf(it).remove(&it.element)
	if it.isOf(g.opening) {
		g.opening.returned = true
	}
	it.flow.running--
	g.placeFlow(it.flow)
}

// Done marks an item as processed. If the item was added again while it was running, it is handed out again.
func (q *Queue[T, K, N, V]) Done(key T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	g, it := q.heldLocked(key)
	if it == nil {
		return
	}
	if it.hold == settling {
		g.settling.remove(&it.element)
	} else {
		q.leaveRunningLocked(g, it)
	}
	it.opening, it.hold = 0, running
	if it.queued {
		q.pushLocked(g, it, q.now())
	} else if !it.delayed() {
		q.dropItemLocked(g, it)
	}
	if g.opening == nil && !g.holdsLocked() {
		delete(q.groups, g.key)
	}
	q.placeLocked(g)
	q.wakeLocked()
	q.endShutDownLocked()
}

// Len returns the number of items waiting in lanes.
func (q *Queue[T, K, N, V]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting
}

// ShutDown drops delayed items and makes the queue ignore new items until Restart. Next returns the remaining waiting
// items before it reports the shutdown. When ShutDown returns, none of the queue's timers is pending.
func (q *Queue[T, K, N, V]) ShutDown() {
	q.mu.Lock()
	q.closed = true
	q.dropDelaysLocked()
	q.available.Broadcast() // also if items are waiting, for goroutines that no longer take any; see Next
	q.endShutDownLocked()
	q.mu.Unlock()
	q.firing.Wait()
}

// ShutDownWithDrain calls ShutDown and waits until all waiting and running items are done.
func (q *Queue[T, K, N, V]) ShutDownWithDrain() {
	q.ShutDown()
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.waiting > 0 || q.running > 0 {
		q.drained.Wait()
	}
}

// ShuttingDown reports whether the queue has been shut down and not restarted.
func (q *Queue[T, K, N, V]) ShuttingDown() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

// Restart ends a shutdown. Items that are still running are not handed out again until Done is called for them.
func (q *Queue[T, K, N, V]) Restart() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = false
}

// endShutDownLocked wakes the goroutines waiting for a shutdown to complete. It must be called when the number of
// waiting or running items may have reached zero.
func (q *Queue[T, K, N, V]) endShutDownLocked() {
	if !q.closed || q.waiting > 0 {
		return
	}
	q.available.Broadcast()
	if q.running == 0 {
		q.drained.Broadcast()
	}
}

func (q *Queue[T, K, N, V]) now() time.Duration { return time.Since(q.created) }
