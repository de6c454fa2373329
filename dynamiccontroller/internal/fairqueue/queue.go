package fairqueue

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Lane is one of the two lines in which a group's items wait.
type Lane uint8

const (
	// Live is for what somebody waits for: events, retries that are due, explicit requests.
	Live Lane = iota
	// Background is for what can wait: initial lists, promotion, resyncs.
	Background

	lanes = 2
)

// backgroundShare is how many items a group hands out for each one of its background lane while both lanes have some.
const backgroundShare = 8

// Limits bound what a group may take of the workers.
type Limits struct {
	// Weight is how many items the group hands out a turn. Below one counts as one.
	Weight int
	// Concurrency is how many of the group's items may be processed at once. Below one is without limit.
	Concurrency int
}

// Queue hands out items of type T, which belong to groups of key K. V is what the opener of a group gets back with
// each of its items. It implements [workqueue.TypedDelayingInterface], and all its methods may be called concurrently.
type Queue[T, K comparable, V any] struct {
	groupOf func(T) K
	began   time.Time // that of waiting items is told by the time since then, which takes half as long as time.Now

	// mu guards everything below, groups and items included. It is held for map, list and heap operations only.
	mu      sync.Mutex
	handOut sync.Cond // an item became eligible, or the queue shuts down
	drained sync.Cond // nothing is processed any more

	groups  map[K]*group[T, K, V]
	ring    ring[T, K, V]
	waiting int
	running int
	closed  bool

	delays heap[*group[T, K, V]] // groups with delayed items, by their earliest
	timer  *time.Timer
	armed  time.Time      // what the timer is set to; zero when it is not
	firing sync.WaitGroup // timer callbacks that may still run
	inFire bool           // the callback arms the timer once, at its end

	free *item[T, K, V] // a short list of items to use again
	kept int
}

var _ workqueue.TypedDelayingInterface[string] = (*Queue[string, string, any])(nil)

// New returns an empty queue that tells an item's group by groupOf.
func New[T, K comparable, V any](groupOf func(T) K) *Queue[T, K, V] {
	q := &Queue[T, K, V]{
		groupOf: groupOf,
		began:   time.Now(),
		groups:  map[K]*group[T, K, V]{},
		delays:  heap[*group[T, K, V]]{before: (*group[T, K, V]).dueBefore, moved: func(g *group[T, K, V], at int) { g.delaysAt = at }},
	}
	q.handOut.L, q.drained.L = &q.mu, &q.mu
	return q
}

// Add puts the item into its group's live lane. It is dropped if its group is not open.
func (q *Queue[T, K, V]) Add(key T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if g := q.groups[q.groupOf(key)]; g != nil {
		q.addLocked(g, key, Live)
	}
}

// AddAfter adds the item to the live lane after d, or now if d is not positive. An item that waits already is left
// where it is, one that is delayed already keeps the earlier time. An item that is being processed on behalf of a
// group that was closed since is dropped: what its processing asks for is no longer wanted.
func (q *Queue[T, K, V]) AddAfter(key T, d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	g := q.groups[q.groupOf(key)]
	if q.closed || g == nil || !g.open {
		return
	}
	it := g.items[key]
	if it != nil && it.running && it.epoch != g.epoch {
		return
	}
	if d <= 0 {
		q.addLocked(g, key, Live)
		return
	}
	if it == nil {
		it = q.newItemLocked(g, key)
	}
	due := time.Now().Add(d)
	switch {
	case it.waiting || it.again:
		return
	case it.delayed() && !due.Before(it.due):
		return
	}
	it.due = due
	if it.delayed() {
		g.delays.fix(it.delayAt)
	} else {
		g.delays.push(it)
	}
	q.rescheduleLocked(g)
}

// Get waits for an item and hands it out; Done must be called with it. Shutdown is true when the queue was shut down
// and nothing waits any more.
func (q *Queue[T, K, V]) Get() (key T, shutdown bool) {
	key, _, shutdown = q.Next()
	return key, shutdown
}

// Next is Get, and tells the value with which the item's group was opened.
func (q *Queue[T, K, V]) Next() (key T, value V, shutdown bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.ring.head == nil {
		// What waits in a group at its cap is handed out after a Done, also while the queue shuts down.
		if q.closed && q.waiting == 0 {
			return key, value, true
		}
		q.handOut.Wait()
	}
	g := q.ring.head
	it := g.popLocked()
	it.running, it.epoch = true, g.epoch
	g.working.push(it)
	q.waiting--
	q.running++
	q.turnLocked(g)
	if q.closed && q.waiting == 0 {
		q.handOut.Broadcast()
	}
	return it.key, g.value, false
}

// Done says that the item is no longer processed.
func (q *Queue[T, K, V]) Done(key T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	g := q.groups[q.groupOf(key)]
	if g == nil {
		return
	}
	it := g.items[key]
	if it == nil || !it.running {
		return
	}
	it.running = false
	g.working.remove(it)
	q.running--
	switch {
	case it.again:
		it.again = false
		q.pushLocked(g, it)
	case !it.delayed():
		q.dropItemLocked(g, it)
	}
	if g.eligible() {
		q.ring.join(g)
		q.handOut.Signal()
	}
	if !g.open && g.working.len == 0 {
		delete(q.groups, g.key)
	}
	if q.running == 0 {
		q.drained.Broadcast()
	}
}

