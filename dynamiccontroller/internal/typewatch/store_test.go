package typewatch

import (
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

func owned(name, version string, owners ...types.UID) *metav1.PartialObjectMetadata {
	o := object(name, version)
	for _, uid := range owners {
		o.OwnerReferences = append(o.OwnerReferences, metav1.OwnerReference{UID: uid, Name: string(uid)})
	}
	o.UID = types.UID("uid-" + name)
	return o
}

func TestKeys_DistinguishNonNumericVersions(t *testing.T) {
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
		Changed: func(c objects.Change) {
			calls++
			for _, obj := range []*objects.Record{c.Old, c.New} {
				if obj == nil {
					continue
				}
				first, second := s.Owners(obj), s.Owners(obj)
				if len(first) != 1 || &first[0] != &second[0] {
					t.Fatalf("owners: %v and %v", first, second)
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
	if calls != 2 || !reflect.ValueOf(w.watch.owners).IsZero() {
		t.Errorf("got %d calls, want 2 calls and an empty cache", calls)
	}
	closeAndWait(s)
}

// brokenOwners panics when its owner references are read.
type brokenOwners struct{ *metav1.PartialObjectMetadata }

func (brokenOwners) GetOwnerReferences() []metav1.OwnerReference { panic("on purpose") }

// The reflector passes each object of a streaming list first to the transformer and then to Replace.
func TestTransform_IsCalledOnceForAStreamedObject(t *testing.T) {
	for name, test := range map[string]struct {
		result func(obj any) (any, error)
		want   string // the generateName of the stored object
	}{
		"success": {func(obj any) (any, error) { obj.(metav1.Object).SetGenerateName("x"); return obj, nil }, "x"},
		"error":   {func(any) (any, error) { return nil, errors.New("on purpose") }, ""},
		"an object with a method that panics": {func(obj any) (any, error) {
			return brokenOwners{obj.(*metav1.PartialObjectMetadata)}, nil
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			calls, options := 0, options(Metadata)
			options.Transform = func(obj any) (any, error) {
				calls++
				return test.result(obj)
			}
			s := newTestPool(newServer()).Subscribe(options, nil)
			w := s.view.Load().watch.reflectors[0]
			received, err := objects.Parse([]byte(`{"kind":"Widget","metadata":{"namespace":"ns","name":"a"}}`),
				Metadata, metav1.TypeMeta{})
			if err != nil {
				t.Fatal(err)
			}
			streamed, err := w.Transformer()(received)
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Replace([]any{streamed}, "1"); err != nil {
				t.Fatal(err)
			}
			stored, known := w.watch.store.Get("ns/a")
			if !known || calls != 1 || stored.GetGenerateName() != test.want {
				t.Errorf("%d calls, stored %v", calls, stored)
			}
			closeAndWait(s)
		})
	}
}

func TestStoreUpdate_AllocatesLittle(t *testing.T) {
	for name, projection := range map[string]Projection{"full": Full, "metadata": Metadata, "keys": Keys} {
		t.Run(name, func(t *testing.T) {
			s, w := newTestWatch(projection)
			s.Attach(EventHandler{Known: func([]string) {}, Synced: func() {}, Changed: func(objects.Change) {}})
			if err := w.Replace(nil, "1"); err != nil {
				t.Fatal(err)
			}
			next := updates(t, projection)
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

// updates returns a function. Each call to it returns the next version of the same object, as a record parsed by
// package objects.
func updates(t testing.TB, projection Projection) func() any {
	var states []any
	for version := range 200 {
		o := object("a", strconv.Itoa(version+10))
		encoded, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		r, err := objects.Parse(encoded, projection, metav1.TypeMeta{APIVersion: "example.com/v1", Kind: "Widget"})
		if err != nil {
			t.Fatal(err)
		}
		states = append(states, r)
	}
	i := 0
	return func() any { i++; return states[i%len(states)] }
}

func BenchmarkStoreUpdate(b *testing.B) {
	for name, projection := range map[string]Projection{"full": Full, "metadata": Metadata, "keys": Keys} {
		b.Run(name, func(b *testing.B) {
			s, w := newTestWatch(projection)
			s.Attach(EventHandler{Known: func([]string) {}, Synced: func() {}, Changed: func(objects.Change) {}})
			next := updates(b, projection)
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
