package restmapper

import (
	"slices"
)

// sorted maps keys to values, in the order of the keys. It is never changed: an edit copies the few entries that stand
// beside what it changes and shares all others, so that one change costs about the same in ten entries and in thousands.
type sorted[V any] struct {
	chunks []*chunk[V] // none is empty
}

type chunk[V any] struct {
	keys   []string
	values []V
}

// mostInChunk keeps both the list of chunks and what is copied of one short.
const mostInChunk = 32

// get returns the zero value if there is no such key.
func (s *sorted[V]) get(key string) (value V) {
	if len(s.chunks) == 0 {
		return value
	}
	c := s.chunks[s.chunkOf(key)]
	if i := c.search(key); i < len(c.keys) && c.keys[i] == key {
		return c.values[i]
	}
	return value
}

// after returns the first key behind this one, empty if there is none.
func (s *sorted[V]) after(key string) string {
	if len(s.chunks) == 0 {
		return ""
	}
	at := s.chunkOf(key)
	c := s.chunks[at]
	i := c.search(key)
	if i < len(c.keys) && c.keys[i] == key {
		i++
	}
	switch {
	case i < len(c.keys):
		return c.keys[i]
	case at+1 < len(s.chunks):
		return s.chunks[at+1].keys[0]
	}
	return ""
}

// keys appends all keys to a list.
func (s *sorted[V]) keys(list []string) []string {
	for _, c := range s.chunks {
		list = append(list, c.keys...)
	}
	return list
}

// chunkOf is where the key is or would be: in the last chunk that does not begin behind it.
func (s *sorted[V]) chunkOf(key string) int {
	low, high := 0, len(s.chunks)-1
	for low < high {
		middle := int(uint(low+high+1) / 2)
		if s.chunks[middle].keys[0] <= key {
			low = middle
		} else {
			high = middle - 1
		}
	}
	return low
}

// search is where the key is or would be. It is written out for the sake of lookups.
func (c *chunk[V]) search(key string) int {
	low, high := 0, len(c.keys)
	for low < high {
		middle := int(uint(low+high) / 2)
		if c.keys[middle] < key {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low
}

// sortedEdit makes the next of a sorted.
type sortedEdit[V any] struct {
	next  sorted[V]
	owned map[*chunk[V]]bool // copied already, and seen by nobody else yet
}

func (s *sorted[V]) edit() *sortedEdit[V] {
	return &sortedEdit[V]{next: sorted[V]{chunks: slices.Clone(s.chunks)}, owned: map[*chunk[V]]bool{}}
}

func (e *sortedEdit[V]) set(key string, value V) {
	if len(e.next.chunks) == 0 {
		e.next.chunks = []*chunk[V]{e.own(&chunk[V]{})}
	}
	at := e.next.chunkOf(key)
	c := e.own(e.next.chunks[at])
	e.next.chunks[at] = c
	i := c.search(key)
	if i < len(c.keys) && c.keys[i] == key {
		c.values[i] = value
		return
	}
	c.keys, c.values = slices.Insert(c.keys, i, key), slices.Insert(c.values, i, value)
	if len(c.keys) > mostInChunk {
		half := len(c.keys) / 2
		e.next.chunks[at] = e.own(&chunk[V]{c.keys[:half], c.values[:half]})
		e.next.chunks = slices.Insert(e.next.chunks, at+1, e.own(&chunk[V]{c.keys[half:], c.values[half:]}))
	}
}

func (e *sortedEdit[V]) remove(key string) {
	if len(e.next.chunks) == 0 {
		return
	}
	at := e.next.chunkOf(key)
	c := e.next.chunks[at]
	i := c.search(key)
	if i == len(c.keys) || c.keys[i] != key {
		return
	}
	c = e.own(c)
	e.next.chunks[at] = c
	c.keys, c.values = slices.Delete(c.keys, i, i+1), slices.Delete(c.values, i, i+1)
	if len(c.keys) == 0 {
		e.next.chunks = slices.Delete(e.next.chunks, at, at+1)
		return
	}
	// Many removals must not leave many chunks of an entry each.
	for _, first := range []int{at, at - 1} {
		if first < 0 || first+1 >= len(e.next.chunks) {
			continue
		}
		a, b := e.next.chunks[first], e.next.chunks[first+1]
		if len(a.keys)+len(b.keys) <= mostInChunk/2 {
			merged := e.own(a)
			merged.keys, merged.values = append(merged.keys, b.keys...), append(merged.values, b.values...)
			e.next.chunks[first] = merged
			e.next.chunks = slices.Delete(e.next.chunks, first+1, first+2)
			return
		}
	}
}

// own returns a chunk that may be changed.
func (e *sortedEdit[V]) own(c *chunk[V]) *chunk[V] {
	if e.owned[c] {
		return c
	}
	const room = 1 // most edits add one entry
	copied := &chunk[V]{
		keys: append(make([]string, 0, len(c.keys)+room), c.keys...), values: append(make([]V, 0, len(c.values)+room), c.values...),
	}
	e.owned[copied] = true
	return copied
}

// done returns what was made, without the room that was left for more.
func (e *sortedEdit[V]) done() sorted[V] {
	for c := range e.owned {
		c.keys, c.values = fitted(c.keys), fitted(c.values)
	}
	e.owned = nil
	return e.next
}

func fitted[T any](list []T) []T {
	const spare = 4
	if cap(list)-len(list) <= spare {
		return list
	}
	return append(make([]T, 0, len(list)), list...)
}
