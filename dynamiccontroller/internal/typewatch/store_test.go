package typewatch

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func owned(name, version string, owners ...types.UID) *metav1.PartialObjectMetadata {
	o := object(name, version)
	for _, uid := range owners {
		o.OwnerReferences = append(o.OwnerReferences, metav1.OwnerReference{UID: uid, Name: string(uid)})
	}
	o.UID = types.UID("uid-" + name)
	return o
}

func newTestView(t *testing.T, projection Projection) (*Subscription, *watch) {
	t.Helper()
	s, w := newTestWatch(projection)
	other := owned("b", "2")
	other.Namespace = "other"
	if err := w.Replace([]any{owned("a", "1", "x", "y"), other}, "2"); err != nil {
		t.Fatal(err)
	}
	return s, w
}

func TestView_ReadsObjectsByKey(t *testing.T) {
	for name, projection := range map[string]Projection{"full": Full, "keys": Keys} {
		t.Run(name, func(t *testing.T) {
			s, _ := newTestView(t, projection)
			v := s.View()
			keys := slices.Sorted(slices.Values(v.Keys()))
			if !slices.Equal(keys, []string{"ns/a", "other/b"}) || v.Len() != 2 {
				t.Errorf("keys: %v", keys)
			}
			if !v.Has("ns/a") || v.Has("ns/b") {
				t.Error("Has is wrong")
			}
			if !v.HasUID("ns/a", "uid-a") || v.HasUID("ns/a", "uid-b") || v.HasUID("ns/b", "uid-b") {
				t.Error("HasUID is wrong")
			}
			obj, known := v.Get("ns/a")
			if !known || keyOf(obj) != "ns/a" || keyOf(v.Project(obj)) != "ns/a" || v.Project(nil) != nil {
				t.Errorf("Get returned %v", obj)
			}
			if obj, known := v.Get("ns/b"); known || obj != nil {
				t.Errorf("Get returned %v for an unknown object", obj)
			}
			closeAndWait(s)
		})
	}
}

func TestView_ListsObjectsByNamespaceAndOwner(t *testing.T) {
	for name, test := range map[string]struct {
		projection       Projection
		all, some, owned int
	}{
		"full": {Full, 2, 1, 1},
		"keys": {Keys, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s, w := newTestView(t, test.projection)
			v := s.View()
			expect := func(what string, objects []any, want int) {
				t.Helper()
				if len(objects) != want {
					t.Errorf("%s: %v", what, objects)
				}
			}
			expect("all", v.List(""), test.all)
			expect("in a namespace", v.List("ns"), test.some)
			expect("of the second owner", v.OwnedBy("y"), test.owned)
			expect("of another owner", v.OwnedBy("z"), 0)
			if err := w.Update(owned("a", "3", "z")); err != nil {
				t.Fatal(err)
			}
			expect("of the second owner after a change", v.OwnedBy("y"), 0)
			expect("of the other owner after a change", v.OwnedBy("z"), test.owned)
			closeAndWait(s)
		})
	}
}

func TestIdentities_DistinguishVersionsThatAreNotNumbers(t *testing.T) {
	if numberOf("12") != 12 || numberOf("v12") == numberOf("v13") {
		t.Error("two versions have the same number")
	}
	s, w := newTestWatch(Keys)
	r := attachRecorder(s)
	if err := w.Replace(nil, ""); err != nil {
		t.Fatal(err)
	}
	r.take()
	for _, version := range []string{"v1", "v2", "v2"} {
		if err := w.Add(object("a", version)); err != nil {
			t.Fatal(err)
		}
	}
	r.expect(t, "two changes", "ns/a ->v1", "ns/a >v2")
	closeAndWait(s)
}

