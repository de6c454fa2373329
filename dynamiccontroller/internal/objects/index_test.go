package objects

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/types"
)

// byOwners is the function of an index: its values are the UIDs of the owners.
func byOwners(r *Record) []string { return ownersOf(r) }

// expectFound checks the keys that Find returns.
func expectFound(t testing.TB, step string, i *Index, value string, want ...string) {
	t.Helper()
	if got := slices.Sorted(slices.Values(keysOf(i.Find(value)))); !slices.Equal(got, want) {
		t.Errorf("%s: Find(%q) returned %q, want %q", step, value, got, want)
	}
}

func keysOf(records []*Record) (keys []string) {
	for _, r := range records {
		keys = append(keys, r.Key())
	}
	return keys
}

func TestIndex_ReflectsAllChanges(t *testing.T) {
	s := newTestStore(t, Metadata)
	i := s.NewIndex(byOwners)
	expectFound(t, "existing objects", i, "x", "ns/a")
	expectFound(t, "an object with two values", i, "y", "ns/a")
	expectFound(t, "an unknown value", i, "z")

	s.Put(owned(t, "ns", "a", "3", "z", "z"))
	expectFound(t, "a changed object", i, "x")
	expectFound(t, "a function that returns a value twice", i, "z", "ns/a")

	s.Put(owned(t, "ns", "c", "4", "z"))
	expectFound(t, "a new object", i, "z", "ns/a", "ns/c")

	s.Put(owned(t, "ns", "c", "5", "x"))
	s.Delete("ns/a")
	s.Put(owned(t, "ns", "d", "6", "x"))
	s.Delete("ns/d")
	expectFound(t, "a deleted object", i, "z")
	expectFound(t, "an object that was added and deleted", i, "x", "ns/c")

	s.Replace("", map[string]*Record{"ns/a": owned(t, "ns", "a", "7", "x"), "ns/c": nil})
	expectFound(t, "a list", i, "x", "ns/a", "ns/c")
	expectFound(t, "a list", i, "y")
	s.Put(owned(t, "ns", "a", "8", "y"))
	expectFound(t, "a change after a list", i, "y", "ns/a")

	s.Put(owned(t, "other", "b", "9", "y"))
	s.Replace("ns", map[string]*Record{"ns/e": owned(t, "ns", "e", "10", "y")})
	expectFound(t, "a list of one namespace", i, "y", "ns/e", "other/b")
	expectFound(t, "a list of one namespace", i, "x")
}

func TestIndex_EvaluatesOnlyChangedRecords(t *testing.T) {
	s := NewStore(Metadata)
	var evaluated []string
	i := s.NewIndex(func(r *Record) []string {
		evaluated = append(evaluated, r.Key()+" "+r.GetResourceVersion())
		return []string{"value"}
	})
	expect := func(step string, want ...string) {
		t.Helper()
		i.Find("value")
		if slices.Sort(evaluated); !slices.Equal(evaluated, want) {
			t.Errorf("%s: evaluated %q, want %q", step, evaluated, want)
		}
		evaluated = nil
	}
	for _, name := range []string{"a", "b", "c"} {
		s.Put(owned(t, "ns", name, "1"))
	}
	if len(evaluated) > 0 || len(s.indexes) > 0 {
		t.Error("an index that is not used costs something")
	}
	expect("first call", "ns/a 1", "ns/b 1", "ns/c 1")
	expect("no change")
	s.Put(owned(t, "ns", "b", "2"))
	s.Put(owned(t, "ns", "b", "3"))
	s.Delete("ns/a")
	expect("changes", "ns/b 3")
	s.Replace("", map[string]*Record{"ns/b": owned(t, "ns", "b", "3"), "ns/c": owned(t, "ns", "c", "4")})
	expect("list", "ns/b 3", "ns/c 4")
}

