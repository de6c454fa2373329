package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"pgregory.net/rapid"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/internal/shards"
)

// soak tracks the calls that a correct controller must make for each object, and detects lost and duplicate calls.
type soak struct {
	*fixture

	mu      sync.Mutex
	serving map[schema.GroupVersionResource]bool
	stops   map[schema.GroupVersionResource]int // number of calls to StopServiceGVK
	running map[soakScope]bool
	objects map[dynamiccontroller.ObjectIdentifiers]*soaked
	plans   []plan // The behavior of the next calls. Later calls succeed.

	stopRun     map[soakScope]func() error // the functions that end the current runs
	stopWatches map[soakScope]func()       // the functions that end the current calls to RunWatches
	divided     bool                       // whether the last scope that has ended was a shard
}

// soakScope is what a run or a call to RunWatches serves: a shard, or all types.
type soakScope int

const allShards soakScope = -1

func (scope soakScope) includes(gvr schema.GroupVersionResource) bool {
	return scope == allShards || scope == soakShard(gvr)
}

// soakShard returns the shard of a type. There are two shards.
func soakShard(gvr schema.GroupVersionResource) soakScope {
	return soakScope(shards.Of(gvr.GroupResource(), 2))
}

// of returns a function that calls run with the context of the scope.
func (scope soakScope) of(run func(context.Context) error) func(context.Context) error {
	if scope == allShards {
		return run
	}
	return func(ctx context.Context) error { return run(dynamiccontroller.WithShard(ctx, int(scope), 2)) }
}

func (scope soakScope) overlaps(other soakScope) bool {
	return scope == other || scope == allShards || other == allShards
}

// isRunning reports whether a run serves a type. The caller must hold s.mu.
func (s *soak) isRunning(gvr schema.GroupVersionResource) bool {
	return s.running[allShards] || s.running[soakShard(gvr)]
}

// isWatched reports whether the caches of a type are kept.
func (s *soak) isWatched(gvr schema.GroupVersionResource) bool {
	if len(s.stopRun)+len(s.stopWatches) == 0 {
		return !s.divided
	}
	for scope := range s.stopRun {
		if scope.includes(gvr) {
			return true
		}
	}
	for scope := range s.stopWatches {
		if scope.includes(gvr) {
			return true
		}
	}
	return false
}

// forget must be called before s.stopRun or s.stopWatches changes. The returned function must be called afterwards. It
// forgets the failures and the parked objects of the types that have left or come.
func (s *soak) forget() (dropped func()) {
	watched := map[schema.GroupVersionResource]bool{}
	for _, gvr := range s.types {
		watched[gvr] = s.isWatched(gvr)
	}
	return func() {
		for id, o := range s.objects {
			if watched[id.GVR] != s.isWatched(id.GVR) {
				o.failures, o.parked, o.unsure = 0, false, false
			}
		}
	}
}

// soaked is the expected state of one object.
type soaked struct {
	version  string // version on the API server; "" if the object does not exist
	seen     string // version in the cache during the last call
	child    string // version of the owned object in the cache during the last call
	inCall   bool
	failures int  // consecutive failures
	parked   bool // whether the object is parked and has had no event since it was parked
	due      bool // whether a call may have been requested since the last one began
	calls    int
	last     error     // result of the last call
	returned time.Time // when the last call returned
	unsure   bool      // it is unknown whether the last call failed or was interrupted
}

// plan describes the behavior of one call.
type plan struct {
	takes          time.Duration
	ignoresContext bool
	err            error
	panic          bool
}

const soakRetries = 2

func (s *soak) object(id dynamiccontroller.ObjectIdentifiers) *soaked {
	if s.objects[id] == nil {
		s.objects[id] = &soaked{}
	}
	return s.objects[id]
}

// markDue records that a call may have been requested for each object that the filter accepts.
func (s *soak) markDue(filter func(dynamiccontroller.ObjectIdentifiers) bool) {
	for id, o := range s.objects {
		if filter(id) {
			o.due = true
		}
	}
}

