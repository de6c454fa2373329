package fairqueue

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Lane is one of the two lanes in which the items of a group wait, first in, first out.
type Lane uint8

const (
	// Live is the lane for events, retries that are due, and explicit requests.
	Live Lane = iota
	// Background is the lane for initial lists, promotions and resyncs.
	Background

	lanes = 2
)

// Limits bounds the share of the workers that a group gets.
type Limits struct {
	// Weight is the number of items that the group hands out per turn. Values below 1 count as 1.
	Weight int
	// Concurrency is the maximum number of items of the group that are processed at the same time. There is no maximum
	// if it is below 1. The dynamic threshold applies in addition.
	Concurrency int
}

// Queue hands out items of type T. Each item belongs to a group with a key of type K. V is the type of the value that
// the caller of Open attaches to the group. All methods can be called concurrently.
type Queue[T, K comparable, V any] struct {
	groupOf func(T) K
	created time.Time // times of items are durations since then, because time.Since is faster than time.Now

	// mu guards the fields below and the fields of groups, openings and items. It is never held while user code runs.
	mu        sync.Mutex
	available sync.Cond // an item can be handed out, or the queue shuts down
	drained   sync.Cond // no item is waiting or running

	groups map[K]*group[T, K, V]
	ring   list[*group[T, K, V]] // groups that have items to hand out, in the order of their turns

	waiting int  // items in the lanes of all groups
	running int  // items handed out and not done
	busy    int  // running items that were handed out since the last Restart
	term    int  // number of calls to Restart
	idle    int  // goroutines in Next
	waking  bool // a goroutine in Next was signalled and has not run yet
	closed  bool

	delays delayHeap[*group[T, K, V]] // groups with delayed items
	timer  *time.Timer
	armed  time.Duration  // the time for which the timer is set, or 0
	firing sync.WaitGroup // pending calls to fire

	free list[*item[T, K, V]] // items for reuse
}

var _ workqueue.TypedRateLimitingInterface[string] = (*Queue[string, string, any])(nil)

// New returns an empty queue. The function groupOf returns the key of the group to which an item belongs. It must be
// pure and fast, because it is called while the queue is locked.
func New[T, K comparable, V any](groupOf func(T) K) *Queue[T, K, V] {
	q := &Queue[T, K, V]{groupOf: groupOf, created: time.Now(), groups: map[K]*group[T, K, V]{}}
	q.available.L, q.drained.L = &q.mu, &q.mu
	return q
}

// Add adds the item to the live lane of its group. The item is dropped if the group is not open.
func (q *Queue[T, K, V]) Add(key T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if g := q.groups[q.groupOf(key)]; g != nil {
		q.addLocked(g, key, Live)
		q.wakeLocked()
	}
}

// AddAfter is like Group.AddAfter. If the item is running, AddAfter applies to the opening for which the item is
// running. Otherwise it applies to the current opening of the item's group. The same is true for the next three
// methods.
func (q *Queue[T, K, V]) AddAfter(key T, d time.Duration) { q.groupFor(key).AddAfter(key, d) }

// AddRateLimited is like Group.AddRateLimited.
func (q *Queue[T, K, V]) AddRateLimited(key T) { q.groupFor(key).AddRateLimited(key) }

// Forget is like Group.Forget.
func (q *Queue[T, K, V]) Forget(key T) { q.groupFor(key).Forget(key) }

// NumRequeues is like Group.NumRequeues.
func (q *Queue[T, K, V]) NumRequeues(key T) int { return q.groupFor(key).NumRequeues(key) }

func (q *Queue[T, K, V]) groupFor(key T) Group[T, K, V] {
	q.mu.Lock()
	defer q.mu.Unlock()
	h := Group[T, K, V]{q: q}
	if g := q.groups[q.groupOf(key)]; g != nil {
		h.o = g.opening
		if it := g.items[key]; it != nil && it.opening != nil {
			h.o = it.opening
		}
	}
	return h
}

// Get is like Next, but does not return the value.
func (q *Queue[T, K, V]) Get() (key T, shutdown bool) {
	key, _, shutdown = q.Next()
	return key, shutdown
}

