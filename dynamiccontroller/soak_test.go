package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"pgregory.net/rapid"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// soak tracks the calls that a correct controller must make for each object, without lost or duplicate calls.
type soak struct {
	*world
	t *rapid.T

	mu      sync.Mutex
	serving map[schema.GroupVersionResource]bool
	stops   map[schema.GroupVersionResource]int // how often serving was stopped
	running bool
	objects map[dynamiccontroller.ObjectIdentifiers]*soaked
	plan    []plan // what the next calls do; then they succeed
}

// soaked is one object.
type soaked struct {
	version  string // at the API server, "" if there is none
	seen     string // version in the cache during the newest call
	child    string // version of the owned object in the cache during the newest call
	inCall   bool
	failures int  // in a row
	parked   bool // and no event since
	due      bool // a call may have been requested since the newest one began
	calls    int
	last     error
	returned time.Time // the newest call
	unsure   bool      // it is unknown whether that call failed or was interrupted
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
		s.world.t.Errorf("two calls at once for %s", id)
	}
	if !s.serving[id.GVR] || !s.running {
		s.world.t.Errorf("a call for %s while its type is not served or Run is not running", id)
	}
	if !o.due {
		s.world.t.Errorf("duplicate: a call for %s that was not requested: %+v", id, *o)
	}
	o.inCall, o.parked, o.due = true, false, false
	o.calls++
	stops := s.stops[id.GVR]
	o.seen = s.cached(id)
	if id.GVR == s.types[0] {
		o.child = s.cachedChild(id)
	}
	var p plan
	if len(s.plan) > 0 {
		p, s.plan = s.plan[0], s.plan[1:]
	}
	s.mu.Unlock()

	if p.ignoresContext {
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
		return p.err // of an earlier registration: the error is ignored
	}
	o.returned = time.Now()
	switch terminal := p.err != nil && p.err != errOnPurpose; {
	case errors.Is(context.Cause(ctx), dynamiccontroller.ErrRunEnded) && p.err == errOnPurpose && !p.panic:
		// Interrupted: does not count as a failure.
	case p.panic, errors.Is(p.err, errOnPurpose):
		o.failures++
		if terminal && !p.panic || o.failures > soakRetries {
			o.failures, o.parked = 0, true
		}
	default:
		o.failures = 0
	}
	if p.panic {
		o.last = errOnPurpose
		panic("on purpose")
	}
	return p.err
}

// cached returns the version in the cache.
func (s *soak) cached(id dynamiccontroller.ObjectIdentifiers) string {
	lister, err := s.controller.Lister(id.GVR)
	if err != nil {
		return err.Error()
	}
	return versionIn(lister, id)
}

// childOf returns the object that an object of the first type owns: that of the second type with the same name.
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

