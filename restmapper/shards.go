package restmapper

import "hash/maphash"

// shards is a map that is never changed: an edit copies the few parts that it touches and shares the rest, so that
// readers need no lock and one change among thousands of entries costs little.
type shards[V any] struct {
	parts [shardCount]map[string]V
}

const shardCount = 256

var shardSeed = maphash.MakeSeed()

func shardOf(key string) uint8 { return uint8(maphash.String(shardSeed, key) % shardCount) }

func (s *shards[V]) get(key string) V { return s.parts[shardOf(key)][key] }

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
func (e *shardsEdit[V]) part(key string) map[string]V {
	i := shardOf(key)
	if !e.owned[i] {
		part := make(map[string]V, len(e.next.parts[i])+1)
		for k, v := range e.next.parts[i] {
			part[k] = v
		}
		e.next.parts[i], e.owned[i] = part, true
	}
	return e.next.parts[i]
}

func (e *shardsEdit[V]) get(key string) V { return e.next.get(key) }

func (e *shardsEdit[V]) set(key string, value V) { e.part(key)[key] = value }

func (e *shardsEdit[V]) remove(key string) { delete(e.part(key), key) }