// Next blocks until it can hand out an item. It returns the item and the value with which the item's group was opened.
// The caller must call Done with the item. The result shutdown is true if the queue has been shut down and no items are
// waiting.
//
// A goroutine counts as an idle worker while it is in Next. The share of a group depends on the number of idle workers.
func (q *Queue[T, K, V]) Next() (key T, value V, shutdown bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.idle++
	g := q.pickLocked()
	for ; g == nil; g = q.pickLocked() {
		// If the share of its group does not currently allow a waiting item to be handed out, the item is handed out
		// later, even during a shutdown.
		if q.closed && q.waiting == 0 {
			q.idle--
			return key, value, true
		}
		q.available.Wait()
		q.waking = false
	}
	q.idle--
	it := q.takeLocked(g)
	q.wakeLocked()
	q.endShutDownLocked()
	return it.key, g.opening.value, false
}

// Done marks the item as done. If it was added while it was running, it waits again.
func (q *Queue[T, K, V]) Done(key T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	g := q.groups[q.groupOf(key)]
	if g == nil {
		return
	}
	it := g.items[key]
	if it == nil || it.opening == nil {
		return
	}
	q.running--
	if it.term == q.term {
		q.busy--
	}
	g.running.remove(&it.element)
	if it.opening == g.opening {
		g.opening.returned = true
	}
	it.opening = nil
	if it.again {
		it.again = false
		q.pushLocked(g, it)
	} else if !it.delayed() {
		q.dropItemLocked(g, it)
	}
	if g.opening == nil && g.running.len == 0 {
		delete(q.groups, g.key)
	}
	q.placeLocked(g)
	q.wakeLocked()
	q.endShutDownLocked()
}

// Len returns the number of waiting items, including items that cannot be handed out yet because their group has used
// up its share. It does not count delayed items unless they also wait in the background lane.
func (q *Queue[T, K, V]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting
}

// ShutDown drops delayed items, and makes the queue ignore new ones until Restart. Next still hands out the items that
// are waiting, and then returns shutdown. When ShutDown returns, no timer of the queue is pending.
func (q *Queue[T, K, V]) ShutDown() {
	q.mu.Lock()
	q.shutDownLocked()
	q.mu.Unlock()
	q.firing.Wait()
}

// ShutDownWithDrain calls ShutDown and waits until all waiting items have been handed out and all items are done.
func (q *Queue[T, K, V]) ShutDownWithDrain() {
	q.ShutDown()
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.waiting > 0 || q.running > 0 {
		q.drained.Wait()
	}
}

// ShuttingDown reports whether the queue was shut down and not restarted.
func (q *Queue[T, K, V]) ShuttingDown() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

// Cancel shuts down the queue like ShutDown. It also drops the waiting items. Groups stay open, and running items are
// tracked until Done is called for them. Cancel returns the dropped items, except for items that were only in a
// background lane.
func (q *Queue[T, K, V]) Cancel() (dropped []T) {
	q.mu.Lock()
	for _, g := range q.groups {
		for e := g.lanes[Live].head; e != nil; e = e.next {
			dropped = append(dropped, e.value.key)
		}
		for e := g.running.head; e != nil; e = e.next {
			if it := e.value; it.again && it.lane == Live {
				dropped = append(dropped, it.key)
			}
		}
		for _, it := range g.delays {
			dropped = append(dropped, it.key)
		}
		q.clearLocked(g)
	}
	q.shutDownLocked()
	q.mu.Unlock()
	q.firing.Wait()
	return dropped
}

// Restart ends a shutdown. Items that have been running since before the shutdown are handed out again only after Done.
func (q *Queue[T, K, V]) Restart() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = false
	q.term, q.busy = q.term+1, 0
}

func (q *Queue[T, K, V]) shutDownLocked() {
	q.closed = true
	q.dropDelaysLocked()
	q.endShutDownLocked()
}

// endShutDownLocked wakes the goroutines that wait for the end of a shutdown. It must be called whenever the number of
// waiting or running items may have become zero.
func (q *Queue[T, K, V]) endShutDownLocked() {
	if !q.closed || q.waiting > 0 {
		return
	}
	q.available.Broadcast()
	if q.running == 0 {
		q.drained.Broadcast()
	}
}

func (q *Queue[T, K, V]) now() time.Duration { return time.Since(q.created) }
