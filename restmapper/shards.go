package restmapper

import (
	"hash/maphash"
	"slices"
)

// shards is a map that is never changed: an edit copies the few parts that it touches and shares the rest, so that
// readers need no lock and one change among thousands of entries costs little.
type shards[V any] struct {
	parts [shardCount]*shard[V] // nil ones are empty
}

// shard has its entries in order of their keys' hashes, which are made once a lookup.
type shard[V any] struct {
	hashes  []uint64
	entries []shardEntry[V]
}

type shardEntry[V any] struct {
	key   string
	value V
}

const shardCount = 256

var shardSeed = maphash.MakeSeed()

// get returns the zero value if there is no such key.
func (s *shards[V]) get(key string) (value V) {
	hash := maphash.String(shardSeed, key)
	part := s.parts[hash%shardCount]
	if i, ok := part.find(hash, key); ok {
		return part.entries[i].value
	}
	return value
}

func (s *shard[V]) find(hash uint64, key string) (at int, ok bool) {
	if s == nil {
		return 0, false
	}
	low, high := 0, len(s.hashes)
	for low < high {
		middle := int(uint(low+high) / 2)
		if s.hashes[middle] < hash {
			low = middle + 1
		} else {
			high = middle
		}
	}
	for i := low; i < len(s.hashes) && s.hashes[i] == hash; i++ {
		if s.entries[i].key == key {
			return i, true
		}
	}
	return low, false
}

// shardsEdit makes the next shards of the last.
type shardsEdit[V any] struct {
	next  *shards[V]
	owned [shardCount]bool // copied already, and seen by nobody else yet
}

func editShards[V any](s *shards[V]) *shardsEdit[V] {
	next := *s
	return &shardsEdit[V]{next: &next}
}

// part returns the part of a key, to be changed.
func (e *shardsEdit[V]) part(hash uint64) *shard[V] {
	i := hash % shardCount
	if e.owned[i] {
		return e.next.parts[i]
	}
	const room = 1 // most edits add one entry
	part := &shard[V]{}
	if old := e.next.parts[i]; old != nil {
		part.hashes = append(make([]uint64, 0, len(old.hashes)+room), old.hashes...)
		part.entries = append(make([]shardEntry[V], 0, len(old.entries)+room), old.entries...)
	}
	e.next.parts[i], e.owned[i] = part, true
	return part
}

func (e *shardsEdit[V]) get(key string) V { return e.next.get(key) }

func (e *shardsEdit[V]) set(key string, value V) {
	hash := maphash.String(shardSeed, key)
	part := e.part(hash)
	at, ok := part.find(hash, key)
	if !ok {
		part.hashes = slices.Insert(part.hashes, at, hash)
		part.entries = slices.Insert(part.entries, at, shardEntry[V]{key: key})
	}
	part.entries[at].value = value
}

func (e *shardsEdit[V]) remove(key string) {
	hash := maphash.String(shardSeed, key)
	part := e.part(hash)
	if at, ok := part.find(hash, key); ok {
		part.hashes, part.entries = slices.Delete(part.hashes, at, at+1), slices.Delete(part.entries, at, at+1)
	}
}
