package dynamiccontroller

import (
	"context"
	"fmt"

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
	users map[shards.Shard]int
	// divided is true if the last scope that has ended was not the whole. No type is then watched until another scope
	// begins. Otherwise, the caches are kept between the runs, so that deletions are detected.
	divided bool
	changed chan struct{} // closed and replaced when a scope begins or ends
}

func newScopes() scopes { return scopes{users: map[shards.Shard]int{}, changed: make(chan struct{})} }

// include reports whether a type is to be watched.
func (s *scopes) include(reg *registration) bool {
	if len(s.users) == 0 {
		return !s.divided
	}
	for scope := range s.users {
		if reg.isIn(scope) {
			return true
		}
	}
	return false
}

// narrowest returns the shard to which the type's watches with a bucket label are narrowed: the type's own shard in the
// layout of the current scopes. Any shard that contains the type would be correct. The zero Shard does not narrow them.
// It is used if all types are watched, because narrowing would then only add watches.
func (s *scopes) narrowest(reg *registration) shards.Shard {
	count := 0
	for scope := range s.users {
		if count == 0 || scope.Count < count {
			count = scope.Count
		}
	}
	switch {
	case count == 0: // until the next scope begins
		return reg.narrowed
	case count == 1 || !shards.HasBuckets(count):
		return shards.Shard{}
	}
	return shards.Shard{Index: reg.indexAmong(count), Count: count}
}

// enterScopeLocked begins a scope. The watches of its types start, if watches are running.
func (c *DynamicController) enterScopeLocked(scope shards.Shard) {
	c.scopes.users[scope]++
	c.followScopesLocked()
}

// leaveScopeLocked ends a scope. The watches and caches of types that no current scope includes are dropped, and
// returned.
func (c *DynamicController) leaveScopeLocked(scope shards.Shard) (dropped []activity) {
	if c.scopes.users[scope]--; c.scopes.users[scope] == 0 {
		delete(c.scopes.users, scope)
	}
	if len(c.scopes.users) == 0 {
		c.scopes.divided = scope.Count > 1
	}
	return c.followScopesLocked()
}

// followScopesLocked makes the feeds of all registrations watch their sources, or not. It returns those that no longer
// do.
func (c *DynamicController) followScopesLocked() (dropped []activity) {
	close(c.scopes.changed)
	c.scopes.changed = make(chan struct{})
	for _, reg := range c.registrations {
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

// forgetInactive removes what the end of a run has kept for the next one, if the types are not active any more. The
// process that serves the shard next reconciles all objects.
func (c *DynamicController) forgetInactive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, reg := range c.registrations {
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
