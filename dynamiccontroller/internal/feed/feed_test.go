package feed

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

func TestAttach_PassesOnExistingObjectsAndThenChanges(t *testing.T) {
	targets := func() []string { return []string{"/x", "", "x"} }
	bubble(t, serving(owned(gadgets), mapped(gizmos, targets)), func(f *fixture) {
		f.put(widgets, "a")
		f.put(widgets, "b")
		f.put(gadgets, "of-b", "b")
		f.put(gadgets, "orphan", "unknown")
		f.put(gizmos, "g")
		f.target.expect(t, "while the feed is detached")
		f.attach()
		f.target.expect(t, "existing objects",
			"existing a", "existing b", "existing b", "malformed gizmos ", "existing x")
		f.expectPaused(0, false)
		f.put(widgets, "c")
		f.put(gadgets, "of-b", "c") // moves to another owner
		f.put(gizmos, "g")
		f.delete(widgets, "a")
		f.target.expect(t, "changes", "changed c", "changed b", "changed c",
			"malformed gizmos ", "malformed gizmos ", "changed x", "deleted true a", "changed a")
		f.detach()
		f.put(widgets, "c")
		f.put(gadgets, "of-b", "b")
		f.put(gizmos, "g")
		f.delete(widgets, "b")
		f.target.expect(t, "after the run")
		f.attach()
		f.target.expect(t, "the next run", "existing c", "malformed gizmos ", "existing x")
	})
}

func TestAttach_HasNoEffectIfTheRunIsAlreadyOver(t *testing.T) {
	bubble(t, serving(), func(f *fixture) {
		f.put(widgets, "a")
		f.target.Pause()
		<-f.Attach(nil, func() context.Context { return nil })
		f.target.expect(t, "a run that is over")
		f.expectPaused(time.Hour, true)
	})
}

// A predicate decides about changes of its own source only, and a deletion that it filters out is reported.
func TestAccepts_FiltersChangesButNotExistingObjects(t *testing.T) {
	options, filtered := serving(owned(gadgets)), true
	accepts := func(Environment, *typewatch.Object, *typewatch.Object) bool { return !filtered }
	options.Primary.Accepts = accepts
	options.Secondaries[0].Accepts = accepts
	bubble(t, options, func(f *fixture) {
		f.put(widgets, "a")
		f.put(gadgets, "of-a", "a")
		f.attach()
		f.target.expect(t, "existing objects", "existing a", "existing a")
		f.put(widgets, "a")
		f.put(gadgets, "of-a", "a")
		f.put(widgets, "b")
		f.delete(widgets, "b")
		f.target.expect(t, "filtered changes", "deleted false b")
		filtered = false
		f.put(widgets, "a")
		f.put(gadgets, "of-a", "a")
		f.target.expect(t, "other changes", "changed a", "changed a")
	})
}

func TestClose_WaitsForFunctionsThatAreRunning(t *testing.T) {
	bubble(t, serving(), func(f *fixture) {
		hang := make(chan struct{})
		f.add(mapped(gadgets, func() []string { <-hang; return []string{"a"} }))
		f.put(gadgets, "g")
		f.attach()
		f.Close()
		f.Close()
		time.Sleep(time.Hour)
		synctest.Wait()
		if typewatch.IsClosed(f.Ended()) {
			t.Error("the feed ended while a function was running")
		}
		close(hang)
		synctest.Wait()
		if !typewatch.IsClosed(f.Ended()) {
			t.Error("the feed did not end when the function had returned")
		}
		f.add(owned(gizmos))
		<-f.Swap(&Options{Primary: selected()})
		<-f.Attach(nil, f.t.Context)
		<-f.Detach()
		f.expectSecondaries("changes after the end", gadgets)
	})
}

// A detach that is requested while a function is running waits for it.
func TestDetach_WaitsForFunctionsThatAreRunning(t *testing.T) {
	var hang chan struct{}
	bubble(t, serving(mapped(gadgets, func() []string { <-hang; return []string{"a"} })), func(f *fixture) {
		hang = make(chan struct{})
		f.put(gadgets, "g")
		f.attach()
		f.endRun()
		done := f.Detach()
		time.Sleep(time.Hour)
		synctest.Wait()
		if typewatch.IsClosed(done) {
			t.Error("Detach did not wait for the function")
		}
		close(hang)
		<-done
		f.target.expect(t, "the rest of the run", "existing a")
	})
}

// Changes take effect in the order in which they were requested.
func TestChanges_AreAppliedInTheirOrder(t *testing.T) {
	bubble(t, serving(), func(f *fixture) {
		unblock := f.BlockChanges()
		var order []string
		var all []<-chan struct{}
		for _, name := range []string{"first", "second", "third"} {
			all = append(all, f.apply(change{f: func() { order = append(order, name) }}))
		}
		synctest.Wait()
		if len(order) > 0 {
			t.Errorf("the changes %v did not wait", order)
		}
		unblock()
		for _, done := range all {
			<-done
		}
		if want := []string{"first", "second", "third"}; !slices.Equal(order, want) {
			t.Errorf("the changes were applied in the order %v", order)
		}
	})
}
