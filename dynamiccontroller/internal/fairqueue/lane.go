package fairqueue

import (
	"iter"
	"time"
)

// addLocked adds the item to the lane, for a cause. A queued item can only move from the background to the live lane.
// flowName is the name of the item's flow. It is not used if the group already contains the item.
func (q *Queue[T, K, N, V]) addLocked(
	g *group[T, K, N, V], name N, flowName string, lane Lane, now time.Duration, cause Cause[T],
) {
	it := g.items[name]
	switch {
	case it == nil && lane == Background:
		f := g.flows.enter(flowName)
		g.items[name] = f.background.push(f, name, now, cause)
		q.waiting++
		g.waiting[Background]++
		g.placeFlow(f)
		q.placeLocked(g)
		return
	case it != nil && it.queued && it.lane <= lane:
		q.mergeLocked(g, name, cause)
		return
	}
	it = q.itemLocked(g, name, flowName)
	it.cause.merge(cause)
	if lane == Live {
		q.skipDelayLocked(g, it)
	}
	moves := it.queued
	it.queued, it.lane = true, lane
	if it.held() { // Done will add it to the lane
		return
	}
	if moves {
		q.waiting--
		g.leaveBackgroundLocked(it.flow)
	}
	q.pushLocked(g, it, now)
}

// pushLocked adds the item to the end of its flow's lane.
func (q *Queue[T, K, N, V]) pushLocked(g *group[T, K, N, V], it *item[T, K, N, V], now time.Duration) {
	it.since = now
	if it.lane == Live {
		it.flow.live.pushBack(&it.element)
	} else {
		it.flow.background.push(it.flow, it.name, now, it.cause)
	}
	q.waiting++
	g.waiting[it.lane]++
	g.placeFlow(it.flow)
	q.placeLocked(g)
}

// leaveLaneLocked removes a queued item that is to be held from its lane. It must be marked as held.
func (q *Queue[T, K, N, V]) leaveLaneLocked(g *group[T, K, N, V], it *item[T, K, N, V]) {
	q.waiting--
	if it.lane == Background {
		g.leaveBackgroundLocked(it.flow)
		return
	}
	it.flow.live.remove(&it.element)
	g.waiting[Live]--
	g.placeFlow(it.flow)
}

// leaveBackgroundLocked must be called when an item has left the background lane of the flow. It removes stale entries
// from the head of the lane, so that the first entry always belongs to a waiting item.
func (g *group[T, K, N, V]) leaveBackgroundLocked(f *flow[T, K, N, V]) {
	g.waiting[Background]--
	b := &f.background
	if b.len--; b.len == 0 {
		b.batches = nil
	}
	for len(b.batches) > 0 && !g.waitsIn(b.batches[0].item, b.batches[0].names[0]) {
		b.pop()
	}
	g.placeFlow(f)
}

// waitsIn reports whether the item with this name waits in the background lane because of its entry in the batch that
// shares the given item.
func (g *group[T, K, N, V]) waitsIn(shared *item[T, K, N, V], name N) bool {
	it := g.items[name]
	return it != nil && it.queued && it.lane == Background && !it.held() && it.since == shared.since
}

// backlog is the background lane of a flow. It is kept small because an initial list adds every object of a type to it.
// Names that are added at the same time for the same cause form a batch. Its items share one struct until they are
// handed out, delayed, moved to the live lane or added for another cause. A moved item leaves a stale entry, which
// stays until it reaches the head.
type backlog[T, K, N comparable, V any] struct {
	batches []batch[T, K, N, V]
	len     int // the number of waiting items
}

type batch[T, K, N comparable, V any] struct {
	*item[T, K, N, V]     // shared
	names             []N // not empty
}

// push adds an entry to the end of the lane of f. It returns the shared item of the entry's batch.
func (b *backlog[T, K, N, V]) push(
	f *flow[T, K, N, V], name N, now time.Duration, cause Cause[T],
) *item[T, K, N, V] {
	last := len(b.batches) - 1
	if last < 0 || b.batches[last].since != now || b.batches[last].cause != cause {
		shared := &item[T, K, N, V]{flow: f, shared: true, queued: true, lane: Background, since: now, cause: cause}
		b.batches, last = append(b.batches, batch[T, K, N, V]{item: shared}), last+1
	}
	b.batches[last].names = append(b.batches[last].names, name)
	b.len++
	return b.batches[last].item
}

// pop removes the first entry.
func (b *backlog[T, K, N, V]) pop() (name N) {
	first := &b.batches[0]
	name, first.names = first.names[0], first.names[1:]
	if len(first.names) == 0 {
		*first, b.batches = batch[T, K, N, V]{}, b.batches[1:]
	}
	return name
}

// list is an intrusive, circular, doubly linked list: each value embeds its element.
type list[E any] struct {
	head *element[E]
	len  int
}

type element[E any] struct {
	prev, next *element[E] // nil if the element is not in a list
	value      E
}

func (l *list[E]) pushBack(e *element[E]) {
	if l.head == nil {
		l.head, e.prev = e, e
	}
	e.prev, e.next = l.head.prev, l.head
	e.prev.next, e.next.prev = e, e
	l.len++
}

func (l *list[E]) pushFront(e *element[E]) {
	l.pushBack(e)
	l.head = e
}

func (l *list[E]) remove(e *element[E]) {
	e.prev.next, e.next.prev = e.next, e.prev
	if l.head == e {
		l.head = e.next
	}
	e.prev, e.next = nil, nil
	if l.len--; l.len == 0 {
		l.head = nil
	}
}

// rotate moves the first element to the end.
func (l *list[E]) rotate() { l.head = l.head.next }

func (l *list[E]) all() iter.Seq[E] {
	return func(yield func(E) bool) {
		for e, i := l.head, 0; i < l.len && yield(e.value); i++ {
			e = e.next
		}
	}
}
