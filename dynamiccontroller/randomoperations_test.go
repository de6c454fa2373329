package dynamiccontroller_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// TestRandomOperations applies random sequences of starts, stops, swaps, runs of all types or of a shard, and changes,
// with handlers that fail, panic, requeue and hang. It checks that no call for an object is lost, duplicated or
// concurrent with another call for the same object. With -rapid.checks=2000 it runs 10,000 sequences, which is too many
// for the race detector.
func TestRandomOperations(t *testing.T) {
	runs, want := 0, 500
	if testing.Short() { // rapid makes a fifth of the checks
		want = 100
	}
	defer func() {
		if !t.Failed() && runs < want {
			t.Errorf("only %d sequences were run", runs)
		}
		t.Logf("%d sequences", runs)
	}()
	synctest.Test(t, func(t *testing.T) {
		property := func(rt *rapid.T) {
			runs++
			s := newSoak(t)
			defer s.endRuns()
			defer s.endWatches()
			for _, gvr := range s.types {
				for _, name := range soakNames {
					s.putObject(s.id(gvr, name))
				}
			}
			rt.Repeat(s.operations())
			s.catchUp(rt)
			s.checkFinalState(rt)
		}
		// Hide the type of t, because rapid calls Deadline on a *testing.T, which is not allowed in a bubble.
		for range 5 {
			rapid.Check(struct{ testing.TB }{t}, property)
		}
	})
}

var (
	soakNames = []string{"a", "b", "c"}
	soakPlans = rapid.Custom(func(rt *rapid.T) plan {
		return plan{
			// The last value exceeds ShutdownTimeout.
			takes:          rapid.SampledFrom([]time.Duration{0, 1, 3, 10, 30, 3000}).Draw(rt, "takes") * time.Microsecond,
			ignoresContext: rapid.Bool().Draw(rt, "ignoresContext"),
			panic:          rapid.IntRange(0, 9).Draw(rt, "panic") == 0,
			err: rapid.SampledFrom([]error{
				nil, errOnPurpose, errOnPurpose, dynamiccontroller.Terminal(errOnPurpose),
				dynamiccontroller.RequeueAfter(0), dynamiccontroller.RequeueAfter(5 * time.Microsecond),
			}).Draw(rt, "outcome"),
		}
	})
	soakScopes = rapid.SampledFrom([]soakScope{allShards, allShards, 0, 1})
	// soakSwaps draws one of several options, each of which requires a different watch.
	soakSwaps = rapid.SampledFrom([]dynamiccontroller.ServeOption{
		dynamiccontroller.WithCache(dynamiccontroller.CacheFull), metadataOnly, withoutLabel,
		dynamiccontroller.WithTransform(keep), dynamiccontroller.WithNamespaces("default", "other"),
		dynamiccontroller.WithTransform(annotating("a")), // changes the metadata of all objects
	})
)

// newSoak returns a soak with short delays, because rapid gives up after a day of bubble time.
func newSoak(t *testing.T) *soak {
	return &soak{
		fixture: newSharded(t, 3, dynamiccontroller.Config{
			Workers: 3, ResyncPeriod: -1, QueueMaxRetries: soakRetries,
			MinRetryDelay: time.Microsecond, MaxRetryDelay: 10 * time.Microsecond, ShutdownTimeout: time.Millisecond,
		}),
		running:     map[soakScope]bool{},
		stopRun:     map[soakScope]func() error{},
		stopWatches: map[soakScope]func(){},
		serving:     map[schema.GroupVersionResource]bool{},
		stops:       map[schema.GroupVersionResource]int{},
		objects:     map[dynamiccontroller.ObjectIdentifiers]*soaked{},
	}
}

