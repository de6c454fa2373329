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

// soak knows of every object what a controller that loses and doubles nothing owes it.
type soak struct {
	*world
	t *rapid.T

	mu      sync.Mutex
	serving map[schema.GroupVersionResource]bool
	running bool
	objects map[dynamiccontroller.ObjectIdentifiers]*soaked
	plan    []plan // what the next calls do; then they succeed
}

// soaked is one object.
type soaked struct {
	version  string // at the API server, "" if there is none
	seen     string // by the newest call
	child    string // the version of what it owns, seen by the newest call
	inHand   bool
	failures int  // in a row
	parked   bool // and nothing happened to it since
	due      bool // something may have asked for a call since the newest began
	calls    int
	last     error
	returned time.Time // the newest call
	unsure   bool      // whether that failed or was interrupted
}

// plan is what a call does.
type plan struct {
	takes time.Duration
	deaf  bool // to its context
	err   error
	panic bool
}

const soakRetries = 2

func (s *soak) object(id dynamiccontroller.ObjectIdentifiers) *soaked {
	if s.objects[id] == nil {
		s.objects[id] = &soaked{}
	}
	return s.objects[id]
}

// ask notes that something may have asked for a call of each object that the filter takes.
func (s *soak) ask(of func(dynamiccontroller.ObjectIdentifiers) bool) {
	for id, o := range s.objects {
		if of(id) {
			o.due = true
		}
	}
}

