package references

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

// Objects whose references change all the time are, in the end, reconciled with the newest state of what they refer to,
// even if their reconciles fail, and watches end and begin again.
func TestNoChangeIsLost(t *testing.T) {
	for seed := range uint64(10) {
		cached := seed%2 == 1
		t.Run(fmt.Sprintf("seed=%d,cached=%t", seed, cached), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testNoChangeIsLost(t, rand.New(rand.NewPCG(seed, 1)), cached) })
		})
	}
}

// stress is the state of a stress test.
type stress struct {
	*fixture
	cached   bool       // reconciles read from the caches of the watches
	stressMu sync.Mutex // guards the fields below
	random   *rand.Rand
	specs    map[string][]wanted // by widget
	seen     map[string][]string // what the last reconcile has read
}

// wanted is a reference of a widget, to a name or to the objects with the label app=x.
type wanted struct {
	gvr  schema.GroupVersionResource
	name string // empty for the selector
}

var stressed = []schema.GroupVersionResource{secrets, configMaps}

func testNoChangeIsLost(t *testing.T, random *rand.Rand, cached bool) {
	s := &stress{
		fixture: newFixture(t), cached: cached, random: random, specs: map[string][]wanted{}, seen: map[string][]string{},
	}
	s.serve(widgets)
	names := []string{"a", "b", "c", "d"}
	for _, name := range names {
		s.put(widgets, "default", name, "")
		s.on(name, func(ctx context.Context, refs *References) error { return s.reconcileOne(ctx, name, refs) })
	}
	stop := s.run()
	for range 200 {
		s.change(names)
	}
	time.Sleep(time.Minute) // less than the delay after a failure
	synctest.Wait()
	s.stressMu.Lock()
	for _, name := range names {
		if newest := s.read(t.Context(), handlers.Live(s.client), s.specs[name]); !slices.Equal(s.seen[name], newest) {
			t.Errorf("%s was last reconciled with %v, want %v", name, s.seen[name], newest)
		}
	}
	s.stressMu.Unlock()
	stop()
	for _, gvr := range stressed {
		s.wantWatches("after the run", gvr, 0)
	}
}

// intN returns a random number in [0, n).
func (s *stress) intN(n int) int {
	s.stressMu.Lock()
	defer s.stressMu.Unlock()
	return s.random.IntN(n)
}

// reconcileOne reads what a widget refers to. It fails from time to time.
func (s *stress) reconcileOne(ctx context.Context, name string, refs *References) error {
	fails := s.intN(4) == 0
	s.stressMu.Lock()
	spec := s.specs[name]
	s.stressMu.Unlock()
	reader := handlers.Live(s.client)
	if s.cached {
		reader = handlers.Cached(refs.Lister)
	}
	versions := s.read(ctx, refs.Reader(reader), spec)
	s.stressMu.Lock()
	defer s.stressMu.Unlock()
	s.seen[name] = versions
	if fails {
		return errors.New("on purpose")
	}
	return nil
}

// read returns the names and versions of the objects. Those of a type that has not synced are missing.
func (s *stress) read(ctx context.Context, reader handlers.Reader, spec []wanted) (versions []string) {
	for _, w := range spec {
		if w.name != "" {
			if object, err := reader.Get(ctx, w.gvr, "default", w.name); err == nil {
				versions = append(versions, object.GetName()+"="+object.GetResourceVersion())
			}
			continue
		}
		objects, err := reader.List(ctx, w.gvr, "default", labels.SelectorFromSet(labels.Set{"app": "x"}))
		if err != nil && !errors.Is(err, dynamiccontroller.ErrNotSynced) {
			s.Error(err)
		}
		for _, object := range objects {
			versions = append(versions, object.GetName()+"="+object.GetResourceVersion())
		}
	}
	slices.Sort(versions)
	return versions
}

// change changes a referenced object, or the references of a widget, or waits.
func (s *stress) change(names []string) {
	gvr, object := stressed[s.intN(2)], fmt.Sprint(s.intN(3))
	switch s.intN(6) {
	case 0, 1:
		s.put(gvr, "default", object, []string{"", "x", "y"}[s.intN(3)])
	case 2:
		synctest.Wait() // the fake client loses a deletion between a list and its watch
		s.delete(gvr, "default", object)
	case 3, 4:
		var spec []wanted
		for range s.intN(3) {
			spec = append(spec, wanted{gvr: gvr, name: []string{"", object}[s.intN(2)]})
		}
		name := names[s.intN(len(names))]
		s.stressMu.Lock()
		s.specs[name] = spec
		s.stressMu.Unlock()
		s.put(widgets, "default", name, "")
	case 5:
		time.Sleep(time.Duration(s.intN(2000)) * time.Millisecond)
	}
}
