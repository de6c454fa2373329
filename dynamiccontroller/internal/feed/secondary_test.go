package feed

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// callers returns the number of objects that a secondary remembers.
func (f *fixture) callers(key Key) int {
	synctest.Wait()
	f.Feed.mu.Lock()
	defer f.Feed.mu.Unlock()
	return len(f.secondaries[key].callers)
}

func unchanged(object any) (any, error) { return object, nil }

func TestUpdateWatches_ChangesOnlySecondariesThatKeepTheirWatch(t *testing.T) {
	whole := owned(gadgets)
	whole.Watch.Projection = objects.Full
	transformed := owned(gadgets)
	transformed.Watch.Transform = unchanged
	for name, test := range map[string]struct {
		sources []*Source
		change  func(f *fixture) (undo func())
		want    bool
	}{
		"the same watch":                        {sources: []*Source{owned(gadgets)}, want: true},
		"nothing":                               {want: true},
		"an unknown secondary":                  {sources: []*Source{owned(gadgets), owned(gizmos)}},
		"another projection":                    {sources: []*Source{whole}},
		"a transform":                           {sources: []*Source{transformed}},
		"a pending change of another secondary": {[]*Source{owned(gadgets)}, pending(gizmosOnly), true},
		"a pending change of the secondary":     {[]*Source{owned(gadgets)}, pending(gadgetsOnly), false},
		"a pending swap":                        {[]*Source{owned(gadgets)}, pendingSwap, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, serving(owned(gadgets)), func(f *fixture) {
				undo := func() {}
				if test.change != nil {
					undo = test.change(f)
				}
				before := len(f.client.Actions())
				updated, err := f.update(Caller{}, test.sources...)
				if updated != test.want || err != nil {
					t.Errorf("UpdateWatches returned %t and %v, want %t", updated, err, test.want)
				}
				synctest.Wait()
				if after := len(f.client.Actions()); after != before {
					t.Errorf("UpdateWatches sent %d requests", after-before)
				}
				undo()
			})
		})
	}
}

func gadgetsOnly() []*Source { return []*Source{owned(gadgets)} }
func gizmosOnly() []*Source  { return []*Source{owned(gizmos)} }

// pending returns a function that calls AddWatches while changes are blocked.
func pending(sources func() []*Source) func(*fixture) (undo func()) {
	return func(f *fixture) func() {
		undo := f.BlockChanges()
		f.AddWatches(sources(), Caller{})
		return undo
	}
}

// pendingSwap begins a swap that waits for its watch.
func pendingSwap(f *fixture) (undo func()) {
	f.put(widgets, "a")
	undo = f.block(widgets)
	<-f.Swap(&Options{Primary: selected()})
	return undo
}

func TestUpdateWatches_ReplacesTheFunctionsForLaterChanges(t *testing.T) {
	seen := ""
	mapTo := func(name string) *Source { return mapped(gadgets, func() []string { seen += name; return nil }) }
	bubble(t, serving(mapTo("a")), func(f *fixture) {
		f.attach()
		f.put(gadgets, "g")
		if updated, err := f.update(Caller{}, mapTo("b")); !updated || err != nil {
			t.Errorf("UpdateWatches returned %t and %v", updated, err)
		}
		f.put(gadgets, "h")
		if seen != "ab" {
			t.Errorf("the functions %q were called, want ab", seen)
		}
	})
}

func TestUpdateWatchesAndRemoveWatches_AllocateNothingIfNothingChanges(t *testing.T) {
	bubble(t, serving(indexed(owned(gadgets), "1", "a")), func(f *fixture) {
		sources, keys := []*Source{indexed(owned(gadgets), "2", "a")}, []Key{owned(gizmos).Key()}
		source := func(i int) *Source { return sources[i] }
		key := func(i int) Key { return keys[i] }
		caller := Caller{Options: f.options.Load(), Key: "a"}
		synctest.Wait()
		n := testing.AllocsPerRun(100, func() {
			if updated, err := f.UpdateWatches(1, source, caller); !updated || err != nil {
				t.Errorf("UpdateWatches returned %t and %v", updated, err)
			}
			if done := f.RemoveWatches(1, key); done != nil {
				t.Error("RemoveWatches found something to remove")
			}
		})
		if n > 0 {
			t.Errorf("%v allocations, want none", n)
		}
	})
}

