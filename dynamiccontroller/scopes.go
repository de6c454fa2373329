package dynamiccontroller

import (
	"maps"
	"slices"

	"github.com/dynamic-controller/engine/internal/shards"
)

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

// byShard divides the entries of registrations among the shards of a layout, so that the beginning and the end of a shard need not
// look at all types.
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

// narrowest returns the shard to which the type's watches with a bucket label are narrowed: the type's own shard in the
// layout of the current scopes. Any shard that contains the type would be correct. The zero Shard does not narrow them.
// It is used if all types are watched, because narrowing would then only add watches.
func (s *scopes) narrowest(e *entry) shards.Shard {
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

// enterScopeLocked begins a scope. The watches of its types start, if watches are running.
func (g *registry) enterScopeLocked(scope shards.Shard) {
	if g.scopes.change(scope, 1) {
		g.followScopesLocked(g.typesOfLocked(scope))
		return
	}
	g.followScopesLocked(slices.Collect(maps.Values(g.types)))
}

// typesOfLocked returns the registrations of a scope.
func (g *registry) typesOfLocked(scope shards.Shard) []*entry {
	if part, ok := g.scopes.types.of(scope); ok {
		return part
	}
	g.scopes.types.parts = make([][]*entry, scope.Count)
	for _, e := range g.types {
		g.scopes.types.add(e)
	}
	return g.scopes.types.parts[scope.Index]
}

// leaveScope ends a scope. The watches and caches of types that no current scope includes are dropped. What is left of
// them is returned.
func (g *registry) leaveScope(scope shards.Shard) (dropped []activity) {
	g.mu.Lock()
	defer g.mu.Unlock()
	local := g.scopes.change(scope, -1)
	if len(g.scopes.users) == 0 {
		g.scopes.divided = scope.Count > 1
	}
	if local {
		return g.followScopesLocked(g.typesOfLocked(scope))
	}
	return g.followScopesLocked(slices.Collect(maps.Values(g.types)))
}

// followScopesLocked makes the feeds of the registrations watch their sources, or not. It returns those that no longer
// do.
func (g *registry) followScopesLocked(entries []*entry) (dropped []activity) {
	close(g.scopes.changed)
	g.scopes.changed = make(chan struct{})
	for _, e := range entries {
		include, narrowed, watched := g.scopes.include(e), g.scopes.narrowest(e), e.watched
		if include == watched && (narrowed == e.narrowed || !include) {
			continue
		}
		e.watched, e.narrowed = include, narrowed
		if include != watched {
			e.attempts.Reset() // also when a shard comes, because of handlers that have outlived their run
		}
		if wait := e.feed.SetActive(include, narrowed); !include {
			dropped = append(dropped, activity{"a watch of " + nameOf(e.gvr), closedAfter(wait)})
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
func (g *registry) forgetInactive(scope shards.Shard) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.typesOfLocked(scope) {
		if !e.watched {
			e.attempts.Reset()
		}
	}
}

// watched returns the registrations of types that are being watched. It reports whether there is a current scope.
func (g *registry) watched() (regs []*registration, current bool) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, e := range g.types {
		if e.watched {
			regs = append(regs, e.registration)
		}
	}
	return regs, len(g.scopes.users) > 0
}

// registeredIn returns the registrations of a shard. It reports whether the shard is part of a current scope.
func (g *registry) registeredIn(shard shards.Shard) (regs []*registration, current bool) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if validateShard(shard) != nil || g.scopes.users[shard]+g.scopes.users[shards.Whole] == 0 {
		return nil, false
	}
	part, ok := g.scopes.types.of(shard)
	if !ok {
		part = slices.Collect(maps.Values(g.types))
	}
	for _, e := range part {
		if e.isIn(shard) {
			regs = append(regs, e.registration)
		}
	}
	return regs, true
}
