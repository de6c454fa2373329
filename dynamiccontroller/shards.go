package dynamiccontroller

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/internal/shards"
)

// WithShard returns a context with which [DynamicController.Run] and [DynamicController.RunWatches] serve one shard:
// one of count parts of the types. Without it, they serve all types. The shard of a type depends on its group and
// resource only, and is the same in every process and every release. The count must be between 1 and 256, and the index
// between 0 and count-1; otherwise, Run and RunWatches return an error that wraps [ErrInvalidOptions].
//
// Package replica sets the shard of the contexts that it passes to its runnables. WithShard is for programs that elect
// leaders in another way. All shards that a controller serves at the same time must have the same count, and so must
// those that it watches.
func WithShard(ctx context.Context, index, count int) context.Context {
	return shards.With(ctx, shards.Shard{Index: index, Count: count})
}

// BucketOf returns the bucket of a type: one of 256 parts of the types, as the value of a label. It depends on the
// type's group and resource only, and is the same in every process and every release. If the number of shards is a
// power of two, all types in a bucket are in the same shard. For its use, see [WithBucketLabel].
func BucketOf(gr schema.GroupResource) string { return shards.Bucket(gr) }

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

// isIn reports whether the type belongs to a shard.
func (r *registration) isIn(scope shards.Shard) bool {
	return scope.Count == 1 || r.indexAmong(scope.Count) == scope.Index
}

// indexAmong returns the index of the type's shard. It caches the last result.
func (r *registration) indexAmong(count int) int {
	if cached := r.shard.Load(); cached != nil && cached.Count == count {
		return cached.Index
	}
	shard := shards.Shard{Index: shards.Of(r.gvr.GroupResource(), count), Count: count}
	r.shard.Store(&shard)
	return shard.Index
}

// scopes are the shards of the current runs and calls to RunWatches. The types of these shards are watched. The
// controller's lock guards it.
type scopes struct {
	users  map[shards.Shard]int
	counts []int // the different counts of these shards, in order
	// divided is true if the last scope that has ended was not the whole. No type is then watched until another scope
	// begins. Otherwise, the caches are kept between the runs, so that deletions are detected.
	divided bool
	changed chan struct{} // closed and replaced when a scope begins or ends
	types   byShard       // the registrations, for the last layout
}

// byShard divides registrations among the shards of a layout, so that the beginning and the end of a shard need not
// look at all types.
type byShard struct {
	parts [][]*registration // by index; empty until a shard begins
}

// of returns the registrations of a shard. It reports false if the shard belongs to another layout.
func (b *byShard) of(scope shards.Shard) (regs []*registration, ok bool) {
	if scope.Count != len(b.parts) {
		return nil, false
	}
	return b.parts[scope.Index], true
}

func (b *byShard) add(reg *registration) {
	if count := len(b.parts); count > 0 {
		part := &b.parts[reg.indexAmong(count)]
		*part = append(*part, reg)
	}
}

func (b *byShard) remove(reg *registration) {
	if count := len(b.parts); count > 0 {
		part := &b.parts[reg.indexAmong(count)]
		*part = slices.DeleteFunc(*part, func(r *registration) bool { return r == reg })
	}
}

func newScopes() scopes { return scopes{users: map[shards.Shard]int{}, changed: make(chan struct{})} }

// include reports whether a type is to be watched.
func (s *scopes) include(reg *registration) bool {
	if len(s.users) == 0 {
		return !s.divided
	}
	return slices.ContainsFunc(s.counts, func(count int) bool {
		if count == 1 {
			return true
		}
		return s.users[shards.Shard{Index: reg.indexAmong(count), Count: count}] > 0
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

// narrowest returns the shard to which the type's watches with a bucket label are narrowed: the type's own shard in the
// layout of the current scopes. Any shard that contains the type would be correct. The zero Shard does not narrow them.
// It is used if all types are watched, because narrowing would then only add watches.
func (s *scopes) narrowest(reg *registration) shards.Shard {
	if len(s.counts) == 0 { // until the next scope begins
		return reg.narrowed
	}
	switch count := s.counts[0]; {
	case count == 1 || !shards.HasBuckets(count):
		return shards.Shard{}
	default:
		return shards.Shard{Index: reg.indexAmong(count), Count: count}
	}
}

// enterScopeLocked begins a scope. The watches of its types start, if watches are running.
func (c *DynamicController) enterScopeLocked(scope shards.Shard) {
	if c.scopes.change(scope, 1) {
		c.followScopesLocked(c.typesOfLocked(scope))
		return
	}
	c.followScopesLocked(slices.Collect(maps.Values(c.registrations)))
}

// typesOfLocked returns the registrations of a scope.
func (c *DynamicController) typesOfLocked(scope shards.Shard) []*registration {
	if regs, ok := c.scopes.types.of(scope); ok {
		return regs
	}
	c.scopes.types.parts = make([][]*registration, scope.Count)
	for _, reg := range c.registrations {
		c.scopes.types.add(reg)
	}
	return c.scopes.types.parts[scope.Index]
}

// leaveScopeLocked ends a scope. The watches and caches of types that no current scope includes are dropped, and
// returned.
func (c *DynamicController) leaveScopeLocked(scope shards.Shard) (dropped []activity) {
	local := c.scopes.change(scope, -1)
	if len(c.scopes.users) == 0 {
		c.scopes.divided = scope.Count > 1
	}
	if local {
		return c.followScopesLocked(c.typesOfLocked(scope))
	}
	return c.followScopesLocked(slices.Collect(maps.Values(c.registrations)))
}

// followScopesLocked makes the feeds of the registrations watch their sources, or not. It returns those that no longer
// do.
func (c *DynamicController) followScopesLocked(regs []*registration) (dropped []activity) {
	close(c.scopes.changed)
	c.scopes.changed = make(chan struct{})
	for _, reg := range regs {
		include, narrowed, watched := c.scopes.include(reg), c.scopes.narrowest(reg), reg.watched
		if include == watched && (narrowed == reg.narrowed || !include) {
			continue
		}
		reg.watched, reg.narrowed = include, narrowed
		if include != watched {
			reg.attempts.Reset() // also when a shard comes, because of handlers that have outlived their run
		}
		if wait := reg.feed.SetActive(include, narrowed); !include {
			dropped = append(dropped, activity{"a watch of " + nameOf(reg.gvr), closedAfter(wait)})
		}
	}
	return dropped
}

// activity is something that the end of a run, or of RunWatches, waits for.
type activity struct {
	description string
	done        <-chan struct{}
}

// forgetInactive removes what the end of a run has kept for the next one, if the types of the run's scope are not
// active any more. The process that serves the shard next reconciles all objects.
func (c *DynamicController) forgetInactive(scope shards.Shard) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, reg := range c.typesOfLocked(scope) {
		if !reg.watched {
			reg.attempts.Reset()
		}
	}
}

// isElsewhere reports whether this process serves or watches shards, or did so last, but not that of the type.
func (c *DynamicController) isElsewhere(reg *registration) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return !reg.watched
}