// The options of the caller have been replaced when it calls, or when its change is applied.
func TestErrReplaced_IsReturnedToCallersOfEarlierOptions(t *testing.T) {
	bubble(t, serving(owned(gadgets)), func(f *fixture) {
		caller := Caller{Options: f.options.Load(), Key: "a"}
		f.put(widgets, "a")
		f.attach()
		unblock := f.BlockChanges()
		begun := f.Swap(serving(owned(gadgets)))
		late := f.AddWatches([]*Source{owned(gizmos)}, caller)
		if _, err := f.update(caller, owned(gadgets)); err != nil {
			t.Errorf("before the swap, UpdateWatches returned %v", err)
		}
		unblock()
		<-begun
		if err := <-late; !errors.Is(err, ErrReplaced) {
			t.Errorf("AddWatches returned %v, want ErrReplaced", err)
		}
		if updated, err := f.update(caller, owned(gadgets)); updated || !errors.Is(err, ErrReplaced) {
			t.Errorf("UpdateWatches returned %t and %v, want ErrReplaced", updated, err)
		}
		f.expectSecondaries("calls of the replaced handler", gadgets)
		caller.Options = f.options.Load()
		if err := <-f.AddWatches([]*Source{owned(gizmos)}, caller); err != nil {
			t.Errorf("for the new options, AddWatches returned %v", err)
		}
		f.expectSecondaries("calls of the new handler", gadgets, gizmos)
	})
}

// A handler adds a secondary, or updates one that has not synced. Its object is passed on once more after the sync.
func TestCallers_ArePassedOnAfterTheSync(t *testing.T) {
	bubble(t, serving(), func(f *fixture) {
		for _, name := range []string{"a", "b", "c"} {
			f.put(widgets, name)
		}
		f.put(gadgets, "of-b", "b")
		f.attach()
		f.target.expect(t, "the initial sync", "existing a", "existing b", "existing c")
		source := owned(gadgets)
		options := f.options.Load()
		unblock := f.block(gadgets)
		if err := <-f.AddWatches([]*Source{source}, Caller{options, "a"}); err != nil {
			t.Error(err)
		}
		synctest.Wait() // until the change is no longer pending
		for _, name := range []string{"a", "b", "c"} {
			if updated, err := f.update(Caller{options, name}, source); !updated || err != nil {
				t.Errorf("UpdateWatches returned %t and %v", updated, err)
			}
		}
		if err := <-f.AddWatches([]*Source{source}, Caller{options, "d"}); err != nil { // the way while changes are pending
			t.Error(err)
		}
		if _, err := f.update(Caller{}, source); err != nil { // not by a handler
			t.Error(err)
		}
		f.target.expect(t, "before the list")
		unblock()
		// b is the owner of a listed object, and is therefore passed on anyway.
		f.target.expect(t, "after the list", "existing b", "caller a", "caller c", "caller d")
		if _, err := f.update(Caller{options, "a"}, source); err != nil {
			t.Error(err)
		}
		if n := f.callers(source.Key()); n > 0 {
			t.Errorf("the secondary remembers %d objects after it has synced", n)
		}
		time.Sleep(time.Hour)
		f.target.expect(t, "later")
	})
}

// When a run ends, its callers are passed on, so that the target can keep those that are not in the cache, and are
// forgotten. Until the existing objects
// have been passed on in the next run, callers are remembered again.
func TestCallers_AreForgottenAtTheEndOfTheRun(t *testing.T) {
	var hang chan struct{}
	source := mapped(gadgets, func() []string { <-hang; return nil })
	bubble(t, serving(), func(f *fixture) {
		hang = make(chan struct{})
		f.put(widgets, "a")
		f.put(gadgets, "g")
		f.attach()
		f.target.expect(t, "the initial sync", "existing a")
		options := f.options.Load()
		for _, name := range []string{"of the first run", "of the second run"} {
			if err := <-f.AddWatches([]*Source{source}, Caller{options, name}); err != nil {
				t.Error(err)
			}
			if n := f.callers(source.Key()); n != 1 {
				t.Errorf("the secondary remembers %d objects, want the one %s", n, name)
			}
			if name == "of the first run" {
				f.endRun()
				detached := f.Detach()
				synctest.Wait() // until it waits for the function
				close(hang)
				<-detached
				if n := f.callers(source.Key()); n > 0 {
					t.Errorf("the secondary remembers %d objects after the run", n)
				}
				f.target.expect(t, "the first run", "caller of the first run")
				hang = make(chan struct{})
				f.attach()
			}
		}
		close(hang)
		f.target.expect(t, "the second run", "existing a", "caller of the second run")
		f.detach()
		hang = make(chan struct{})
		f.attach()
		if _, err := f.update(Caller{options, "of the third run"}, source); err != nil {
			t.Error(err)
		}
		close(hang)
		f.target.expect(t, "a run after one in which it had synced", "existing a", "caller of the third run")
	})
}