// While an index is not used, the store keeps few of the changes and of the outdated records.
func TestIndex_IsResetWhenManyChangesArePending(t *testing.T) {
	const size = 200
	added := func(s *Store, n int) { s.Put(owned(t, "ns", fmt.Sprint("new-", n), "3", "x")) }
	for name, test := range map[string]struct {
		change  func(s *Store, n int)
		changes int // that do not reset the index
	}{
		"updates":   {func(s *Store, n int) { s.Put(owned(t, "ns", fmt.Sprint(n), "3", "y")) }, size/2 - 1},
		"deletions": {func(s *Store, n int) { s.Delete(fmt.Sprint("ns/", n)) }, size / 3},
		"additions": {added, size},
		"additions and deletions": {func(s *Store, n int) {
			added(s, n)
			s.Delete(fmt.Sprint("ns/new-", n))
		}, size / 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewStore(Metadata)
			for n := range size {
				s.Put(owned(t, "ns", fmt.Sprint(n), "2", "x"))
			}
			i := s.NewIndex(byOwners)
			found := func() int { return len(i.Find("x")) }
			if n := found(); n != size {
				t.Errorf("before the changes, Find returned %d records", n)
			}
			for n := range test.changes {
				test.change(s, n)
			}
			if len(i.pending) != test.changes || len(s.indexes) != 1 {
				t.Errorf("%d changes are pending, want %d", len(i.pending), test.changes)
			}
			test.change(s, test.changes)
			if i.pending != nil || i.contents != nil || len(s.indexes) > 0 {
				t.Errorf("after %d changes, the index has not been reset", test.changes+1)
			}
			if got, want := found(), len(s.OwnedBy("x")); got != want {
				t.Errorf("after the changes, Find returned %d records, want %d", got, want)
			}
		})
	}
}

// The index of a small store is not reset by each change.
func TestIndex_OfASmallStoreCollectsChanges(t *testing.T) {
	s := newTestStore(t, Metadata)
	i := s.NewIndex(byOwners)
	i.Find("")
	for n := range minPending {
		s.Put(owned(t, "ns", fmt.Sprint("new-", n), "3", "z"))
		s.Delete(fmt.Sprint("ns/new-", n))
	}
	if len(i.pending) != minPending {
		t.Errorf("%d changes are pending", len(i.pending))
	}
	s.Put(owned(t, "ns", "a", "3", "z"))
	if i.pending != nil {
		t.Error("the index has not been reset")
	}
}

// step is a function of an index that stops at each record that has an owner until it is released.
type step struct {
	began, release chan struct{}
}

func newStep() *step { return &step{make(chan struct{}), make(chan struct{})} }

func (f *step) evaluate(r *Record) []string {
	if len(ownersOf(r)) == 0 {
		return nil
	}
	f.began <- struct{}{}
	<-f.release
	return ownersOf(r)
}

// next lets the function evaluate one record.
func (f *step) next() {
	<-f.began
	f.release <- struct{}{}
}

// A call to Find that begins while records are being evaluated reflects the changes before the call.
func TestIndex_ReflectsChangesDuringACall(t *testing.T) {
	for name, change := range map[string]func(*Store, *Index){
		"a change": func(s *Store, _ *Index) { s.Put(owned(t, "ns", "a", "3", "z")) },
		"a list": func(s *Store, _ *Index) {
			s.Replace("", map[string]*Record{"ns/a": owned(t, "ns", "a", "3", "z")})
		},
		"a reset": func(s *Store, i *Index) { i.reset(); s.Put(owned(t, "ns", "a", "3", "z")) },
		"a drop":  func(s *Store, i *Index) { i.Drop(); s.Put(owned(t, "ns", "a", "3", "z")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, f := newTestStore(t, Metadata), newStep()
				i := s.NewIndex(f.evaluate)
				var callers sync.WaitGroup
				callers.Go(func() { expectFound(t, "before the change", i, "x", "ns/a") })
				<-f.began
				change(s, i)
				callers.Go(func() { expectFound(t, "after the change", i, "z", "ns/a") })
				synctest.Wait()
				f.release <- struct{}{}
				f.next()
				callers.Wait()
			})
		})
	}
}

// A concurrent caller does not see what has not been evaluated completely.
func TestIndex_ConcurrentCallersWaitForTheFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := newTestStore(t, Metadata), newStep()
		i := s.NewIndex(f.evaluate)
		var callers sync.WaitGroup
		for range 3 {
			callers.Go(func() { expectFound(t, "", i, "x", "ns/a") })
		}
		<-f.began
		synctest.Wait()
		f.release <- struct{}{}
		callers.Wait()
	})
}

