package fairqueue

import (
	"iter"
	"time"
)

// addLocked adds the item to the lane. A queued item can only move from the background to the live lane.
func (q *Queue[T, K, N, V]) addLocked(g *group[T, K, N, V], name N, lane Lane, now time.Duration) {
	it := g.items[name]
	switch {
	case it == nil && lane == Background:
		g.items[name] = g.background.push(name, now)
		q.waiting++
		q.placeLocked(g)
		return
	case it != nil && it.queued && it.lane <= lane:
		return
	}
	it = q.itemLocked(g, name)
	if lane == Live {
		q.endDelayLocked(g, it)
	}
	moves := it.queued
	it.queued, it.lane = true, lane
	if it.session != nil { // Done will add it to the lane
		return
	}
	if moves {
		q.waiting--
		g.leaveBackgroundLocked()
	}
	q.pushLocked(g, it, now)
}

// pushLocked adds the item to the end of its lane.
func (q *Queue[T, K, N, V]) pushLocked(g *group[T, K, N, V], it *item[T, K, N, V], now time.Duration) {
	it.since = now
	if it.lane == Live {
		g.live.pushBack(&it.element)
	} else {
		g.background.push(it.name, now)
	}
	q.waiting++
	q.placeLocked(g)
}

// leaveBackgroundLocked must be called when an item has left the background lane. It removes stale entries from the
// head of the lane, so that the first entry always belongs to a waiting item.
func (g *group[T, K, N, V]) leaveBackgroundLocked() {
	b := &g.background
	if b.len--; b.len == 0 {
		b.batches = nil
	}
	for len(b.batches) > 0 {
		first := b.batches[0]
		it := g.items[first.names[0]]
		if it != nil && it.queued && it.lane == Background && it.session == nil && it.since == first.since {
			return
		}
		b.pop()
	}
}

// backlog is the background lane of a group. It is kept small because an initial list adds every object of a type to
// it. Names that are added at the same time form a batch. Its items share one struct until they are handed out, delayed
// or moved to the live lane. A moved item leaves a stale entry, which stays until it reaches the head.
type backlog[T, K, N comparable, V any] struct {
	batches []batch[T, K, N, V]
	len     int // the number of waiting items
}

type batch[T, K, N comparable, V any] struct {
	*item[T, K, N, V]     // shared
	names             []N // not empty
}

// push adds an entry to the end of the lane. It returns the shared item of the entry's batch.
func (b *backlog[T, K, N, V]) push(name N, now time.Duration) *item[T, K, N, V] {
	last := len(b.batches) - 1
	if last < 0 || b.batches[last].since != now {
		shared := &item[T, K, N, V]{shared: true, queued: true, lane: Background, since: now}
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

func (l *list[E]) all() iter.Seq[E] {
	return func(yield func(E) bool) {
		for e, i := l.head, 0; i < l.len && yield(e.value); i++ {
			e = e.next
		}
	}
}
