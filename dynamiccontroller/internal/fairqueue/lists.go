package fairqueue

// line is a first in, first out list of items from which any can be taken.
type line[T, K comparable, V any] struct {
	head, tail *item[T, K, V]
	len        int
}

func (l *line[T, K, V]) push(it *item[T, K, V]) {
	it.prev, it.next = l.tail, nil
	if l.tail == nil {
		l.head = it
	} else {
		l.tail.next = it
	}
	l.tail = it
	l.len++
}

func (l *line[T, K, V]) remove(it *item[T, K, V]) {
	if it.prev == nil {
		l.head = it.next
	} else {
		it.prev.next = it.next
	}
	if it.next == nil {
		l.tail = it.prev
	} else {
		it.next.prev = it.prev
	}
	it.prev, it.next = nil, nil
	l.len--
}

// ring holds the groups that have something to hand out; the head's turn it is.
type ring[T, K comparable, V any] struct {
	head, tail *group[T, K, V]
}

// join seats the group at the tail with a full quantum, or at the head if its turn was cut short.
func (r *ring[T, K, V]) join(g *group[T, K, V]) {
	if g.inRing {
		return
	}
	g.inRing = true
	if g.credit > 0 {
		g.prev, g.next = nil, r.head
		if r.head == nil {
			r.tail = g
		} else {
			r.head.prev = g
		}
		r.head = g
		return
	}
	g.credit = g.limits.Weight
	g.prev, g.next = r.tail, nil
	if r.tail == nil {
		r.head = g
	} else {
		r.tail.next = g
	}
	r.tail = g
}

func (r *ring[T, K, V]) leave(g *group[T, K, V]) {
	if !g.inRing {
		return
	}
	g.inRing = false
	if g.prev == nil {
		r.head = g.next
	} else {
		g.prev.next = g.next
	}
	if g.next == nil {
		r.tail = g.prev
	} else {
		g.next.prev = g.prev
	}
	g.prev, g.next = nil, nil
}