func (s *soak) handle(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	s.mu.Lock()
	o := s.object(id)
	if o.inCall {
		s.t.Errorf("the handler was called concurrently for %s", id)
	}
	if !s.serving[id.GVR] || !s.isRunning(id.GVR) {
		s.t.Errorf("the handler was called for %s, although its type is not served, or not by a run", id)
	}
	if !o.due {
		s.t.Errorf("duplicate call for %s: no reconcile was requested since the last call: %+v", id, *o)
	}
	o.inCall, o.parked, o.due = true, false, false
	o.calls++
	stops := s.stops[id.GVR]
	o.seen = s.cached(id)
	if id.GVR == s.types[0] {
		o.child = s.cachedChild(id)
	}
	var p plan
	if len(s.plans) > 0 {
		p, s.plans = s.plans[0], s.plans[1:]
	}
	s.mu.Unlock()

	if p.ignoresContext || p.takes == 0 { // in a bubble, an expired timer can crash Go 1.26 with the race detector
		time.Sleep(p.takes)
	} else {
		select {
		case <-ctx.Done():
		case <-time.After(p.takes):
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	o.inCall, o.last = false, p.err
	o.due = o.due || p.err != nil || p.panic
	if stops != s.stops[id.GVR] {
		return p.err // An error from a call for an earlier registration is ignored.
	}
	o.returned = time.Now()
	switch terminal := p.err != nil && p.err != errOnPurpose; {
	case errors.Is(context.Cause(ctx), dynamiccontroller.ErrRunEnded) && p.err == errOnPurpose && !p.panic:
		// An interrupted call does not count as a failure.
	case p.panic, errors.Is(p.err, errOnPurpose):
		o.failures++
		if terminal && !p.panic || o.failures > soakRetries {
			o.failures, o.parked = 0, true
		}
	default:
		o.failures, o.unsure = 0, false
	}
	if p.panic {
		o.last = errOnPurpose
		panic("on purpose")
	}
	return p.err
}

// cached returns the object's version in the cache.
func (s *soak) cached(id dynamiccontroller.ObjectIdentifiers) string {
	lister, err := s.controller.Lister(id.GVR)
	if err != nil {
		return err.Error()
	}
	return versionIn(lister, id)
}

// childOf returns the object that an object of the first type owns: the object of the second type with the same name.
func (s *soak) childOf(id dynamiccontroller.ObjectIdentifiers) dynamiccontroller.ObjectIdentifiers {
	return s.id(s.types[1], id.Name())
}

func (s *soak) cachedChild(id dynamiccontroller.ObjectIdentifiers) string {
	lister, err := s.controller.SecondaryLister(id.GVR, dynamiccontroller.Owns(s.types[1]).Key())
	if err != nil {
		return err.Error()
	}
	return versionIn(lister, s.childOf(id))
}

func versionIn(lister cache.GenericLister, id dynamiccontroller.ObjectIdentifiers) string {
	object, err := lister.ByNamespace(id.Namespace()).Get(id.Name())
	if apierrors.IsNotFound(err) {
		return ""
	}
	if err != nil {
		return err.Error()
	}
	return object.(metav1.Object).GetResourceVersion()
}

// checkFinalState checks the state after all operations. It also logs its findings to the test itself, because a
// failure that depends on goroutine scheduling may not recur when rapid tries to reproduce it.
func (s *soak) checkFinalState(rt *rapid.T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []string
	find := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	parked, unsure := map[schema.GroupVersionResource]int{}, map[schema.GroupVersionResource]int{}
	for id, o := range s.objects {
		if o.unsure {
			unsure[id.GVR]++
		} else if o.parked {
			parked[id.GVR]++
		}
		switch {
		case o.inCall:
			find("%s: a call never returned", id)
		case o.version != "" && o.seen != o.version:
			find("%s: lost: the last call saw version %q: %+v", id, o.seen, *o)
		case o.version != "" && id.GVR == s.types[0] && o.child != s.object(s.childOf(id)).version:
			find("%s: lost: the last call saw its child at version %q: %+v", id, o.child, *o)
		case o.version != "" && o.last != nil && !o.parked && !o.unsure:
			find("%s: lost: the last call failed, and the object is neither retried nor parked: %+v", id, *o)
		}
	}
	for _, status := range s.controller.Status() {
		if least := parked[status.GVR]; status.Parked < least || status.Parked > least+unsure[status.GVR] {
			find("%d parked, want %d: %+v", status.Parked, least, status)
		}
		if status.Live+status.Background+status.Delayed+status.Running+status.Failing != 0 {
			find("unfinished: %+v", status)
		}
	}
	if len(found) > 0 {
		s.t.Log(strings.Join(found, "\n"))
		rt.Fatal(strings.Join(found, "\n"))
	}
}