func TestOwners_AreComputedOncePerChange(t *testing.T) {
	s, w := newTestWatch(Metadata)
	var calls int
	s.Attach(EventHandler{
		Known: func([]string) {}, Synced: func() {},
		Changed: func(_ string, old, now any) {
			calls++
			for _, obj := range []any{old, now} {
				if obj == nil {
					continue
				}
				first, second := s.Owners(obj), s.Owners(obj)
				if len(first) != 1 || &first[0] != &second[0] {
					t.Fatalf("owners: %v and %v", first, second)
				}
				name := string(first[0].UID)
				if !slices.Equal(first[0].Keys, []string{name, "ns/" + name}) {
					t.Errorf("keys: %v", first[0].Keys)
				}
			}
		},
	})
	if err := w.Replace(nil, "1"); err != nil {
		t.Fatal(err)
	}
	for version, owner := range []types.UID{"x", "y"} {
		if err := w.Add(owned("a", strconv.Itoa(version+2), owner)); err != nil {
			t.Fatal(err)
		}
	}
	if calls != 2 || w.owners.entries[0].obj != nil {
		t.Errorf("%d calls", calls)
	}
	closeAndWait(s)
}

func TestStoreUpdate_AllocatesLittle(t *testing.T) {
	for name, projection := range map[string]Projection{"full": Full, "metadata": Metadata, "keys": Keys} {
		t.Run(name, func(t *testing.T) {
			s, w := newTestWatch(projection)
			s.Attach(EventHandler{Known: func([]string) {}, Synced: func() {}, Changed: func(string, any, any) {}})
			if err := w.Replace(nil, "1"); err != nil {
				t.Fatal(err)
			}
			next := updates(projection)
			allocations := testing.AllocsPerRun(100, func() {
				if err := w.Update(next()); err != nil {
					t.Fatal(err)
				}
			})
			if allocations > 4 {
				t.Errorf("%v allocations per update", allocations)
			}
			closeAndWait(s)
		})
	}
}

// updates returns a function that returns the next state of an object, without an allocation.
func updates(projection Projection) func() any {
	var states []any
	for version := range 200 {
		if projection == Full {
			o := widget(1)
			o.SetResourceVersion(strconv.Itoa(version + 10))
			states = append(states, o)
		} else {
			states = append(states, object("a", strconv.Itoa(version+10)))
		}
	}
	i := 0
	return func() any { i++; return states[i%len(states)] }
}

func BenchmarkStoreUpdate(b *testing.B) {
	for name, projection := range map[string]Projection{"full": Full, "metadata": Metadata, "keys": Keys} {
		b.Run(name, func(b *testing.B) {
			s, w := newTestWatch(projection)
			s.Attach(EventHandler{Known: func([]string) {}, Synced: func() {}, Changed: func(string, any, any) {}})
			next := updates(projection)
			b.ReportAllocs()
			for b.Loop() {
				if err := w.Update(next()); err != nil {
					b.Fatal(err)
				}
			}
			closeAndWait(s)
		})
	}
}

func TestUIDFilter_MissesNoUID(t *testing.T) {
	for name, c := range map[string]contents{"objects": newObjects(), "identities": newIdentities()} {
		t.Run(name, func(t *testing.T) {
			items := map[string]any{}
			for i := range 100 {
				items[fmt.Sprint("ns/list-", i)] = owned(fmt.Sprint("list-", i), "1")
			}
			c.replace(items)
			for i := range 10_000 {
				c.put(fmt.Sprint("ns/", i), owned(fmt.Sprint(i), "1"))
			}
			for _, key := range c.keys() {
				if name := strings.TrimPrefix(key, "ns/"); !hasUID(c, key, hashOf("uid-"+name)) {
					t.Fatalf("%s is not found by its UID", key)
				}
			}
			passed := 0
			for i := range 10_000 {
				if c.mayHold(hashOf(fmt.Sprint("unknown-", i))) {
					passed++
				}
			}
			if passed > 2500 {
				t.Errorf("%d of 10,000 unknown UIDs pass", passed)
			}
		})
	}
}