func TestAddWatches_ReplacesAWatchOnlyIfNecessary(t *testing.T) {
	bubble(t, serving(owned(gadgets)), func(f *fixture) {
		f.put(widgets, "a")
		f.put(gadgets, "of-a", "a")
		f.attach()
		f.target.expect(t, "the initial sync", "existing a", "existing a")
		add := func(source *Source, wantReplaced bool) {
			t.Helper()
			before := f.Secondary(source.Key())
			requests := len(f.client.Actions())
			if err := <-f.AddWatches([]*Source{source}, Caller{}); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			if f.Secondary(source.Key()) != before {
				t.Error("AddWatches replaced the subscription")
			}
			if replaced := len(f.client.Actions()) > requests; replaced != wantReplaced {
				t.Errorf("the watch was replaced: %t, want %t", replaced, wantReplaced)
			}
		}
		add(owned(gadgets), false)
		transformed := owned(gadgets)
		transformed.Watch.Transform = unchanged
		add(transformed, true)
		add(transformed, false)
		add(owned(gadgets), false) // keeps the transform
		<-f.Swap(serving(owned(gadgets)))
		synctest.Wait()
		if sec := f.Secondary(transformed.Key()).View().Options(); sec.Transform != nil {
			t.Error("the swap kept the transform")
		}
		f.target.expect(t, "the changes", "all objects")
	})
}

// indexed returns a source that declares indexes, of which each function returns the value.
func indexed(source *Source, value string, names ...string) *Source {
	functions := map[string]func(*typewatch.Object) []string{}
	for _, name := range names {
		functions[name] = func(*typewatch.Object) []string { return []string{value} }
	}
	source.Watch.Indexes = typewatch.NewIndexes(functions)
	return source
}