// Len is how many items wait to be handed out, those at their group's cap included, delayed ones not.
func (q *Queue[T, K, V]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting
}

// ShutDown makes the queue ignore what is added from now on and drops what is delayed. Get still hands out what waits
// and then reports the shutdown. When it returns no timer of the queue runs any more.
func (q *Queue[T, K, V]) ShutDown() {
	q.mu.Lock()
	q.shutDownLocked()
	q.mu.Unlock()
	q.firing.Wait()
}

// ShutDownWithDrain is ShutDown and waits until all that waits was handed out and Done.
func (q *Queue[T, K, V]) ShutDownWithDrain() {
	q.ShutDown()
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.waiting > 0 || q.running > 0 {
		q.drained.Wait()
	}
}

// ShuttingDown tells whether ShutDown was called since the last Restart.
func (q *Queue[T, K, V]) ShuttingDown() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

// Cancel is ShutDown without the rest: what waits is dropped too. Groups stay open and items being processed stay
// known until Done. It returns what was dropped, but for the background lanes.
func (q *Queue[T, K, V]) Cancel() (dropped []T) {
	q.mu.Lock()
	for _, g := range q.groups {
		for it := g.lines[Live].head; it != nil; it = it.next {
			dropped = append(dropped, it.key)
		}
		for it := g.working.head; it != nil; it = it.next {
			if it.again && it.lane == Live {
				dropped = append(dropped, it.key)
			}
		}
		for _, it := range g.delays.elements {
			dropped = append(dropped, it.key)
		}
		q.clearLocked(g)
	}
	q.shutDownLocked()
	q.drained.Broadcast()
	q.mu.Unlock()
	q.firing.Wait()
	return dropped
}

// Restart makes a queue that was shut down take and hand out items again. An item still being processed since before
// is handed out again only after its Done.
func (q *Queue[T, K, V]) Restart() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = false
}

func (q *Queue[T, K, V]) shutDownLocked() {
	q.closed = true
	for _, g := range q.groups {
		for g.delays.len() > 0 {
			if it := g.delays.pop(); !it.running {
				q.dropItemLocked(g, it)
			}
		}
		g.delaysAt = -1
	}
	q.delays.elements = nil
	q.armLocked()
	q.handOut.Broadcast()
}

// addLocked puts the item in line, or moves it up, or notes that it must be processed again.
func (q *Queue[T, K, V]) addLocked(g *group[T, K, V], key T, lane Lane) {
	if q.closed || !g.open {
		return
	}
	it := g.items[key]
	if it == nil {
		it = q.newItemLocked(g, key)
	} else if it.delayed() {
		g.delays.remove(it.delayAt)
		q.rescheduleLocked(g)
	}
	switch {
	case it.waiting:
		if lane < it.lane {
			g.lines[it.lane].remove(it)
			it.lane = lane
			g.lines[lane].push(it)
		}
		return
	case it.running:
		if !it.again || lane < it.lane {
			it.again, it.lane = true, lane
		}
		return
	}
	it.lane = lane
	q.pushLocked(g, it)
	if g.eligible() {
		q.ring.join(g)
		q.handOut.Signal()
	}
}

func (q *Queue[T, K, V]) pushLocked(g *group[T, K, V], it *item[T, K, V]) {
	it.waiting, it.since = true, time.Since(q.began)
	g.lines[it.lane].push(it)
	q.waiting++
}

// turnLocked counts an item that the group handed out. A turn ends with its quantum and with the last item; one that the
// group's cap cuts short goes on later.
func (q *Queue[T, K, V]) turnLocked(g *group[T, K, V]) {
	g.credit--
	if g.waiting() == 0 {
		g.credit = 0
	}
	if g.credit > 0 && g.eligible() {
		return
	}
	q.ring.leave(g)
	if g.eligible() {
		q.ring.join(g)
	}
}

// seatLocked puts the group in the ring or out of it after what it may hand out has changed.
func (q *Queue[T, K, V]) seatLocked(g *group[T, K, V]) {
	if !g.eligible() {
		q.ring.leave(g)
		return
	}
	q.ring.join(g)
	q.handOut.Broadcast()
}

const maxFree = 1024

func (q *Queue[T, K, V]) newItemLocked(g *group[T, K, V], key T) *item[T, K, V] {
	it := q.free
	if it == nil {
		it = &item[T, K, V]{}
	} else {
		q.free, it.next = it.next, nil
		q.kept--
	}
	it.key, it.delayAt = key, -1
	if g.items == nil {
		g.items = map[T]*item[T, K, V]{}
	}
	g.items[key] = it
	g.peak = max(g.peak, len(g.items))
	return it
}

func (q *Queue[T, K, V]) dropItemLocked(g *group[T, K, V], it *item[T, K, V]) {
	delete(g.items, it.key)
	g.shrink()
	if q.kept < maxFree {
		*it = item[T, K, V]{next: q.free}
		q.free = it
		q.kept++
	}
}
