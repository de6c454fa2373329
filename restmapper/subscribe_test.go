package restmapper

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"
)

// at are the mappings of a kind in a version, none for 0.
func at(kind string, version int) []*meta.RESTMapping {
	if version == 0 {
		return nil
	}
	gv := schema.GroupVersion{Group: "example.com", Version: fmt.Sprint("v", version)}
	return []*meta.RESTMapping{{Resource: gv.WithResource("things"), GroupVersionKind: gv.WithKind(kind), Scope: meta.RESTScopeRoot}}
}

func step(kind string, old, now int) []pending {
	return []pending{{kind: schema.GroupKind{Group: "example.com", Kind: kind}, old: at(kind, old), now: at(kind, now)}}
}

func TestM4_ASlowSubscriberHearsTheLastState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h hub
		h.start()
		defer h.stop()
		free, heard := make(chan struct{}), []string{}
		h.subscribe(func(c Change) {
			heard = append(heard, fmt.Sprintf("%s %s %s %s", c.Type, c.Kind.Kind, versionsOf(c.Old), versionsOf(c.New)))
			<-free
		}, step("Known", 0, 1))
		synctest.Wait() // the first call is on
		for _, s := range [][]pending{
			step("Known", 1, 2), step("Passing", 0, 1), step("New", 0, 1), step("Known", 2, 3), step("Passing", 1, 0), step("New", 1, 2),
		} {
			h.tell(s)
		}
		close(free)
		synctest.Wait()
		want := []string{"Added Known [] [v1]", "Changed Known [v1] [v3]", "Added New [] [v2]"}
		if !slices.Equal(heard, want) {
			t.Errorf("heard %q, not %q", heard, want)
		}
	})
}

func TestM4_CancelWaitsForTheCallThatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h hub
		h.start()
		defer h.stop()
		free, isOver := make(chan struct{}), false
		s := h.subscribe(func(Change) { <-free; isOver = true }, append(step("A", 0, 1), step("B", 0, 1)...))
		synctest.Wait()
		cancelled := make(chan struct{})
		go func() {
			defer close(cancelled)
			h.cancel(s)
			if !isOver {
				t.Error("cancel returned during the call")
			}
		}()
		synctest.Wait()
		close(free)
		<-cancelled
		h.cancel(s) // again
	})
}

func TestM4_SubscribersMayCancelThemselvesAndOneAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h hub
		h.start()
		defer h.stop()
		var a, b *subscription
		calls, both := 0, make(chan struct{})
		var meet atomic.Int64
		meet.Store(2)
		var mu sync.Mutex
		cancelBoth := func(Change) {
			if meet.Add(-1) == 0 {
				close(both)
			}
			<-both // each is in its call now
			mu.Lock()
			calls++
			mu.Unlock()
			h.cancel(a)
			h.cancel(b)
		}
		a, b = h.subscribe(cancelBoth, nil), h.subscribe(cancelBoth, nil)
		h.tell(step("A", 0, 1))
		h.tell(step("B", 0, 1))
		synctest.Wait()
		if calls != 2 || !h.isEmpty() {
			t.Errorf("%d calls, empty: %v", calls, h.isEmpty())
		}
	})
}

func TestM4_CallsAreMadeWhileTheMapperRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h hub
		calls := 0
		h.subscribe(func(Change) { calls++ }, step("A", 0, 1))
		synctest.Wait()
		if calls != 0 {
			t.Error("called before the start")
		}
		h.start()
		synctest.Wait()
		h.stop()
		h.tell(step("A", 1, 2))
		synctest.Wait()
		if calls != 1 {
			t.Errorf("%d calls", calls)
		}
		h.start()
		h.stop()
		synctest.Wait()
		if calls > 2 {
			t.Errorf("%d calls", calls)
		}
	})
}

// Whatever happens while a subscriber is slow: what it is told fits together, and ends with the last state.
func TestM4_WhatASubscriberIsToldFitsTogether(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) [2]int {
			return [2]int{rapid.IntRange(0, 3).Draw(r, "kind"), rapid.IntRange(0, 2).Draw(r, "version")}
		}), 1, 60).Draw(r, "steps")
		var h hub
		h.start()
		defer h.stop()
		state, told := map[string]int{}, map[string][]*meta.RESTMapping{}
		var mu sync.Mutex
		s := h.subscribe(func(c Change) {
			mu.Lock()
			defer mu.Unlock()
			if !sameMappings(told[c.Kind.Kind], c.Old) || sameMappings(c.Old, c.New) {
				r.Errorf("told of %v to %v, last was %v", c.Old, c.New, told[c.Kind.Kind])
			}
			told[c.Kind.Kind] = c.New
		}, nil)
		for _, st := range steps {
			kind := fmt.Sprint("Kind", st[0])
			h.tell(step(kind, state[kind], st[1]))
			state[kind] = st[1]
		}
		for {
			h.mu.Lock()
			busy := s.busy
			h.mu.Unlock()
			if busy == nil {
				break
			}
			<-busy
		}
		for kind, version := range state {
			if !sameMappings(told[kind], at(kind, version)) {
				r.Errorf("%s: told %v, is v%d", kind, told[kind], version)
			}
		}
	})
}
