package fairqueue

import (
	"iter"
	"time"
)

// addLocked adds the item to the lane. A queued item can only move from the background to the live lane.
func (q *Queue[T, K, N, V]) addLocked(g *group[T, K, N, V], name N, lane Lane, now time.Duration) {
	it, known := g.items[name]
	if lane == Background && it == nil {
		if !known {
			g.items[name] = nil
			q.pushLocked(g, name, nil, now)
		}
		return
	}
	it = q.itemLocked(g, name)
	if lane == Live {
		q.endDelayLocked(g, it)
	}
	before, queued := it.lane, it.queued
	if queued && before <= lane {
		return
	}
	it.queued, it.lane = true, lane
	if it.session != nil { // Done will add it to the lane
		return
	}
	if queued {
		q.leaveBackgroundLocked(g)
	}
	q.pushLocked(g, name, it, now)
}

// pushLocked adds the item to the end of its lane. A nil item goes to the background lane.
func (q *Queue[T, K, N, V]) pushLocked(g *group[T, K, N, V], name N, it *item[T, K, N, V], now time.Duration) {
	q.waiting++
	if it != nil && it.lane == Live {
		it.since = now
		g.live.pushBack(&it.element)
	} else {
		g.background.push(name, now)
	}
	q.placeLocked(g)
}

// popLocked removes the first item from the lane, which must not be empty.
func (q *Queue[T, K, N, V]) popLocked(g *group[T, K, N, V], lane Lane) *item[T, K, N, V] {
	if lane == Live {
		it := g.live.head.value
		g.live.remove(&it.element)
		it.queued = false
		q.waiting--
		return it
	}
	name, since := g.background.pop()
	it := q.itemLocked(g, name)
	it.queued, it.since = false, since
	q.leaveBackgroundLocked(g)
	return it
}

// leaveBackgroundLocked is called when an item has left the background lane. It removes outdated entries from the head
// of the lane, so that the first entry belongs to a waiting item.
func (q *Queue[T, K, N, V]) leaveBackgroundLocked(g *group[T, K, N, V]) {
	q.waiting--
	b := &g.background
	b.len--
	for len(b.batches) > 0 {
		it, known := g.items[b.batches[0].names[0]]
		if known && (it == nil || it.queued && it.lane == Background && it.session == nil) {
			return
		}
		b.pop()
	}
}

// backlog is the background lane of a group: the names of its items in batches that were added at the same time. When
// an item moves to the live lane, its entry stays until it is at the head. If the item returns to the background lane
// before that, it gets its old place back.
type backlog[N comparable] struct {
	batches []batch[N]
	len     int // the number of waiting items
}

type batch[N comparable] struct {
	since time.Duration
	names []N // not empty
}

func (b *backlog[N]) push(name N, since time.Duration) {
	last := len(b.batches) - 1
	if last < 0 || b.batches[last].since != since {
		b.batches, last = append(b.batches, batch[N]{since: since}), last+1
	}
	b.batches[last].names = append(b.batches[last].names, name)
	b.len++
}

func (b *backlog[N]) pop() (name N, since time.Duration) {
	first := &b.batches[0]
	name, since = first.names[0], first.since
	if first.names = first.names[1:]; len(first.names) == 0 {
		*first, b.batches = batch[N]{}, b.batches[1:]
	}
	return name, since
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
