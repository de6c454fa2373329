package dynamiccontroller

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/internal/shards"
)

// registry holds which types are served, and which runs and calls to RunWatches are current. It decides which run
// serves a type, and whether the type is watched. Its lock makes these decisions one step with their effects on the
// registrations, so that a type that is registered while a run begins is attached once. While the lock is held, nothing
// is logged or waited for, the API server is not called, and neither is user code, with two exceptions: a new watch
// calls WithValues of the log sink, and Resource of the client.
type registry struct {
	mu     sync.RWMutex // guards the fields below, and those of entries, active runs and scopes
	types  map[schema.GroupVersionResource]*entry
	ending map[schema.GroupVersionResource][]*entry // closed registrations that still have running handlers or watches
	runs   runs
	// watching holds the shards of the current calls to RunWatches.
	watching map[shards.Shard]struct{}
	scopes   scopes
	// standalone holds the watches that belong to no single type. The slice is replaced, not changed.
	standalone []*StandaloneWatch
}

// activeRun is a current run, and the registrations that it serves, including closed ones that have not ended.
type activeRun struct {
	run           *run
	registrations map[*registration]struct{}
	draining      bool // see DrainShard
}

// runs holds the current runs. Their scopes are disjoint.
type runs map[shards.Shard]*activeRun

// of returns the run that serves a registration, or nil.
func (r runs) of(reg *registration) *activeRun {
	for scope := range r { // all scopes have the same count
		if scope.Count > 1 {
			scope.Index = reg.indexAmong(scope.Count)
		}
		return r[scope]
	}
	return nil
}

func newRegistry() *registry {
	return &registry{
		types:    map[schema.GroupVersionResource]*entry{},
		ending:   map[schema.GroupVersionResource][]*entry{},
		runs:     runs{},
		watching: map[shards.Shard]struct{}{},
		scopes:   newScopes(),
	}
}

// attacher starts the delivery of a registration's objects to a run. It must not block. The returned channel is closed
// when the delivery has begun.
type attacher func(*run, *registration) (attached <-chan struct{})

// register changes the registration of a type, or adds one. Once the subscriptions have been updated, done is closed.
// The function create is called for a new one. The channel that it receives is nil, or closed when Metrics.Forget has
// returned for an earlier registration.
func (g *registry) register(
	next *serveOptions, create func(forgotten <-chan struct{}) *registration, attach attacher,
) (reg *registration, done <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e := g.types[next.gvr]; e != nil {
		return e.registration, e.feed.Swap(e.feedOptions(next))
	}
	var forgotten <-chan struct{}
	for _, e := range g.ending[next.gvr] {
		if e.forgetting {
			forgotten = e.ended
		}
	}
	e := &entry{registration: create(forgotten)}
	e.watched, e.narrowed = g.scopes.include(e), g.scopes.bucketShard(e)
	done = e.open(next, e.watched, e.narrowed)
	g.types[e.gvr] = e
	g.scopes.types.add(e)
	if in := g.runs.of(e.registration); in != nil && !in.run.ending.Load() {
		in.serve(e.registration)
		done = attach(in.run, e.registration)
	}
	return e.registration, done
}

// unregister removes a type's current registration. It returns all of the type's registrations that have not ended.
func (g *registry) unregister(gvr schema.GroupVersionResource) (ending []*registration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e := g.types[gvr]; e != nil {
		delete(g.types, gvr)
		g.scopes.types.remove(e)
		g.ending[gvr] = append(g.ending[gvr], e)
		e.group.Close()
	}
	for _, e := range g.ending[gvr] {
		ending = append(ending, e.registration)
	}
	return ending
}

// forget removes a registration that has ended. If it is the type's last one, it first calls onLast, without the lock.
func (g *registry) forget(reg *registration, onLast func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if ending := g.ending[reg.gvr]; g.types[reg.gvr] == nil && len(ending) == 1 {
		ending[0].forgetting = true
		g.mu.Unlock()
		onLast()
		g.mu.Lock()
	}
	ending := slices.DeleteFunc(g.ending[reg.gvr], func(e *entry) bool { return e.registration == reg })
	if g.ending[reg.gvr] = ending; len(ending) == 0 {
		delete(g.ending, reg.gvr)
	}
	for _, in := range g.runs {
		delete(in.registrations, reg)
	}
}

// registrationOf returns the current registration of a type.
func (g *registry) registrationOf(gvr schema.GroupVersionResource) (*registration, error) {
	reg, _, err := g.lookUp(gvr)
	return reg, err
}

// lookUp returns the current registration of a type, and whether the type is watched. It is not watched if the current
// scopes are shards to which it does not belong. While there is no scope, the last one counts.
func (g *registry) lookUp(gvr schema.GroupVersionResource) (reg *registration, watched bool, err error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if e := g.types[gvr]; e != nil {
		return e.registration, e.watched, nil
	}
	return nil, false, fmt.Errorf("%s: %w", nameOf(gvr), ErrNotServed)
}

// registered returns the current registrations, and whether their types are watched.
func (g *registry) registered() map[*registration]bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	watched := make(map[*registration]bool, len(g.types))
	for _, e := range g.types {
		watched[e.registration] = e.watched
	}
	return watched
}

