package objects

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// owned returns a record of an object with owner references.
func owned(t testing.TB, namespace, name, version string, owners ...types.UID) *Record {
	t.Helper()
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, ResourceVersion: version, UID: types.UID("uid-" + name),
	}}
	for _, uid := range owners {
		o.OwnerReferences = append(o.OwnerReferences, metav1.OwnerReference{UID: uid, Name: string(uid)})
	}
	r, err := Encode(o, Metadata, "")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func newTestStore(t testing.TB, projection Projection) *Store {
	t.Helper()
	s := NewStore(projection)
	s.Replace("", map[string]*Record{"ns/a": owned(t, "ns", "a", "1", "x", "y"), "other/b": owned(t, "other", "b", "2")})
	return s
}

func TestStore_ReadsObjectsByKey(t *testing.T) {
	for name, projection := range map[string]Projection{"metadata": Metadata, "keys": Keys} {
		t.Run(name, func(t *testing.T) {
			s := newTestStore(t, projection)
			if keys := slices.Sorted(slices.Values(s.Keys())); !slices.Equal(keys, []string{"ns/a", "other/b"}) || s.Len() != 2 {
				t.Errorf("keys: %v", keys)
			}
			if !s.Has("ns/a") || s.Has("ns/b") {
				t.Error("Has returned a wrong result")
			}
			if !hasOwner(s, "ns/a", "uid-a") || hasOwner(s, "ns/a", "uid-b") || hasOwner(s, "ns/b", "uid-b") {
				t.Error("FindOwner returned a wrong result")
			}
			if r, known := s.Get("ns/a"); !known || r.Key() != "ns/a" || r.GetNamespace() != "ns" || r.GetName() != "a" {
				t.Errorf("Get returned %v", r)
			}
			if r, known := s.Get("ns/b"); known || r != nil {
				t.Errorf("Get returned %v for an unknown object", r)
			}
		})
	}
}

func TestStore_ListsObjectsByNamespaceAndOwner(t *testing.T) {
	for name, test := range map[string]struct {
		projection       Projection
		all, some, owned int
	}{
		"metadata": {Metadata, 2, 1, 1},
		"keys":     {Keys, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestStore(t, test.projection)
			expect := func(what string, records []*Record, want int) {
				t.Helper()
				if len(records) != want {
					t.Errorf("%s: %v", what, records)
				}
			}
			expect("all", s.List(""), test.all)
			expect("in a namespace", s.List("ns"), test.some)
			expect("of the second owner", s.OwnedBy("y"), test.owned)
			expect("of another owner", s.OwnedBy("z"), 0)
			s.Put(owned(t, "ns", "a", "3", "z"))
			expect("of the second owner after a change", s.OwnedBy("y"), 0)
			expect("of the other owner after a change", s.OwnedBy("z"), test.owned)
			expect("in the namespace after a change", s.List("ns"), test.some)
			s.Delete("ns/a")
			expect("of the other owner after a deletion", s.OwnedBy("z"), 0)
			expect("in the namespace after a deletion", s.List("ns"), 0)
			s.Replace("", map[string]*Record{"ns/c": owned(t, "ns", "c", "4", "z")})
			expect("of the other owner after a list", s.OwnedBy("z"), test.owned)
			expect("in the namespace after a list", s.List("ns"), test.some)
		})
	}
}

func TestStore_CanBeChangedWhileAnIndexIsBuilt(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Store)
		want   []string
	}{
		"no change": {func(*Store) {}, []string{"ns/a"}},
		"put and delete": {func(s *Store) {
			s.Delete("ns/a")
			s.Put(owned(t, "ns", "c", "3"))
			s.Put(owned(t, "ns", "c", "4"))
		}, []string{"ns/c"}},
		"replace": {func(s *Store) {
			s.Replace("", map[string]*Record{"ns/d": owned(t, "ns", "d", "5")})
			s.Put(owned(t, "ns", "e", "6"))
		}, []string{"ns/d", "ns/e"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, changed := newTestStore(t, Metadata), false
			found := s.lookUp(&s.byNamespace, func(r *Record) []string {
				if !changed {
					changed = true
					if !s.mu.TryLock() {
						t.Fatal("the store is locked")
					}
					s.mu.Unlock()
					test.change(s)
				}
				return namespaceOf(r)
			}, "ns")
			var keys []string
			for _, r := range found {
				keys = append(keys, r.Key())
				if current, _ := s.Get(r.Key()); current != r {
					t.Errorf("found version %s of %s", r.GetResourceVersion(), r.Key())
				}
			}
			slices.Sort(keys)
			if !slices.Equal(keys, test.want) {
				t.Errorf("found %v, want %v", keys, test.want)
			}
		})
	}
}

