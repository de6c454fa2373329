package fairqueue

import "math"

// Cause is why an item was added. The causes of an item merge until the item is handed out.
type Cause[T comparable] struct {
	Kinds  uint16 // a set of bits, which the queue does not interpret
	Others uint32 // how often another object than First was given; it does not overflow
	// First is the object that caused the item to be added first, or nil. Items can share it, so it must not be changed.
	First *T
}

// merge adds another cause.
func (c *Cause[T]) merge(other Cause[T]) {
	c.Kinds |= other.Kinds
	others := other.Others
	switch {
	case other.First == nil:
	case c.First == nil:
		c.First = other.First
	case *c.First != *other.First && others < math.MaxUint32:
		others++
	}
	c.Others += min(others, math.MaxUint32-c.Others)
}

// Because returns a handle that adds items for the given cause. A delay keeps only the kinds of the cause.
func (h Group[T, K, N, V]) Because(cause Cause[T]) Group[T, K, N, V] {
	h.cause = cause
	return h
}

// mergeLocked adds a cause to those of the item with this name, which waits in a lane. An item whose struct is shared
// gets its own, unless the cause adds nothing.
func (q *Queue[T, K, N, V]) mergeLocked(g *group[T, K, N, V], name N, cause Cause[T]) {
	merged := g.items[name].cause
	merged.merge(cause)
	if merged != g.items[name].cause {
		q.itemLocked(g, name, "").cause = merged // the name of the flow is not used, because the item exists
	}
}