// The function reads the store, changes it and uses another index.
func TestIndex_HoldsNoLockOfTheStoreDuringACall(t *testing.T) {
	s := newTestStore(t, Metadata)
	other := s.NewIndex(byOwners)
	i := s.NewIndex(func(r *Record) []string {
		s.Put(owned(t, "ns", "added", "3", "x"))
		s.Put(owned(t, "ns", "another", "3", "x"))
		counts := []int{s.Len(), len(s.List("ns")), len(s.OwnedBy("x")), len(other.Find("x"))}
		return []string{fmt.Sprint(counts, r.GetName() == "a")}
	})
	expectFound(t, "", i, "[4 3 3 3] true", "ns/a")
}

// If the function does not return normally, neither its index nor the store stays locked, and no change is lost.
func TestIndex_ContinuesAfterAPanicAndAfterGoexit(t *testing.T) {
	for name, fail := range map[string]func(){"panic": func() { panic("on purpose") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			s := newTestStore(t, Metadata)
			failing := false
			i := s.NewIndex(func(r *Record) []string {
				if failing {
					fail()
				}
				return ownersOf(r)
			})
			expectFound(t, "before the failure", i, "x", "ns/a")
			for n := range 10 {
				s.Put(owned(t, "ns", fmt.Sprint(n), "3", "z"))
			}
			failing = true
			returned, ended := false, make(chan struct{})
			go func() {
				defer close(ended)
				defer func() { _ = recover() }()
				i.Find("z")
				returned = true
			}()
			if <-ended; returned {
				t.Error("Find returned")
			}
			failing = false
			s.Delete("ns/0")
			if n := len(i.Find("z")); n != 9 {
				t.Errorf("Find returned %d records", n)
			}
		})
	}
}

func TestIndex_DropWaitsForNothingAndLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := newTestStore(t, Metadata), newStep()
		i := s.NewIndex(f.evaluate)
		var callers sync.WaitGroup
		callers.Go(func() { expectFound(t, "a call that was running", i, "x", "ns/a") })
		<-f.began
		i.Drop()
		f.release <- struct{}{}
		callers.Wait()
		for _, value := range []string{"y", "z"} {
			s.Put(owned(t, "ns", "a", "3", types.UID(value)))
			callers.Go(f.next)
			expectFound(t, "a later call", i, value, "ns/a")
			callers.Wait()
			if len(s.indexes) > 0 || i.pending != nil || i.contents != nil {
				t.Error("the index still costs something")
			}
		}
		i.Drop()
	})
}

// Each writer finds its own changes at once, while others change the store, list and drop indexes.
func TestIndex_IsConsistentUnderLoad(t *testing.T) {
	const writers, rounds = 4, 300
	s := NewStore(Metadata)
	i := s.NewIndex(byOwners)
	var writing sync.Mutex // the store allows one writer at a time
	var version atomic.Int64
	var all sync.WaitGroup
	for n := range writers {
		all.Go(func() {
			name, random := fmt.Sprint(n), rand.New(rand.NewPCG(1, uint64(n)))
			value := func(k int) string { return fmt.Sprint("value ", n, "-", k) }
			other := s.NewIndex(byOwners)
			for round := range rounds {
				k := random.IntN(3)
				r := owned(t, "ns", name, fmt.Sprint(version.Add(1)), types.UID(value(k)), "shared")
				writing.Lock()
				s.Put(r)
				if round%10 == n {
					records := maps.Clone(s.records)
					s.Replace("", records)
				}
				writing.Unlock()
				for _, index := range []*Index{i, other} {
					expectFound(t, "own value", index, value(k), "ns/"+name)
					expectFound(t, "former value", index, value((k+1)%3))
				}
				own := func(found *Record) bool { return found.Key() == "ns/"+name }
				found := i.Find("shared")
				if n := slices.IndexFunc(found, own); n < 0 || found[n] != r {
					t.Errorf("Find returned %v, want the newest record of %s", found, name)
				}
				if round%20 == 0 {
					other.Drop()
					other = s.NewIndex(byOwners)
				}
			}
			other.Drop()
		})
	}
	all.Wait()
	i.Drop()
	if len(s.indexes) > 0 {
		t.Errorf("%d indexes are left", len(s.indexes))
	}
}