func TestStore_KeysDoNotRetainRecordHeaders(t *testing.T) {
	s, listed, added := NewStore(Keys), owned(t, "ns", "a", "1"), owned(t, "ns", "b", "2")
	s.Replace("", map[string]*Record{listed.Key(): listed})
	s.Put(added)
	for _, key := range s.Keys() {
		for _, r := range []*Record{listed, added} {
			if unsafe.StringData(key) == unsafe.StringData(r.header) {
				t.Errorf("the key %q keeps the header %q in memory", key, r.header)
			}
		}
	}
}

func TestStore_ReportsItsSize(t *testing.T) {
	for name, projection := range map[string]Projection{"metadata": Metadata, "keys": Keys} {
		t.Run(name, func(t *testing.T) {
			s := newTestStore(t, projection)
			listed := s.Size()
			if listed <= 0 {
				t.Fatalf("%d bytes after a list", listed)
			}
			s.Put(owned(t, "ns", "c", "3"))
			added := s.Size()
			s.Put(owned(t, "ns", "c", "4", "x", "y", "z"))
			changed := s.Size()
			if added <= listed || projection == Metadata && changed <= added || projection == Keys && changed != added {
				t.Errorf("%d bytes after a list, %d after an object was added, %d after it has grown", listed, added, changed)
			}
			s.Delete("ns/c")
			if removed := s.Size(); removed != listed {
				t.Errorf("%d bytes after a list, %d after an object was added and removed", listed, removed)
			}
			s.Replace("", map[string]*Record{})
			if s.Size() != 0 {
				t.Errorf("%d bytes in an empty store", s.Size())
			}
		})
	}
}

func TestStore_SizeIsCloseToHeapGrowth(t *testing.T) {
	const n = 10_000
	for name, projection := range map[string]Projection{"full": Full, "metadata": Metadata, "keys": Keys} {
		t.Run(name, func(t *testing.T) {
			before, s := heap(), NewStore(projection)
			for i := range n {
				s.Put(parse(t, fmt.Sprintf(
					`{"kind":"Widget","metadata":{"namespace":"ns","name":"widget-%06d","uid":"%036d","resourceVersion":"%d"}}`,
					i, i, i+1), projection))
			}
			got, want := float64(s.Size())/n, float64(heap()-before)/n
			if got < 0.8*want || got > 1.2*want {
				t.Errorf("Size is %.0f bytes per object, but the heap has grown by %.0f", got, want)
			}
			runtime.KeepAlive(s)
		})
	}
}

func TestStore_DistinguishesNonNumericVersions(t *testing.T) {
	if numberOf("12") != 12 || numberOf("v12") == numberOf("v13") {
		t.Error("two versions have the same number")
	}
	for name, projection := range map[string]Projection{"metadata": Metadata, "keys": Keys} {
		t.Run(name, func(t *testing.T) {
			s := NewStore(projection)
			for _, step := range []struct {
				version string
				known   bool
				same    bool
			}{{"v1", false, false}, {"v2", true, false}, {"v2", true, true}, {"", true, false}, {"", true, false}} {
				changes := s.Put(owned(t, "ns", "a", step.version))
				if (len(changes) == 0) != step.same || !step.same && (changes[0].Old != nil) != step.known {
					t.Errorf("Put of %q: changes %v", step.version, changes)
				}
			}
		})
	}
}

// hasOwner reports whether the store finds an owner with the given key and UID.
func hasOwner(s *Store, key, uid string) bool {
	found, known := s.FindOwner(&Owner{keys: []string{"other", key}, uid: hashOf(uid)})
	return known && found == key
}

func TestStore_FindsOwnersOfOtherTypesWithoutLock(t *testing.T) {
	s := newTestStore(t, Keys)
	hasOwner(s, "ns/a", "uid-a") // fills the filter
	s.mu.Lock()
	defer s.mu.Unlock()
	found := make(chan bool, 1)
	go func() {
		known := false
		for i := range 100 {
			if uid := fmt.Sprint("unknown-", i); !s.mayHold(hashOf(uid)) {
				known = known || hasOwner(s, "ns/a", uid)
			}
		}
		found <- known
	}()
	select {
	case known := <-found:
		if known {
			t.Error("an unknown owner was found")
		}
	case <-time.After(time.Minute):
		t.Error("FindOwner waits for a lock")
	}
}

