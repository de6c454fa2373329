package fairqueue

import (
	"container/heap"
	"math"
	"time"
)

// delay is the state of an entry of a delayHeap.
type delay struct {
	due   time.Duration
	place int // the index plus one, or 0 if the entry is not in the heap
}

func (d *delay) entry() *delay { return d }

func (d *delay) delayed() bool { return d.place > 0 }

// delayHeap is a heap for container/heap, with the earliest entry first. Entries are pointers, so that converting them
// to an interface does not allocate memory.
type delayHeap[E interface{ entry() *delay }] []E

func (h delayHeap[E]) Len() int           { return len(h) }
func (h delayHeap[E]) Less(i, j int) bool { return h[i].entry().due < h[j].entry().due }

func (h delayHeap[E]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].entry().place, h[j].entry().place = i+1, j+1
}

// Push implements heap.Interface.
func (h *delayHeap[E]) Push(e any) {
	*h = append(*h, e.(E))
	e.(E).entry().place = len(*h)
}

// Pop implements heap.Interface.
func (h *delayHeap[E]) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	clear((*h)[last:])
	*h = (*h)[:last]
	e.entry().place = 0
	return e
}

// set inserts the entry, or moves it after its time has changed.
func (h *delayHeap[E]) set(e E) {
	if place := e.entry().place; place > 0 {
		heap.Fix(h, place-1)
	} else {
		heap.Push(h, e)
	}
}

// delayLocked delays the item, unless it waits in the live lane or has an earlier delay.
func (q *Queue[T, K, V]) delayLocked(g *group[T, K, V], key T, d time.Duration) {
	it := g.items[key]
	if it == nil {
		it = q.newItemLocked(g, key)
	}
	now := q.now()
	due := now + min(d, math.MaxInt64-now)
	if (it.waiting || it.again) && it.lane == Live || it.delayed() && it.due <= due {
		return
	}
	it.due = due
	g.delays.set(it)
	q.updateDelayLocked(g)
	q.armLocked()
}

// endDelayLocked removes the item from the delayed items.
func (q *Queue[T, K, V]) endDelayLocked(g *group[T, K, V], it *item[T, K, V]) {
	if it.delayed() {
		heap.Remove(&g.delays, it.place-1)
		q.updateDelayLocked(g)
	}
}

// updateDelayLocked moves the group within the heap of groups. It must be called when the delays of the group have
// changed.
func (q *Queue[T, K, V]) updateDelayLocked(g *group[T, K, V]) {
	if len(g.delays) > 0 {
		g.due = g.delays[0].due
		q.delays.set(g)
	} else if g.delayed() {
		heap.Remove(&q.delays, g.place-1)
	}
}

// armLocked sets the timer to the earliest delay. If the timer is already set to an earlier time, armLocked does not
// change it, because fire sets the timer again.
func (q *Queue[T, K, V]) armLocked() {
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

// fire adds the items that are due to the live lane.
func (q *Queue[T, K, V]) fire() {
	defer q.firing.Done()
	q.mu.Lock()
	defer q.mu.Unlock()
	for now := q.now(); len(q.delays) > 0 && q.delays[0].due <= now; {
		g := q.delays[0]
		q.addLocked(g, g.delays[0].key, Live)
	}
	q.armed = 0
	q.armLocked()
	q.wakeLocked()
}

// dropDelaysLocked drops all delayed items that are neither waiting nor running, and stops the timer.
func (q *Queue[T, K, V]) dropDelaysLocked() {
	for _, g := range q.delays {
		g.place = 0
		for _, it := range g.delays {
			it.place = 0
			if !it.waiting && it.opening == nil {
				q.dropItemLocked(g, it)
			}
		}
		g.delays = nil
	}
	q.delays, q.armed = nil, 0
	if q.timer != nil && q.timer.Stop() {
		q.firing.Done()
	}
}
