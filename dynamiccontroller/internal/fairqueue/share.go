package fairqueue

import "time"

const (
	// backgroundShare is the number of items that a group hands out for each item of its background lane while items
	// wait in both lanes.
	backgroundShare = 8
	// fastAlpha is the factor of the dynamic threshold for groups whose runs are fast. For other groups, the factor is
	// 1.
	fastAlpha = 8
	// slowRun is how long a run can take before it counts as slow.
	slowRun = time.Second
)

// pickLocked returns the first group in the ring that is allowed to use one of the idle workers, or nil if there is
// none. It skips at most as many groups as items are running.
func (q *Queue[T, K, V]) pickLocked() *group[T, K, V] {
	for e := q.ring.head; e != nil; e = e.next {
		if q.allowedLocked(e.value) {
			return e.value
		}
	}
	return nil
}

// allowedLocked reports whether the dynamic threshold allows the group to take another of the idle workers.
func (q *Queue[T, K, V]) allowedLocked(g *group[T, K, V]) bool {
	running := g.running.len
	switch {
	case running == 0, q.busy == 0: // if no worker is busy, all running items were handed out before the last Restart
		return true
	case q.idle == 1:
		return false
	case running < q.idle:
		return true
	case running >= fastAlpha*q.idle || !g.opening.returned:
		return false
	default:
		return q.now()-g.running.head.value.since <= slowRun
	}
}

// wakeLocked wakes an idle worker if a group can hand out an item. Only one worker is woken at a time. After it has
// taken an item, it wakes the next one.
func (q *Queue[T, K, V]) wakeLocked() {
	if !q.waking && q.idle > 0 && q.pickLocked() != nil {
		q.waking = true
		q.available.Signal()
	}
}

// takeLocked hands out the next item of the group. A turn of the group ends when its credit is used up or when it has
// no more items.
func (q *Queue[T, K, V]) takeLocked(g *group[T, K, V]) *item[T, K, V] {
	lane := Live
	switch {
	case g.lanes[Background].len == 0:
		g.liveTurns = 0
	case g.lanes[Live].len == 0 || g.liveTurns >= backgroundShare-1:
		lane, g.liveTurns = Background, 0
	default:
		g.liveTurns++
	}
	it := g.lanes[lane].head.value
	g.lanes[lane].remove(&it.element)
	q.waiting--
	q.endDelayLocked(g, it)
	it.waiting, it.opening, it.since = false, g.opening, q.now()
	g.running.push(&it.element)
	q.running++
	it.term = q.term
	q.busy++

	g.credit--
	if g.credit == 0 || g.waitingLocked() == 0 {
		g.credit, g.inRing = 0, false
		q.ring.remove(&g.element)
	}
	q.placeLocked(g)
	return it
}

// placeLocked makes the group join or leave the ring if required. It joins at the tail, with the credit of a new turn,
// or at the head if its turn was interrupted.
func (q *Queue[T, K, V]) placeLocked(g *group[T, K, V]) {
	o := g.opening
	eligible := o != nil && !o.paused && g.waitingLocked() > 0 &&
		(o.limits.Concurrency < 1 || g.running.len < o.limits.Concurrency)
	switch {
	case eligible == g.inRing:
		return
	case !eligible:
		q.ring.remove(&g.element)
	case 0 < g.credit && g.credit < o.limits.Weight:
		q.ring.insert(&g.element, q.ring.head)
	default:
		g.credit = o.limits.Weight
		q.ring.push(&g.element)
	}
	g.inRing = eligible
}

// list is a doubly linked list of elements that are embedded in their values.
type list[E any] struct {
	head, tail *element[E]
	len        int
}

type element[E any] struct {
	prev, next *element[E]
	value      E
}

func (l *list[E]) push(e *element[E]) { l.insert(e, nil) }

// insert adds the element before next, or at the tail if next is nil.
func (l *list[E]) insert(e, next *element[E]) {
	e.prev, e.next = l.tail, next
	if next != nil {
		e.prev, next.prev = next.prev, e
	} else {
		l.tail = e
	}
	if e.prev != nil {
		e.prev.next = e
	} else {
		l.head = e
	}
	l.len++
}

func (l *list[E]) remove(e *element[E]) {
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		l.head = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		l.tail = e.prev
	}
	e.prev, e.next = nil, nil
	l.len--
}