func (s *soak) handle(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	s.mu.Lock()
	o := s.object(id)
	if o.inHand {
		s.world.t.Errorf("two calls at once for %s", id)
	}
	if !s.serving[id.GVR] || !s.running {
		s.world.t.Errorf("a call for %s while it is not served, or nobody runs", id)
	}
	if !o.due {
		s.world.t.Errorf("doubled: a call for %s that nothing asked for: %+v", id, *o)
	}
	o.inHand, o.parked, o.due = true, false, false
	o.calls++
	o.seen = s.cached(id)
	if id.GVR == s.types[0] {
		o.child = s.cachedChild(id)
	}
	var p plan
	if len(s.plan) > 0 {
		p, s.plan = s.plan[0], s.plan[1:]
	}
	s.mu.Unlock()

	if p.deaf {
		time.Sleep(p.takes)
	} else {
		select {
		case <-ctx.Done():
		case <-time.After(p.takes):
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	o.inHand, o.last = false, p.err
	o.due = o.due || p.err != nil || p.panic
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), dynamiccontroller.ErrServingStopped) {
		return p.err // of no consequence
	}
	o.returned = time.Now()
	switch terminal := p.err != nil && p.err != errOnPurpose; {
	case errors.Is(context.Cause(ctx), dynamiccontroller.ErrRunEnded) && p.err == errOnPurpose && !p.panic:
		// Interrupted: no failure.
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

// cached is the version that the cache shows.
func (s *soak) cached(id dynamiccontroller.ObjectIdentifiers) string {
	lister, err := s.controller.Lister(id.GVR)
	if err != nil {
		return err.Error()
	}
	return versionIn(lister, id)
}

// childOf is the object that the first type's objects own: the second type's of the same name.
func (s *soak) childOf(id dynamiccontroller.ObjectIdentifiers) dynamiccontroller.ObjectIdentifiers {
	return s.id(s.types[1], id.Name())
}

func (s *soak) cachedChild(id dynamiccontroller.ObjectIdentifiers) string {
	lister, err := s.controller.SecondaryLister(id.GVR, dynamiccontroller.Owns(s.types[1]))
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

// TestASoakOfGeneratedOperations starts, stops, changes, fails, panics, requeues, parks and revives at random, over swaps,
// registrations and runs, and checks what every object is owed: no call lost, doubled or beside another. With
// -rapid.checks=2000 it makes 10,000 runs; that many are too much for the race detector itself.
func TestASoakOfGeneratedOperations(t *testing.T) {
	runs := 0
	defer func() {
		if !t.Failed() && runs < 500 {
			t.Errorf("only %d runs", runs)
		}
		t.Logf("%d runs", runs)
	}()
	synctest.Test(t, func(t *testing.T) {
		// Waits are short, as rapid gives up after a day of the bubble's time. The test's type is hidden behind another,
		// as rapid asks a *testing.T for its deadline, which a bubble does not have.
		property := func(rt *rapid.T) {
			runs++
			w := newWorld(t, 3, dynamiccontroller.Config{
				Workers: 3, ResyncPeriod: -1, QueueMaxRetries: soakRetries,
				MinRetryDelay: time.Microsecond, MaxRetryDelay: 10 * time.Microsecond, ShutdownTimeout: time.Millisecond,
			})
			s := &soak{world: w, t: rt, serving: map[schema.GroupVersionResource]bool{}, objects: map[dynamiccontroller.ObjectIdentifiers]*soaked{}}
			gvrs, names := rapid.SampledFrom(w.types), rapid.SampledFrom([]string{"a", "b", "c"})
			draw := func(rt *rapid.T) dynamiccontroller.ObjectIdentifiers {
				return w.id(gvrs.Draw(rt, "type"), names.Draw(rt, "name"))
			}
			plans := rapid.Custom(func(rt *rapid.T) plan {
				return plan{
					takes: time.Duration(rapid.IntRange(0, 30).Draw(rt, "takes")) * time.Microsecond,
					deaf:  rapid.Bool().Draw(rt, "deaf"),
					panic: rapid.IntRange(0, 9).Draw(rt, "panic") == 0,
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
					_ = stopRun() // hung handlers are named; they end by themselves
					s.mu.Lock()
					for _, o := range s.objects {
						// Returned at the very moment: the engine may have seen the end or not.
						o.unsure = o.unsure || o.returned.Equal(ended)
					}
					s.running = false
					s.mu.Unlock()
					stopRun = nil
				}
			}
			defer end()
			begin := func() {
				synctest.Wait() // so that what is asked for now is not taken for what was asked for before
				s.mu.Lock()
				already := s.running
				s.running = true
				s.ask(func(dynamiccontroller.ObjectIdentifiers) bool { return !already })
				s.mu.Unlock()
				if !already {
					stopRun = w.run()
				}
			}
			start := func(gvr schema.GroupVersionResource) {
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
				s.ask(func(id dynamiccontroller.ObjectIdentifiers) bool { return id.GVR == gvr })
				s.mu.Unlock()
				if gvr == w.types[0] {
					w.serve(gvr, s.handle, dynamiccontroller.Owns(w.types[1]))
				} else {
					w.serve(gvr, s.handle)
				}
			}
			happened := func(id dynamiccontroller.ObjectIdentifiers) {
				synctest.Wait()
				s.mu.Lock()
				defer s.mu.Unlock()
				s.object(id).due = true
				s.object(id).parked = false
				if id.GVR == w.types[1] {
					s.object(w.id(w.types[0], id.Name())).due = true // its owner's
				}
			}
			put := func(id dynamiccontroller.ObjectIdentifiers) {
				happened(id)
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
					happened(id)
					if err := w.client.Tracker().Delete(id.GVR, "default", id.Name()); err != nil {
						rt.Fatal(err)
					}
					synctest.Wait()
				},
				"enqueue": func(rt *rapid.T) {
					id := draw(rt)
					s.mu.Lock()
					heard := s.serving[id.GVR] && s.running
					s.mu.Unlock()
					if heard {
						happened(id)
					}
					w.controller.Enqueue(id)
				},
				"start": func(rt *rapid.T) { start(gvrs.Draw(rt, "type")) },
				"stop": func(rt *rapid.T) {
					gvr := gvrs.Draw(rt, "type")
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rapid.IntRange(1, 40).Draw(rt, "patience"))*time.Microsecond)
					defer cancel()
					_ = w.controller.StopServiceGVK(ctx, gvr) // may lose its patience; nothing starts all the same
					s.mu.Lock()
					s.serving[gvr] = false
					s.mu.Unlock()
				},
				"plan":  func(rt *rapid.T) { s.addPlan(plans.Draw(rt, "plan")) },
				"plan2": func(rt *rapid.T) { s.addPlan(plans.Draw(rt, "plan")) },
				"wait": func(rt *rapid.T) {
					time.Sleep(time.Duration(rapid.IntRange(1, 30).Draw(rt, "wait")) * time.Microsecond)
				},
				"run": func(*rapid.T) { begin() },
				"end": func(*rapid.T) { end() },
			})

			// Let all that is owed be paid: everything succeeds from now on.
			s.mu.Lock()
			s.plan = nil
			s.mu.Unlock()
			begin()
			for _, gvr := range w.types {
				if !s.serving[gvr] {
					start(gvr)
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

// settled checks the books. What it finds is told to the test itself too: what depends on how goroutines were scheduled
// may not come again when rapid tries to reproduce it.
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
		case o.inHand:
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
