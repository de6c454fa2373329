package fairqueue

import (
	"container/heap"
	"math"
	"time"
)

// delay is embedded in the entries of a delayHeap.
type delay struct {
	due   time.Duration
	place int32  // index in the heap plus one, or 0 if the entry is not in the heap
	kinds uint16 // why the item will be added when the delay expires; see Cause
}

func (d *delay) entry() *delay { return d }

func (d *delay) delayed() bool { return d.place > 0 }

// delayHeap implements heap.Interface. The entry with the earliest due time comes first.
type delayHeap[E interface{ entry() *delay }] []E

func (h delayHeap[E]) Len() int           { return len(h) }
func (h delayHeap[E]) Less(i, j int) bool { return h[i].entry().due < h[j].entry().due }

func (h delayHeap[E]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].entry().place, h[j].entry().place = int32(i+1), int32(j+1)
}

func (h *delayHeap[E]) Push(e any) {
	*h = append(*h, e.(E))
	e.(E).entry().place = int32(len(*h))
}

func (h *delayHeap[E]) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	clear((*h)[last:])
	*h = (*h)[:last]
	e.entry().place = 0
	return e
}

// set inserts the entry, or restores the heap order after the entry's due time has changed.
func (h *delayHeap[E]) set(e E) {
	if place := e.entry().place; place > 0 {
		heap.Fix(h, int(place-1))
	} else {
		heap.Push(h, e)
	}
}

// delayLocked delays the item, unless it is due earlier. Unless delays are kept, an item in the live lane is not
// delayed either. In any case, the next time that the item is handed out is also because of the kinds. flowName is the
// name of its flow.
func (q *Queue[T, K, N, V]) delayLocked(
	g *group[T, K, N, V], name N, flowName string, d time.Duration, kinds uint16,
) {
	it := q.itemLocked(g, name, flowName)
	now := q.now()
	due := now + min(d, math.MaxInt64-now)
	if it.queued && it.lane == Live && !g.opening.options.KeepDelays {
		it.cause.Kinds |= kinds
		return
	}
	it.kinds |= kinds
	if it.delayed() && it.due <= due {
		return
	}
	it.due = due
	g.delays.set(it)
	q.updateDelayLocked(g)
	q.armLocked()
}

// skipDelayLocked must be called when the item is processed before its delay has expired.
func (q *Queue[T, K, N, V]) skipDelayLocked(g *group[T, K, N, V], it *item[T, K, N, V]) {
	if !g.opening.options.KeepDelays {
		q.completeDelayLocked(g, it)
	}
}

// completeDelayLocked ends the delay and adds its kinds to the item's cause.
func (q *Queue[T, K, N, V]) completeDelayLocked(g *group[T, K, N, V], it *item[T, K, N, V]) {
	it.cause.Kinds |= it.kinds
	q.endDelayLocked(g, it)
}

// endDelayLocked ends the delay. Its kinds are dropped.
func (q *Queue[T, K, N, V]) endDelayLocked(g *group[T, K, N, V], it *item[T, K, N, V]) {
	if it.delayed() {
		heap.Remove(&g.delays, int(it.place-1))
		q.updateDelayLocked(g)
	}
	it.kinds = 0
}

// updateDelayLocked updates the group's entry in q.delays. It must be called after the group's delays have changed.
func (q *Queue[T, K, N, V]) updateDelayLocked(g *group[T, K, N, V]) {
	if len(g.delays) > 0 {
		g.due = g.delays[0].due
		q.delays.set(g)
	} else if g.delayed() {
		heap.Remove(&q.delays, int(g.place-1))
	}
}

// armLocked sets the timer to the earliest due time. A timer that is already set to an earlier time is left as it is,
// because fire will call armLocked again.
func (q *Queue[T, K, N, V]) armLocked() {
	if len(q.delays) == 0 || q.armed > 0 && q.armed <= q.delays[0].due {
		return
	}
	q.armed = q.delays[0].due
	wait := q.armed - q.now()
	if q.timer == nil {
		q.timer = time.AfterFunc(wait, q.fire)
		q.firing.Add(1)
	} else if !q.timer.Reset(wait) {
		q.firing.Add(1)
	}
}

// fire moves items with expired delays to the live lane.
func (q *Queue[T, K, N, V]) fire() {
	defer q.firing.Done()
	q.mu.Lock()
	defer q.mu.Unlock()
	for now := q.now(); len(q.delays) > 0 && q.delays[0].due <= now; {
		g := q.delays[0]
		it := g.delays[0]
		q.completeDelayLocked(g, it)
		q.addLocked(g, it.name, it.flow.name, Live, now, Cause[T]{})
	}
	q.armed = 0
	q.armLocked()
	q.wakeLocked()
}

// dropDelaysLocked cancels all delays and stops the timer. It drops items that are neither waiting nor running.
func (q *Queue[T, K, N, V]) dropDelaysLocked() {
	for len(q.delays) > 0 { // removing the last entry of a heap takes O(1)
		g := q.delays[len(q.delays)-1]
		it := g.delays[len(g.delays)-1]
		q.endDelayLocked(g, it)
		if !it.queued && !it.held() {
			q.dropItemLocked(g, it)
		}
	}
	q.armed = 0
	if q.timer != nil && q.timer.Stop() {
		q.firing.Done()
	}
}