// TestRandomOperations applies random sequences of starts, stops, swaps, runs and changes, with handlers that fail,
// panic, requeue and hang. It checks that no call for an object is lost, duplicated or concurrent with another one.
// With -rapid.checks=2000 it runs 10,000 sequences, which is too many for the race detector.
func TestRandomOperations(t *testing.T) {
	runs := 0
	defer func() {
		if !t.Failed() && runs < 500 {
			t.Errorf("only %d runs", runs)
		}
		t.Logf("%d runs", runs)
	}()
	synctest.Test(t, func(t *testing.T) {
		// Waits are short, because rapid gives up after a day of bubble time. The type of t is hidden, because rapid
		// calls Deadline of a *testing.T, which is not allowed in a bubble.
		property := func(rt *rapid.T) {
			runs++
			w := newWorld(t, 3, dynamiccontroller.Config{
				Workers: 3, ResyncPeriod: -1, QueueMaxRetries: soakRetries,
				MinRetryDelay: time.Microsecond, MaxRetryDelay: 10 * time.Microsecond, ShutdownTimeout: time.Millisecond,
			})
			s := &soak{world: w, t: rt, serving: map[schema.GroupVersionResource]bool{}, stops: map[schema.GroupVersionResource]int{}, objects: map[dynamiccontroller.ObjectIdentifiers]*soaked{}}
			gvrs, names := rapid.SampledFrom(w.types), rapid.SampledFrom([]string{"a", "b", "c"})
			draw := func(rt *rapid.T) dynamiccontroller.ObjectIdentifiers {
				return w.id(gvrs.Draw(rt, "type"), names.Draw(rt, "name"))
			}
			plans := rapid.Custom(func(rt *rapid.T) plan {
				return plan{
					// The last one exceeds ShutdownTimeout.
					takes:          rapid.SampledFrom([]time.Duration{0, 1, 3, 10, 30, 3000}).Draw(rt, "takes") * time.Microsecond,
					ignoresContext: rapid.Bool().Draw(rt, "ignoresContext"),
					panic:          rapid.IntRange(0, 9).Draw(rt, "panic") == 0,
					err: rapid.SampledFrom([]error{
						nil, errOnPurpose, errOnPurpose, dynamiccontroller.Terminal(errOnPurpose),
						dynamiccontroller.RequeueAfter(0), dynamiccontroller.RequeueAfter(5 * time.Microsecond),
					}).Draw(rt, "outcome"),
				}
			})
			var stopRun func() error
			end := func() {
				if stopRun != nil {
					ended := time.Now()
					_ = stopRun() // lists hung handlers, which end by themselves
					s.mu.Lock()
					for _, o := range s.objects {
						// Returned at the same time: the controller may or may not have noticed the end of the run.
						o.unsure = o.unsure || o.returned.Equal(ended)
					}
					s.running = false
					s.mu.Unlock()
					stopRun = nil
				}
			}
			defer end()
			var stopWatches func() error
			endWatches := func() {
				if stopWatches != nil {
					if err := stopWatches(); err != nil {
						rt.Error(err)
					}
					stopWatches = nil
				}
			}
			defer endWatches()
			begin := func() {
				synctest.Wait() // so that earlier requests are not mistaken for this one
				s.mu.Lock()
				already := s.running
				s.running = true
				s.markDue(func(dynamiccontroller.ObjectIdentifiers) bool { return !already })
				s.mu.Unlock()
				if !already {
					stopRun = w.run()
				}
			}
			// Each of them requires a different watch.
			swaps := rapid.SampledFrom([]dynamiccontroller.ServeOption{
				dynamiccontroller.WithCache(dynamiccontroller.CacheFull), metadataOnly, withoutLabel, dynamiccontroller.WithTransform(keep),
			})
			start := func(rt *rapid.T, gvr schema.GroupVersionResource) {
				synctest.Wait()
				s.mu.Lock()
				if !s.serving[gvr] {
					for id, o := range s.objects {
						if id.GVR == gvr {
							o.failures, o.parked = 0, false
						}
					}
				}
				s.serving[gvr] = true
				s.markDue(func(id dynamiccontroller.ObjectIdentifiers) bool { return id.GVR == gvr })
				s.mu.Unlock()
				opts := []dynamiccontroller.ServeOption{swaps.Draw(rt, "options")}
				if gvr == w.types[0] {
					opts = append(opts, dynamiccontroller.Owns(w.types[1]))
				}
				w.serve(gvr, s.handle, opts...)
			}
			recordEvent := func(id dynamiccontroller.ObjectIdentifiers) {
				synctest.Wait()
				s.mu.Lock()
				defer s.mu.Unlock()
				s.object(id).due = true
				s.object(id).parked = false
				if id.GVR == w.types[1] {
					s.object(w.id(w.types[0], id.Name())).due = true // the owner
				}
			}
			put := func(id dynamiccontroller.ObjectIdentifiers) {
				recordEvent(id)
				var version string
				if id.GVR == w.types[1] {
					version = w.put(id.GVR, id.Name(), w.id(w.types[0], id.Name()))
				} else {
					version = w.put(id.GVR, id.Name())
				}
				s.mu.Lock()
				s.object(id).version = version
				s.mu.Unlock()
			}
			for _, gvr := range w.types {
				for _, name := range []string{"a", "b", "c"} {
					put(w.id(gvr, name))
				}
			}
			rt.Repeat(map[string]func(*rapid.T){
				"put":  func(rt *rapid.T) { put(draw(rt)) },
				"put2": func(rt *rapid.T) { put(draw(rt)) },
				"delete": func(rt *rapid.T) {
					id := draw(rt)
					s.mu.Lock()
					exists := s.object(id).version != ""
					s.object(id).version = ""
					s.mu.Unlock()
					if !exists {
						return
					}
					recordEvent(id)
					if err := w.client.Tracker().Delete(id.GVR, "default", id.Name()); err != nil {
						rt.Fatal(err)
					}
					synctest.Wait()
				},
				"enqueue": func(rt *rapid.T) {
					id := draw(rt)
					s.mu.Lock()
					accepted := s.serving[id.GVR] && s.running
					s.mu.Unlock()
					if accepted {
						recordEvent(id)
					}
					w.controller.Enqueue(id)
				},
				"start": func(rt *rapid.T) { start(rt, gvrs.Draw(rt, "type")) },
				"stop": func(rt *rapid.T) {
					gvr := gvrs.Draw(rt, "type")
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rapid.IntRange(1, 40).Draw(rt, "timeout"))*time.Microsecond)
					defer cancel()
					_ = w.controller.StopServiceGVK(ctx, gvr) // it can time out, but no handler starts afterwards
					s.mu.Lock()
					s.serving[gvr] = false
					s.stops[gvr]++
					s.mu.Unlock()
				},
				"plan":  func(rt *rapid.T) { s.addPlan(plans.Draw(rt, "plan")) },
				"plan2": func(rt *rapid.T) { s.addPlan(plans.Draw(rt, "plan")) },
				"wait": func(rt *rapid.T) {
					time.Sleep(time.Duration(rapid.IntRange(1, 30).Draw(rt, "wait")) * time.Microsecond)
				},
				"watches": func(*rapid.T) {
					if stopWatches == nil {
						stopWatches = w.runWatches()
					} else {
						endWatches()
					}
				},
				"add watches": func(rt *rapid.T) {
					gvr := gvrs.Draw(rt, "type")
					// No object owns another one of its own type.
					watch := dynamiccontroller.Owns(gvr, dynamiccontroller.EveryOwner())
					if rapid.Bool().Draw(rt, "add") {
						_ = w.controller.AddWatches(context.Background(), gvr, watch)
					} else {
						_ = w.controller.RemoveWatches(context.Background(), gvr, watch.Key())
					}
				},
				"run": func(*rapid.T) { begin() },
				"end": func(*rapid.T) { end() },
			})

			// Let the controller catch up: all calls succeed from now on.
			s.mu.Lock()
			s.plan = nil
			s.mu.Unlock()
			begin()
			for _, gvr := range w.types {
				if !s.serving[gvr] {
					start(rt, gvr)
				}
			}
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			s.settled(rt)
		}
		for range 5 {
			rapid.Check(struct{ testing.TB }{t}, property)
		}
	})
}

func (s *soak) addPlan(p plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plan = append(s.plan, p)
}

// settled checks the final state. It also logs its findings to the test itself, because a failure that depends on the
// scheduling of goroutines may not recur when rapid tries to reproduce it.
func (s *soak) settled(rt *rapid.T) {
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
			find("%s: lost: the newest call saw version %q: %+v", id, o.seen, *o)
		case o.version != "" && id.GVR == s.types[0] && o.child != s.object(s.childOf(id)).version:
			find("%s: lost: the newest call saw its child at version %q: %+v", id, o.child, *o)
		case o.version != "" && o.last != nil && !o.parked && !o.unsure:
			find("%s: lost: its last call failed, and it is neither retried nor parked: %+v", id, *o)
		}
	}
	for _, status := range s.controller.Status() {
		if least := parked[status.GVR]; status.Parked < least || status.Parked > least+unsure[status.GVR] {
			find("%d parked, want %d: %+v", status.Parked, least, status)
		}
		if status.Live+status.Background+status.Delayed+status.Running+status.Failing != 0 {
			find("unsettled: %+v", status)
		}
	}
	if len(found) > 0 {
		s.world.t.Log(strings.Join(found, "\n"))
		rt.Fatal(strings.Join(found, "\n"))
	}
}
