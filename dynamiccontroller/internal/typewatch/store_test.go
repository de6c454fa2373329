package typewatch

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

func object(name, version string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, ResourceVersion: version,
		Labels:        map[string]string{"a": "b"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "somebody"}},
	}}
}

// ear is a sink that writes down what it hears.
type ear struct {
	mu    sync.Mutex
	heard []string
}

func (e *ear) hear(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard = append(e.heard, what)
}

func (e *ear) sink() Sink {
	state := func(obj any) string {
		if obj == nil {
			return "-"
		}
		return versionOf(obj)
	}
	return Sink{
		Known: func(keys []string) {
			for _, key := range keys {
				e.hear("known " + key)
			}
		},
		Synced: func() { e.hear("synced") },
		Changed: func(key string, old, now any) {
			e.hear(fmt.Sprintf("%s %s>%s", key, state(old), state(now)))
		},
	}
}

func (e *ear) take() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	slices.Sort(e.heard)
	heard := e.heard
	e.heard = nil
	return heard
}

// testFeed is a feed that no pool has, with a need of each of the depths.
func testFeed(depths ...Depth) (*feed, []*Need) {
	f := &feed{mayTakeOver: func(*store) bool { return true }, tookOver: func(*store) {}, ended: func() {}, needs: map[*Need]struct{}{}}
	var needs []*Need
	for _, depth := range depths {
		n := &Need{Want: Want{Spec: Spec{Depth: depth}}, shared: &shared{feed: f}, synced: make(chan struct{})}
		f.join(n)
		needs = append(needs, n)
	}
	return f, needs
}

func (f *feed) testStore(depth Depth, transform cache.TransformFunc) *store {
	return newStore(logr.Discard(), depth, transform, f, newHealth(nil))
}

func newTestStore(depth Depth, transform cache.TransformFunc) (*store, *Need) {
	f, needs := testFeed(depth)
	s := f.testStore(depth, transform)
	f.begin(s)
	return s, needs[0]
}

func TestWhatASinkHears(t *testing.T) {
	for name, depth := range map[string]Depth{"full": Full, "metadata": Metadata, "keys": Keys} {
		t.Run(name, func(t *testing.T) {
			e := &ear{}
			s, n := newTestStore(depth, nil)
			old := func(version string) string { // with keys an old version is not known
				if depth == Keys {
					return ""
				}
				return version
			}
			for _, step := range []struct {
				name string
				do   func() error
				want []string
			}{
				{"a sink that comes early waits for the list", func() error { n.Attach(e.sink()); return nil }, nil},
				{"the first list is told whole", func() error { return s.Replace([]any{object("a", "1"), object("b", "2")}, "") }, []string{"known ns/a", "known ns/b", "synced"}},
				{"a new object", func() error { return s.Add(object("c", "3")) }, []string{"ns/c ->3"}},
				{"a change", func() error { return s.Update(object("a", "4")) }, []string{"ns/a " + old("1") + ">4"}},
				{"the same version again is no change", func() error { return s.Update(object("a", "4")) }, nil},
				{"a deletion", func() error { return s.Delete(object("b", "5")) }, []string{"ns/b " + old("2") + ">-"}},
				{"a deletion of what is not there", func() error { return s.Delete(object("b", "5")) }, nil},
				{"a relist is told by its difference", func() error { return s.Replace([]any{object("a", "6"), object("d", "7")}, "") },
					[]string{"ns/a " + old("4") + ">6", "ns/c " + old("3") + ">-", "ns/d ->7"}},
				{"another sink hears of all there is", func() error { n.Attach(e.sink()); return nil }, []string{"known ns/a", "known ns/d", "synced"}},
				{"a detached one of nothing", func() error { n.Detach(); return s.Add(object("e", "8")) }, nil},
				{"the first list of another run is told whole, and what is missing", func() error {
					s.feed.expectList(s)
					n.Attach(e.sink())
					return s.Replace([]any{object("a", "6")}, "")
				}, []string{"known ns/a", "ns/d " + old("7") + ">-", "ns/e " + old("8") + ">-", "synced"}},
				{"what another need knew and this one does not find was deleted, or has changed", func() error {
					s.feed.expectList(s)
					first, before := newTestStore(depth, nil)
					_, between := newTestStore(depth, nil) // which never got a list
					if err := first.Replace([]any{object("a", "1"), object("first", "1")}, ""); err != nil {
						return err
					}
					between.Leave(n)
					before.Leave(between)
					return s.Replace([]any{object("a", "6")}, "")
				}, slices.DeleteFunc([]string{"known ns/a", "ns/a 1>6", "ns/first " + old("1") + ">-", "synced"}, func(what string) bool {
					return depth == Keys && what == "ns/a 1>6" // it knows no versions of what was
				})},
				{"also if it is told of that late", func() error {
					other, late := newTestStore(depth, nil)
					if err := other.Replace([]any{object("a", "1"), object("late", "1")}, ""); err != nil {
						return err
					}
					late.Leave(n)
					return nil
				}, []string{"ns/late " + old("1") + ">-"}},
				{"an empty list", func() error { return s.Replace(nil, "") }, []string{"ns/a " + old("6") + ">-"}},
			} {
				if err := step.do(); err != nil {
					t.Fatalf("%s: %v", step.name, err)
				}
				if diff := cmp.Diff(step.want, e.take()); diff != "" {
					t.Errorf("%s: %s", step.name, diff)
				}
				if n := len(s.contents.keys()); n != s.contents.len() {
					t.Errorf("%s: %d keys and a length of %d", step.name, n, s.contents.len())
				}
			}
		})
	}
}