// isElsewhere reports whether the type of a current registration is not watched; see lookUp. The channel is closed when
// that can have changed.
func (g *registry) isElsewhere(reg *registration) (elsewhere bool, changed <-chan struct{}) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	e := g.types[reg.gvr]
	return e != nil && e.registration == reg && !e.watched, g.scopes.changed
}

// addRun adds a run, unless its scope overlaps with that of another one. It calls begin with the standalone watches
// that exist, before the queue accepts objects of the run's registrations, and then attaches these. Registrations that
// are added later are attached by register.
func (g *registry) addRun(
	r *run, begin func([]*StandaloneWatch), attach attacher,
) (attached []<-chan struct{}, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if overlaps(g.runs, r.scope) {
		return nil, ErrAlreadyRunning
	}
	in := &activeRun{run: r, registrations: map[*registration]struct{}{}}
	g.runs[r.scope] = in
	g.enterScopeLocked(r.scope)
	begin(g.standalone)
	for _, e := range g.typesOfLocked(r.scope) {
		in.serve(e.registration)
	}
	for reg := range in.registrations {
		attached = append(attached, attach(r, reg))
	}
	return attached, nil
}

// serve makes the run serve a registration. The caller must then attach the registration, which resumes its group.
func (s *activeRun) serve(reg *registration) {
	reg.group.Pause() // until its initial sync is done
	reg.group.Drain(s.draining)
	reg.group.Start(served{reg, s.run})
	s.registrations[reg] = struct{}{}
}

// beginEnd prevents further registrations from being attached to a run.
func (g *registry) beginEnd(r *run) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r.ending.Store(true)
}

// removeRun removes a run.
func (g *registry) removeRun(r *run) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.runs, r.scope)
	r.endDrain() // ResumeShard does not find the run any more
}

// drain prevents further calls of the run of a scope, and makes the queue hold back the objects of its registrations,
// until resume is called. It returns the registrations, and nil if there is no run. Drains and resumes are serialized,
// so that the run and its registrations agree.
func (g *registry) drain(scope shards.Shard) (d *drain, served []*registration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	in := g.runs[scope]
	if in == nil {
		return nil, nil
	}
	in.setDraining(true)
	return in.run.drain(), slices.Collect(maps.Keys(in.registrations))
}

// resume ends a drain of the run of a scope.
func (g *registry) resume(scope shards.Shard) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if in := g.runs[scope]; in != nil {
		in.run.resume()
		in.setDraining(false)
	}
}

func (s *activeRun) setDraining(draining bool) {
	s.draining = draining
	for reg := range s.registrations {
		reg.group.Drain(draining)
	}
}

// runOf returns the run of a scope, or nil, and the registrations that it serves.
func (g *registry) runOf(scope shards.Shard) (r *run, served []*registration) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if in := g.runs[scope]; in != nil {
		return in.run, slices.Collect(maps.Keys(in.registrations))
	}
	return nil, nil
}

// servedBy returns the registrations of a run, including closed ones that have not ended.
func (g *registry) servedBy(r *run) []*registration {
	g.mu.RLock()
	defer g.mu.RUnlock()
	in := g.runs[r.scope]
	if in == nil || in.run != r {
		return nil
	}
	return slices.Collect(maps.Keys(in.registrations))
}

// servedByRuns returns the registrations of all runs that are not ending.
func (g *registry) servedByRuns() (all []*registration) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, in := range g.runs {
		if !in.run.ending.Load() {
			all = slices.AppendSeq(all, maps.Keys(in.registrations))
		}
	}
	return all
}

// isServedByRun reports whether there is a run for the shard of the registration, even if the run is ending.
func (g *registry) isServedByRun(reg *registration) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.runs.of(reg) != nil
}

// beginWatches adds a call to RunWatches, unless its scope overlaps with that of another one.
func (g *registry) beginWatches(scope shards.Shard) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if overlaps(g.watching, scope) {
		return ErrAlreadyRunning
	}
	g.watching[scope] = struct{}{}
	g.enterScopeLocked(scope)
	return nil
}

// endWatches removes a call to RunWatches.
func (g *registry) endWatches(scope shards.Shard) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.watching, scope)
}

// addStandalone adds a watch that belongs to no single type, and returns the current runs. The function subscribe is
// called under the lock, because the watch's own functions can be called concurrently.
func (g *registry) addStandalone(w *StandaloneWatch, subscribe func()) (current []*run) {
	g.mu.Lock()
	defer g.mu.Unlock()
	subscribe()
	g.standalone = append(slices.Clip(g.standalone), w)
	for _, in := range g.runs {
		current = append(current, in.run)
	}
	return current
}

func (g *registry) removeStandalone(w *StandaloneWatch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.standalone = slices.DeleteFunc(slices.Clone(g.standalone), func(other *StandaloneWatch) bool { return other == w })
}

// standaloneWatches returns the watches that belong to no single type. The caller must not modify the slice.
func (g *registry) standaloneWatches() []*StandaloneWatch {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.standalone
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
		include, narrowed, watched := g.scopes.include(e), g.scopes.bucketShard(e), e.watched
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
