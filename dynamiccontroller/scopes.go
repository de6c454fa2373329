package dynamiccontroller

import (
	"fmt"
	"maps"
	"slices"

	"github.com/dynamic-controller/engine/internal/shards"
)

// entry is a registration, and what the registry has decided for it.
type entry struct {
	*registration
	watched bool // whether the type is active; see scopes
	// narrowed is the shard to which watches with a bucket label are narrowed.
	narrowed   shards.Shard
	forgetting bool // the last registration is being forgotten
}

// scopes are the shards of the current runs and calls to RunWatches. The types of these shards are watched. The
// registry's lock guards it.
type scopes struct {
	users  map[shards.Shard]int
	counts []int // the different counts of these shards, in order
	// divided is true if the last scope that has ended was not the whole. No type is then watched until another scope
	// begins. Otherwise, the caches are kept between the runs, so that deletions are detected.
	divided bool
	changed chan struct{} // closed and replaced when a scope begins or ends
	types   byShard       // the registrations, for the last layout
}

// byShard divides the entries of registrations among the shards of a layout, so that the beginning and the end of a
// shard need not look at all types.
type byShard struct {
	parts [][]*entry // by index; empty until a shard begins
}

// of returns the entries of a shard. It reports false if the shard belongs to another layout.
func (b *byShard) of(scope shards.Shard) (part []*entry, ok bool) {
	if scope.Count != len(b.parts) {
		return nil, false
	}
	return b.parts[scope.Index], true
}

func (b *byShard) add(e *entry) {
	if count := len(b.parts); count > 0 {
		part := &b.parts[e.indexAmong(count)]
		*part = append(*part, e)
	}
}

func (b *byShard) remove(e *entry) {
	if count := len(b.parts); count > 0 {
		part := &b.parts[e.indexAmong(count)]
		*part = slices.DeleteFunc(*part, func(other *entry) bool { return other == e })
	}
}

func newScopes() scopes { return scopes{users: map[shards.Shard]int{}, changed: make(chan struct{})} }

// include reports whether a type is to be watched.
func (s *scopes) include(e *entry) bool {
	if len(s.users) == 0 {
		return !s.divided
	}
	return slices.ContainsFunc(s.counts, func(count int) bool {
		if count == 1 {
			return true
		}
		return s.users[shards.Shard{Index: e.indexAmong(count), Count: count}] > 0
	})
}

// change adds n users to a scope. It reports whether the change affects only the types of the scope: the other scopes
// belong to the same layout, before and after the change.
func (s *scopes) change(scope shards.Shard, n int) (local bool) {
	before := s.counts
	if s.users[scope] += n; s.users[scope] == 0 {
		delete(s.users, scope)
	}
	counts := map[int]struct{}{}
	for user := range s.users {
		counts[user.Count] = struct{}{}
	}
	s.counts = slices.Sorted(maps.Keys(counts))
	return len(before) == 1 && slices.Equal(before, s.counts)
}

// bucketShard returns the shard to which the type's watches with a bucket label are narrowed: the type's own shard in
// the layout of the current scopes. Any shard that contains the type would be correct. The zero Shard does not narrow
// them. It is used if all types are watched, because narrowing would then only add watches.
func (s *scopes) bucketShard(e *entry) shards.Shard {
	if len(s.counts) == 0 { // until the next scope begins
		return e.narrowed
	}
	switch count := s.counts[0]; {
	case count == 1 || !shards.HasBuckets(count):
		return shards.Shard{}
	default:
		return shards.Shard{Index: e.indexAmong(count), Count: count}
	}
}

// validateShard returns an error if there is no such shard.
func validateShard(s shards.Shard) error {
	switch {
	case s.Count < 1 || s.Count > shards.Max:
		return invalid(fmt.Errorf("invalid shard %d of %d: the count must be between 1 and %d", s.Index, s.Count, shards.Max))
	case s.Index < 0 || s.Index >= s.Count:
		return invalid(fmt.Errorf("invalid shard %d of %d: the index must be between 0 and %d", s.Index, s.Count, s.Count-1))
	}
	return nil
}

// overlaps reports whether one of the current shards has types in common with another one.
func overlaps[V any](current map[shards.Shard]V, with shards.Shard) bool {
	for scope := range current {
		if scope.Count != with.Count || scope.Index == with.Index {
			return true
		}
	}
	return false
}