// A handler that adds a watch on every call neither discards the indexes nor replaces their functions.
func TestAddWatches_KeepsTheIndexesOfAnExistingWatch(t *testing.T) {
	gadget := func(value string, names ...string) *Source { return indexed(owned(gadgets), value, names...) }
	bubble(t, serving(gadget("1", "a")), func(f *fixture) {
		f.put(gadgets, "g")
		// expect checks the value of each index, such as "a=1".
		expect := func(step string, want ...string) {
			t.Helper()
			synctest.Wait()
			view := f.Secondary(owned(gadgets).Key()).View()
			var got []string
			for _, name := range []string{"a", "b", "c"} {
				for _, value := range []string{"1", "2", "3", "4"} {
					if records, _ := view.ByIndex(name, value); len(records) > 0 {
						got = append(got, name+"="+value)
					}
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: the indexes are %q, want %q", step, got, want)
			}
		}
		update := func(source *Source) {
			t.Helper()
			if updated, err := f.update(Caller{}, source); !updated || err != nil {
				t.Errorf("UpdateWatches returned %t and %v", updated, err)
			}
		}
		expect("at first", "a=1")
		update(gadget("2", "a"))
		expect("an update of an index", "a=1")
		update(owned(gadgets))
		expect("an update without indexes", "a=1")
		update(gadget("2", "a", "b"))
		expect("an update with another index", "a=1", "b=2")
		f.add(gadget("3", "b", "c"))
		expect("AddWatches", "a=1", "b=2", "c=3")

		<-f.Swap(serving(gadget("4", "a", "b")))
		expect("a swap", "a=4", "b=4")
		unblock := f.block(widgets)
		<-f.Swap(&Options{Primary: selected(), Secondaries: []*Source{gadget("1", "a")}})
		f.add(gadget("2", "a", "c"))
		expect("AddWatches during a swap", "a=4", "b=4", "c=2")
		unblock()
		expect("after the swap", "a=1", "c=2")

		whole := func(source *Source) *Source { source.Watch.Projection = objects.Full; return source }
		f.add(whole(gadget("3", "b")))
		expect("another projection", "b=3")
		update(whole(gadget("4", "b")))
		expect("an update after the replacement", "b=3")
	})
}

func TestRemoveWatches_RemovesExistingPendingAndFutureSecondaries(t *testing.T) {
	bubble(t, serving(owned(gadgets)), func(f *fixture) {
		f.put(widgets, "a")
		f.attach()
		if done := f.remove(owned(gizmos).Key()); done != nil {
			t.Error("RemoveWatches found an unknown key")
		}
		<-f.remove(owned(gadgets).Key())
		f.put(gadgets, "of-a", "a")
		f.target.expect(t, "after the removal", "existing a")
		f.expectSecondaries("after the removal")

		unblock := f.BlockChanges()
		added := f.AddWatches([]*Source{owned(gizmos)}, Caller{})
		removed := f.remove(owned(gizmos).Key())
		if removed == nil {
			t.Fatal("RemoveWatches did not find a secondary that is about to be added")
		}
		unblock()
		if err := <-added; err != nil {
			t.Error(err)
		}
		<-removed
		f.expectSecondaries("after the removal of a pending secondary")

		unblock = f.block(widgets)
		<-f.Swap(&Options{Primary: selected(), Secondaries: []*Source{owned(gadgets), owned(gizmos)}})
		<-f.remove(owned(gizmos).Key())
		unblock()
		f.expectSecondaries("after a swap that was changed", gadgets)
	})
}

// AddWatches changes the options of a swap in progress, unless a handler of the current options calls it.
func TestAddWatches_ChangesAPendingSwap(t *testing.T) {
	for name, byHandler := range map[string]bool{"a handler of the current options": true, "another caller": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, serving(), func(f *fixture) {
				f.put(widgets, "a")
				f.attach()
				var caller Caller
				if byHandler {
					caller = Caller{f.options.Load(), "a"}
				}
				unblock := f.block(widgets)
				<-f.Swap(&Options{Primary: selected()})
				if err := <-f.AddWatches([]*Source{owned(gadgets)}, caller); err != nil {
					t.Error(err)
				}
				f.expectSecondaries("while the swap is waiting", gadgets)
				unblock()
				if byHandler {
					f.expectSecondaries("after the swap")
				} else {
					f.expectSecondaries("after the swap", gadgets)
				}
			})
		})
	}
}

// AddWatches without a transform keeps the one of a pending swap, as it keeps that of the current options.
func TestAddWatches_KeepsTheTransformOfAPendingSwap(t *testing.T) {
	bubble(t, serving(), func(f *fixture) {
		f.put(widgets, "a")
		f.attach()
		unblock := f.block(widgets)
		transformed := owned(gadgets)
		transformed.Watch.Transform = unchanged
		<-f.Swap(&Options{Primary: selected(), Secondaries: []*Source{transformed}})
		if err := <-f.AddWatches([]*Source{owned(gadgets)}, Caller{}); err != nil {
			t.Error(err)
		}
		unblock()
		f.expectSecondaries("after the swap", gadgets)
		if f.Secondary(transformed.Key()).View().Options().Transform == nil {
			t.Error("the transform of the swap was dropped")
		}
	})
}

// A change can leave an object in another form. Functions get only old states that they can compare with the new one.
func TestAccepts_ReceivesNoOldStateOfAnotherForm(t *testing.T) {
	type call struct{ old, new bool }
	var calls []call
	accepts := func(_ Environment, old, changed *typewatch.Object) bool {
		calls = append(calls, call{old != nil, changed != nil})
		return true
	}
	source := owned(gadgets)
	bubble(t, serving(source), func(f *fixture) {
		f.put(widgets, "a")
		f.put(widgets, "b")
		f.put(gadgets, "of-a", "a")
		f.attach()
		f.target.expect(t, "the initial sync", "existing a", "existing a", "existing b")
		other := owned(gadgets)
		other.Accepts, other.Watch.Transform = accepts, annotate
		f.add(other)
		// Both the owner of the old state and that of the new one.
		f.target.expect(t, "the difference", "changed a")
		f.put(gadgets, "of-a", "b")
		f.target.expect(t, "a change", "changed a", "changed b")
		if len(calls) != 2 || calls[0] != (call{false, true}) || calls[1] != (call{true, true}) {
			t.Errorf("the predicate was called with %+v", calls)
		}
	})
}