func TestStore_FindsEachObjectByItsUID(t *testing.T) {
	for name, test := range map[string]struct {
		projection    Projection
		searchedEarly bool
	}{
		"metadata":                       {Metadata, false},
		"metadata, searched while empty": {Metadata, true},
		"keys":                           {Keys, false},
		"keys, searched while empty":     {Keys, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, listed := NewStore(test.projection), map[string]*Record{}
			if test.searchedEarly && hasOwner(s, "ns/0", "uid-0") {
				t.Error("an object was found in an empty store")
			}
			for i := range 100 {
				listed[fmt.Sprint("ns/list-", i)] = owned(t, "ns", fmt.Sprint("list-", i), "1")
			}
			s.Replace("", listed)
			if test.searchedEarly && !hasOwner(s, "ns/list-0", "uid-list-0") {
				t.Error("a listed object is not found by its UID")
			}
			for i := range 10_000 {
				s.Put(owned(t, "ns", fmt.Sprint(i), "1"))
			}
			if s.isFilled() != test.searchedEarly {
				t.Errorf("the UID filter is filled: %t", s.isFilled())
			}
			for _, key := range s.Keys() {
				if name := strings.TrimPrefix(key, "ns/"); !hasOwner(s, key, "uid-"+name) {
					t.Fatalf("%s is not found by its UID", key)
				}
			}
		})
	}
}

func TestStore_FiltersMostUnknownUIDs(t *testing.T) {
	s := NewStore(Keys)
	hasOwner(s, "ns/0", "uid-0") // fills the filter
	for i := range 10_000 {
		s.Put(owned(t, "ns", fmt.Sprint(i), "1"))
	}
	passed := 0
	for i := range 10_000 {
		if s.mayHold(hashOf(fmt.Sprint("unknown-", i))) {
			passed++
		}
	}
	if passed > 2500 {
		t.Errorf("%d of 10,000 unknown UIDs pass the filter", passed)
	}
}

func TestStore_ReplacesTheObjectsOfOneNamespace(t *testing.T) {
	for name, projection := range map[string]Projection{"metadata": Metadata, "keys": Keys} {
		t.Run(name, func(t *testing.T) {
			s := newTestStore(t, projection)
			s.Put(owned(t, "ns", "gone", "3"))
			s.Put(owned(t, "ns2", "a", "4", "x"))
			s.Put(owned(t, "", "ns", "5"))
			before := s.List("ns2") // builds the index of namespaces
			listed := map[string]*Record{"ns/a": owned(t, "ns", "a", "6"), "ns/new": owned(t, "ns", "new", "7", "x")}

			var changed []string
			for _, c := range slices.Concat(s.DeletionsIn("ns", listed), s.Updates(listed)) {
				changed = append(changed, c.Key)
			}
			if slices.Sort(changed); !slices.Equal(changed, []string{"ns/a", "ns/gone", "ns/new"}) {
				t.Errorf("changes of %v", changed)
			}
			s.Replace("ns", listed)

			keys, want := slices.Sorted(slices.Values(s.Keys())), []string{"ns", "ns/a", "ns/new", "ns2/a", "other/b"}
			if !slices.Equal(keys, want) || s.Len() != len(want) || !hasOwner(s, "ns/new", "uid-new") {
				t.Errorf("the store holds %v, want %v", keys, want)
			}
			if projection == Keys {
				return
			}
			if found := s.List("ns"); len(found) != 2 || !slices.Equal(s.List("ns2"), before) {
				t.Errorf("the index of namespaces has %d objects in ns, and %v in ns2", len(found), s.List("ns2"))
			}
			if owned := s.OwnedBy("x"); len(owned) != 2 {
				t.Errorf("%d objects are owned by x, want ns/new and ns2/a", len(owned))
			}
			s.Replace("ns", map[string]*Record{"ns/a": owned(t, "ns", "a", "6", "y")}) // same version, other content
			if len(s.OwnedBy("y")) != 1 {
				t.Error("an object with an unchanged version was not replaced")
			}
		})
	}
}
