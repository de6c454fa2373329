package persistent

import (
	"cmp"
	"hash/maphash"
	"iter"
	"slices"
)

const (
	bits  = 5 // bits of a hash that each level uses
	width = 1 << bits
	// maxLeaf is the number of entries above which a leaf becomes a branch.
	maxLeaf = 16
	// minBranch is the number of entries below which a branch becomes a leaf. It is less than maxLeaf, so that a map whose
	// size alternates around either limit is not restructured by every change.
	minBranch = 8
	// maxDepth is the depth at which all bits of a hash have been used. Leaves at this depth are not split.
	maxDepth = (64 + bits - 1) / bits
)

var seed = maphash.MakeSeed()

// Map is an immutable map. The zero value is an empty map.
type Map[V any] struct {
	root *node[V]
}

// node is a leaf, or a branch if children is set. Nodes are immutable. An empty node is nil.
type node[V any] struct {
	children *[width]*node[V]
	entries  []entry[V] // of a leaf, in no particular order
	count    int        // number of entries below a branch
}

// branch is a node that is allocated together with its children.
type branch[V any] struct {
	node[V]
	array [width]*node[V]
}

type entry[V any] struct {
	key   string
	value V
}

// Get returns the value of key, or the zero value if the map does not contain key.
func (m Map[V]) Get(key string) (value V) {
	n := m.root
	if n == nil {
		return value
	}
	if n.children != nil {
		for hash := maphash.String(seed, key); n.children != nil; hash <<= bits {
			if n = n.children[hash>>(64-bits)]; n == nil {
				return value
			}
		}
	}
	if i := n.find(key); i >= 0 {
		return n.entries[i].value
	}
	return value
}

// Len returns the number of entries.
func (m Map[V]) Len() int { return m.root.len() }

// All returns an iterator over all entries, in no particular order.
func (m Map[V]) All() iter.Seq2[string, V] {
	return func(yield func(string, V) bool) { m.root.all(yield) }
}

// Edit is a list of changes to a map. The zero value contains no changes. An edit must not be used concurrently.
type Edit[V any] struct {
	changes []change[V]
}

type change[V any] struct {
	entry[V]
	hash   uint64
	delete bool
}

// child returns the index of the child that contains the key, among the children of a branch at the given depth.
func (c *change[V]) child(depth int) uint64 { return c.hash << (bits * depth) >> (64 - bits) }

// NewEdit returns an edit without changes that has room for the given number of changes.
func NewEdit[V any](size int) *Edit[V] {
	return &Edit[V]{changes: make([]change[V], 0, size)}
}

// Set adds a change that sets the value of key.
func (e *Edit[V]) Set(key string, value V) {
	e.changes = append(e.changes, change[V]{entry: entry[V]{key, value}, hash: maphash.String(seed, key)})
}

// Delete adds a change that removes key. The change has no effect on a map that does not contain key.
func (e *Edit[V]) Delete(key string) {
	e.changes = append(e.changes, change[V]{entry: entry[V]{key: key}, hash: maphash.String(seed, key), delete: true})
}

// With returns a copy of m with the changes in e applied. A later change to a key overrides an earlier one. With does
// not modify m.
func (m Map[V]) With(e *Edit[V]) Map[V] {
	if len(e.changes) == 0 {
		return m
	}
	sort(e.changes)
	return Map[V]{m.root.with(e.changes, 0)}
}

// sort sorts changes so that changes to the same child are adjacent. Changes to the same key stay in order.
func sort[V any](changes []change[V]) {
	slices.SortStableFunc(changes, func(a, b change[V]) int { return cmp.Compare(a.hash, b.hash) })
}

func (n *node[V]) len() int {
	switch {
	case n == nil:
		return 0
	case n.children == nil:
		return len(n.entries)
	}
	return n.count
}

// find returns the index of key in a leaf, or -1.
func (n *node[V]) find(key string) int {
	for i := range n.entries {
		if n.entries[i].key == key {
			return i
		}
	}
	return -1
}

func (n *node[V]) all(yield func(string, V) bool) bool {
	if n == nil {
		return true
	}
	for _, e := range n.entries {
		if !yield(e.key, e.value) {
			return false
		}
	}
	if n.children != nil {
		for _, child := range n.children {
			if !child.all(yield) {
				return false
			}
		}
	}
	return true
}

// with returns the node with the changes applied. The changes must be sorted.
func (n *node[V]) with(changes []change[V], depth int) *node[V] {
	if n != nil && n.children != nil {
		return n.branchWith(changes, depth)
	}
	size := n.len()
	for _, c := range changes {
		if !c.delete && (n == nil || n.find(c.key) < 0) {
			size++
		}
	}
	if size <= maxLeaf || depth == maxDepth {
		return n.leafWith(changes, size)
	}
	all := make([]change[V], 0, n.len()+len(changes))
	if n != nil {
		for _, e := range n.entries {
			all = append(all, change[V]{entry: e, hash: maphash.String(seed, e.key)})
		}
	}
	all = append(all, changes...)
	sort(all)
	return (&node[V]{children: new([width]*node[V])}).branchWith(all, depth)
}

// leafWith returns a leaf with the changes applied. It allocates a capacity of size entries.
func (n *node[V]) leafWith(changes []change[V], size int) *node[V] {
	next := &node[V]{entries: make([]entry[V], n.len(), size)}
	if n != nil {
		copy(next.entries, n.entries)
	}
	for _, c := range changes {
		i := next.find(c.key)
		switch {
		case c.delete && i >= 0:
			next.entries = slices.Delete(next.entries, i, i+1)
		case c.delete:
		case i >= 0:
			next.entries[i].value = c.value
		default:
			next.entries = append(next.entries, c.entry)
		}
	}
	if len(next.entries) == 0 {
		return nil
	}
	return next
}

func (n *node[V]) branchWith(changes []change[V], depth int) *node[V] {
	next := &branch[V]{node: node[V]{count: n.count}, array: *n.children}
	next.children = &next.array
	for len(changes) > 0 {
		index, size := changes[0].child(depth), 1
		for size < len(changes) && changes[size].child(depth) == index {
			size++
		}
		child := next.array[index]
		next.array[index] = child.with(changes[:size], depth+1)
		next.count += next.array[index].len() - child.len()
		changes = changes[size:]
	}
	switch {
	case next.count == 0:
		return nil
	case next.count >= minBranch:
		return &next.node
	}
	leaf := &node[V]{entries: make([]entry[V], 0, next.count)}
	for key, value := range (Map[V]{&next.node}).All() {
		leaf.entries = append(leaf.entries, entry[V]{key, value})
	}
	return leaf
}