func TestWhatIsKept(t *testing.T) {
	failing := errors.New("on purpose")
	for _, test := range []struct {
		name      string
		depth     Depth
		transform cache.TransformFunc
		labels    bool
		managed   bool
	}{
		{name: "all of a full object", depth: Full, labels: true, managed: true},
		{name: "metadata without managedFields", depth: Metadata, labels: true},
		{name: "what a transform leaves", depth: Metadata, transform: func(obj any) (any, error) {
			obj.(*metav1.PartialObjectMetadata).Labels = nil
			return obj, nil
		}},
		{name: "the object as it came if the transform fails", depth: Full, labels: true, managed: true, transform: func(any) (any, error) { return nil, failing }},
		{name: "or panics", depth: Full, labels: true, managed: true, transform: func(any) (any, error) { panic(failing) }},
		{name: "or returns what is no runtime.Object", depth: Full, labels: true, managed: true, transform: func(any) (any, error) { return &metav1.ObjectMeta{Name: "a"}, nil }},
		{name: "or returns no object", depth: Full, labels: true, managed: true, transform: func(any) (any, error) { return "nonsense", nil }},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, _ := newTestStore(test.depth, test.transform)
			if err := s.Replace([]any{object("listed", "1")}, ""); err != nil {
				t.Fatal(err)
			}
			if err := s.Add(object("added", "2")); err != nil {
				t.Fatal(err)
			}
			for _, key := range []string{"ns/listed", "ns/added"} {
				obj, known, err := s.contents.objects().GetByKey(key)
				if err != nil || !known {
					t.Fatalf("%s: %v, %v", key, known, err)
				}
				m := obj.(*metav1.PartialObjectMetadata)
				if (len(m.Labels) > 0) != test.labels || (len(m.ManagedFields) > 0) != test.managed {
					t.Errorf("%s is kept as %+v", key, m)
				}
			}
		})
	}
}

func TestVersionsThatAreNoNumbersAreToldApart(t *testing.T) {
	if numberOf("12") != 12 || numberOf("v12") == numberOf("v13") {
		t.Error("two versions look the same")
	}
	e := &ear{}
	s, n := newTestStore(Keys, nil)
	n.Attach(e.sink())
	if err := s.Replace(nil, ""); err != nil {
		t.Fatal(err)
	}
	e.take()
	for _, version := range []string{"v1", "v2", "v2"} {
		if err := s.Add(object("a", version)); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"ns/a ->v1", "ns/a >v2"}, e.take()); diff != "" {
		t.Error(diff)
	}
}