// operations returns the operations by name.
func (s *soak) operations() map[string]func(*rapid.T) {
	put := func(rt *rapid.T) { s.putObject(s.drawID(rt)) }
	addPlan := func(rt *rapid.T) {
		p := soakPlans.Draw(rt, "plan")
		s.mu.Lock()
		defer s.mu.Unlock()
		s.plans = append(s.plans, p)
	}
	return map[string]func(*rapid.T){
		// Operations with several names are drawn more often.
		"put 1":       put,
		"put 2":       put,
		"delete":      s.deleteObject,
		"enqueue":     s.enqueue,
		"start":       func(rt *rapid.T) { s.startServing(rt, s.drawType(rt)) },
		"stop":        s.stopServing,
		"add plan 1":  addPlan,
		"add plan 2":  addPlan,
		"watches":     s.toggleWatches,
		"add watches": s.changeWatches,
		"run 1":       func(rt *rapid.T) { s.beginRun(soakScopes.Draw(rt, "scope")) },
		"run 2":       func(rt *rapid.T) { s.beginRun(soakScopes.Draw(rt, "scope")) },
		"end":         s.endDrawnRun,
		"wait": func(rt *rapid.T) {
			time.Sleep(time.Duration(rapid.IntRange(1, 30).Draw(rt, "wait")) * time.Microsecond)
		},
	}
}

func (s *soak) drawType(rt *rapid.T) schema.GroupVersionResource {
	return rapid.SampledFrom(s.types).Draw(rt, "type")
}

func (s *soak) drawID(rt *rapid.T) dynamiccontroller.ObjectIdentifiers {
	return s.id(s.drawType(rt), rapid.SampledFrom(soakNames).Draw(rt, "name"))
}

// ownerOf returns the owner of an object of the second type.
func (s *soak) ownerOf(id dynamiccontroller.ObjectIdentifiers) dynamiccontroller.ObjectIdentifiers {
	return s.id(s.types[0], id.Name())
}

func (s *soak) recordEvent(id dynamiccontroller.ObjectIdentifiers) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.object(id).due = true
	s.object(id).parked = false
	if id.GVR == s.types[1] {
		s.object(s.ownerOf(id)).due = true
	}
}

func (s *soak) putObject(id dynamiccontroller.ObjectIdentifiers) {
	s.recordEvent(id)
	var owners []dynamiccontroller.ObjectIdentifiers
	if id.GVR == s.types[1] {
		owners = append(owners, s.ownerOf(id))
	}
	version := s.put(id.GVR, id.Name(), owners...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.object(id).version = version
}

func (s *soak) deleteObject(rt *rapid.T) {
	id := s.drawID(rt)
	s.mu.Lock()
	exists := s.object(id).version != ""
	s.object(id).version = ""
	s.mu.Unlock()
	if !exists {
		return
	}
	s.recordEvent(id)
	s.delete(id.GVR, id.Name())
}

func (s *soak) enqueue(rt *rapid.T) {
	id := s.drawID(rt)
	s.mu.Lock()
	accepted := s.serving[id.GVR] && s.isRunning(id.GVR)
	s.mu.Unlock()
	if accepted {
		s.recordEvent(id)
	}
	s.controller.Enqueue(id)
}

func (s *soak) startServing(rt *rapid.T, gvr schema.GroupVersionResource) {
	synctest.Wait()
	s.mu.Lock()
	for id, o := range s.objects {
		if id.GVR == gvr && !s.serving[gvr] {
			o.failures, o.parked = 0, false
		}
	}
	s.serving[gvr] = true
	s.markDue(func(id dynamiccontroller.ObjectIdentifiers) bool { return id.GVR == gvr })
	s.mu.Unlock()
	opts := []dynamiccontroller.ServeOption{soakSwaps.Draw(rt, "options")}
	if gvr == s.types[0] {
		opts = append(opts, dynamiccontroller.Owns(s.types[1]))
	}
	if limit := rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(rt, "flow concurrency"); limit > 0 {
		opts = append(opts, dynamiccontroller.WithFlow(firstLetter), dynamiccontroller.WithFlowConcurrency(limit))
	}
	s.serve(gvr, s.handle, opts...)
}

// firstLetter is a flow function. Two of the three names share a flow.
func firstLetter(id dynamiccontroller.ObjectIdentifiers) string {
	return strings.Replace(id.Name(), "c", "b", 1)[:1]
}

func (s *soak) stopServing(rt *rapid.T) {
	gvr := s.drawType(rt)
	timeout := time.Duration(rapid.IntRange(1, 40).Draw(rt, "timeout")) * time.Microsecond
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	_ = s.controller.StopServiceGVK(ctx, gvr) // It can time out, but no handler starts afterwards.
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serving[gvr] = false
	s.stops[gvr]++
}

// toggleWatches begins or ends a call to RunWatches. If it overlaps with a current one, an error is expected.
func (s *soak) toggleWatches(rt *rapid.T) {
	scope := soakScopes.Draw(rt, "scope of the watches")
	run := scope.of(s.controller.RunWatches)
	for other := range s.stopWatches {
		if scope == other {
			s.endWatchesOf(scope)
			return
		}
		if scope.overlaps(other) {
			if err := forASecond(run); err == nil {
				s.t.Errorf("RunWatches of the shard %d began during one of the shard %d; -1 means all", scope, other)
			}
			return
		}
	}
	s.changeScopes(func() { s.stopWatches[scope] = nil })
	s.stopWatches[scope] = s.stopper(inBackground(run))
}

func (s *soak) endWatchesOf(scope soakScope) {
	s.changeScopes(func() {
		s.stopWatches[scope]()
		delete(s.stopWatches, scope)
		s.divided = scope != allShards
	})
}

// changeScopes calls change, which announces or ends a run or a call to RunWatches, and then forgets what the
// controller forgets.
func (s *soak) changeScopes(change func()) {
	dropped := s.forget()
	change()
	s.mu.Lock()
	defer s.mu.Unlock()
	dropped()
}

func (s *soak) endWatches() {
	for scope := range s.stopWatches {
		s.endWatchesOf(scope)
	}
}

func (s *soak) changeWatches(rt *rapid.T) {
	gvr := s.drawType(rt)
	// No object owns another object of the same type.
	watch := dynamiccontroller.Owns(gvr, dynamiccontroller.EveryOwner())
	if rapid.Bool().Draw(rt, "add") {
		_ = s.controller.AddWatches(context.Background(), gvr, watch)
	} else {
		_ = s.controller.RemoveWatches(context.Background(), gvr, watch.Key())
	}
}

// beginRun begins a run. If it overlaps with a current one, an error is expected.
func (s *soak) beginRun(scope soakScope) {
	run := scope.of(s.controller.Run)
	for other := range s.stopRun {
		if scope.overlaps(other) {
			if err := forASecond(run); err == nil {
				s.t.Errorf("a run of the shard %d began during one of the shard %d; -1 means all", scope, other)
			}
			return
		}
	}
	synctest.Wait() // Reconciles requested before the run must not count as requested during the run.
	s.mu.Lock()
	s.running[scope] = true
	s.markDue(func(id dynamiccontroller.ObjectIdentifiers) bool { return scope.includes(id.GVR) })
	s.mu.Unlock()
	s.changeScopes(func() { s.stopRun[scope] = nil })
	s.stopRun[scope] = inBackground(run)
}

func (s *soak) endDrawnRun(rt *rapid.T) {
	if len(s.stopRun) > 0 {
		s.endRun(rapid.SampledFrom(slices.Sorted(maps.Keys(s.stopRun))).Draw(rt, "ends"))
	}
}

func (s *soak) endRuns() {
	for scope := range s.stopRun {
		s.endRun(scope)
	}
}

func (s *soak) endRun(scope soakScope) {
	ended := time.Now()
	s.changeScopes(func() {
		_ = s.stopRun[scope]() // The error lists hung handlers, which return later.
		delete(s.stopRun, scope)
		s.divided = scope != allShards
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, o := range s.objects {
		// If a call returned at the moment when the run ended, the controller may or may not have noticed the end.
		o.unsure = o.unsure || scope.includes(id.GVR) && o.returned.Equal(ended)
	}
	s.running[scope] = false
}

// catchUp runs the controller until no more calls are due. From then on, all calls succeed.
func (s *soak) catchUp(rt *rapid.T) {
	s.mu.Lock()
	s.plans = nil
	s.mu.Unlock()
	if len(s.stopRun) == 0 {
		s.beginRun(soakScopes.Draw(rt, "last scope"))
	}
	for shard := soakScope(0); shard < 2 && s.stopRun[allShards] == nil; shard++ {
		if s.stopRun[shard] == nil {
			s.beginRun(shard)
		}
	}
	for _, gvr := range s.types {
		if !s.serving[gvr] {
			s.startServing(rt, gvr)
		}
	}
	time.Sleep(10 * time.Millisecond)
	synctest.Wait()
}
