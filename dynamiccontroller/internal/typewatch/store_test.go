package typewatch

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
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

func TestObject_IsDecodedOncePerChange(t *testing.T) {
	p := newTestPool(newServer())
	var w *reflector
	received := map[string][]*Object{} // by resourceVersion
	var subscriptions []*Subscription
	for range 3 {
		s := p.Subscribe(options(Metadata), nil)
		subscriptions = append(subscriptions, s)
		w = s.watch().reflectors[0]
		s.Attach(EventHandler{
			Known: func([]*Object) {}, Synced: func() {},
			Changed: func(c Change) {
				received[c.New.GetResourceVersion()] = append(received[c.New.GetResourceVersion()], c.New)
			},
		})
	}
	if err := w.Replace(nil, "1"); err != nil {
		t.Fatal(err)
	}
	subscriptions[0].settle()
	for version, owner := range []types.UID{"x", "y"} {
		if err := w.Add(owned("a", strconv.Itoa(version+2), owner)); err != nil {
			t.Fatal(err)
		}
	}
	for version, all := range received {
		if len(all) != len(subscriptions) {
			t.Fatalf("version %s was received %d times", version, len(all))
		}
		for _, o := range all {
			if o.Meta() != all[0].Meta() || &o.Owners()[0] != &all[0].Owners()[0] {
				t.Errorf("version %s was decoded more than once", version)
			}
		}
	}
	for _, s := range subscriptions {
		closeAndWait(s)
	}
}

// brokenOwners panics when its owner references are read.
type brokenOwners struct{ *metav1.PartialObjectMetadata }

func (brokenOwners) GetOwnerReferences() []metav1.OwnerReference { panic("on purpose") }

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
			w := s.watch().reflectors[0]
			received, err := objects.Parse([]byte(`{"kind":"Widget","metadata":{"namespace":"ns","name":"a"}}`),
				Metadata, metav1.TypeMeta{})
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Replace([]any{received}, "1"); err != nil {
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

// A server without resourceVersions is polled.
func TestD1_UnchangedObjectsWithoutVersionsAreNotDelivered(t *testing.T) {
	s, w := newTestWatch(Metadata)
	r := attachRecorder(s)
	for _, label := range []string{"b", "b", "c"} {
		unchanged, changed := object("a", ""), object("b", "")
		changed.Labels["a"] = label
		if err := w.Replace([]any{unchanged, changed}, ""); err != nil {
			t.Fatal(err)
		}
		s.settle()
	}
	r.expect(t, "three lists", "known ns/a", "known ns/b", "synced", "ns/b >")
	closeAndWait(s)
}

// An item that cannot be used must not look like a deletion, also if the stored objects have no UIDs.
func TestD3_UnusableItemsAreNotDeletions(t *testing.T) {
	for name, test := range map[string]struct {
		unusable string
		want     []string
	}{
		"an item with a key":    {`"namespace":"ns","name":"b","uid":7`, []string{"ns/a 1>-"}},
		"an item without a key": {anonymous, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, projection := range []Projection{Keys, Metadata} {
				testUnusableItem(t, projection, "", test.unusable, test.want)
				testUnusableItem(t, projection, "ns", test.unusable, test.want)
			}
		})
	}
}

// testUnusableItem checks the changes after a list with an unusable item. If the namespace is not empty, the watch has
// another namespace, too.
func testUnusableItem(t *testing.T, projection Projection, namespace, unusable string, want []string) {
	t.Helper()
	s, w := newTestWatch(projection)
	if namespace != "" {
		w.namespace = namespace
		other := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "a"}}
		w.watch.store.Put(received(t, other, projection, true))
	}
	if err := w.Replace([]any{object("a", "1"), object("b", "1"), object("c", "1")}, "1"); err != nil {
		t.Fatal(err)
	}
	r := attachRecorder(s)
	r.take()
	if err := w.Replace([]any{object("c", "1"), item(projection, unusable)}, "2"); err != nil {
		t.Fatal(err)
	}
	want = slices.Clone(want)
	if projection == Keys {
		for i := range want {
			want[i] = strings.ReplaceAll(want[i], "1>", ">") // the old version is not stored
		}
	}
	r.expect(t, "the list", want...)
	if !w.watch.store.Has("ns/b") {
		t.Error("the object was removed from the store")
	}
	closeAndWait(s)
}

func TestStoreUpdate_AllocatesLittle(t *testing.T) {
	for name, projection := range map[string]Projection{"full": Full, "metadata": Metadata, "keys": Keys} {
		t.Run(name, func(t *testing.T) {
			s, w := newTestWatch(projection)
			s.Attach(EventHandler{Known: func([]*Object) {}, Synced: func() {}, Changed: func(Change) {}})
			if err := w.Replace(nil, "1"); err != nil {
				t.Fatal(err)
			}
			s.settle()
			next := updates(t, projection)
			allocations := testing.AllocsPerRun(100, func() {
				if err := w.Update(next()); err != nil {
					t.Fatal(err)
				}
			})
			if allocations > 5 { // two are for the delivery
				t.Errorf("%v allocations per update", allocations)
			}
			closeAndWait(s)
		})
	}
}

// updates returns a function. Each call to it returns the next version of the same object, as a record that is parsed
// from the encoding that is received from API servers.
func updates(t testing.TB, projection Projection) func() any {
	t.Helper()
	var states []any
	for version := range 200 {
		o := object("a", strconv.Itoa(version+10))
		states = append(states, received(t, o, projection, projection < Full))
	}
	i := 0
	return func() any { i++; return states[i%len(states)] }
}

// received returns the record of an object that is received as protobuf or JSON.
func received(
	t testing.TB, o *metav1.PartialObjectMetadata, projection Projection, asProtobuf bool,
) *objects.Record {
	t.Helper()
	encode, parse := o.Marshal, objects.ParseProtobuf
	if !asProtobuf {
		encode = func() ([]byte, error) { return json.Marshal(o) }
		parse = func(data []byte, projection Projection) (*objects.Record, error) {
			return objects.Parse(data, projection, metav1.TypeMeta{APIVersion: "example.com/v1", Kind: "Widget"})
		}
	}
	encoded, err := encode()
	if err != nil {
		t.Fatal(err)
	}
	r, err := parse(encoded, projection)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A watch can receive protobuf at first and JSON later, or the other way round, for example from another API server.
func TestD1_EncodingDoesNotCountAsAChange(t *testing.T) {
	for name, wasProtobuf := range map[string]bool{"from protobuf to JSON": true, "from JSON to protobuf": false} {
		t.Run(name, func(t *testing.T) {
			s, w := newTestWatch(Metadata)
			r := attachRecorder(s)
			same, changed := owned("a", "1", "x"), owned("b", "1", "x")
			list := func(version string, asProtobuf bool) {
				t.Helper()
				items := []any{received(t, same, Metadata, asProtobuf), received(t, changed, Metadata, asProtobuf)}
				if err := w.Replace(items, version); err != nil {
					t.Fatal(err)
				}
			}
			list("1", wasProtobuf)
			r.take()
			changed.Labels["a"] = "changed"
			list("2", !wasProtobuf)
			r.expect(t, "changes", "ns/b 1>1")
			closeAndWait(s)
		})
	}
}

func BenchmarkStoreUpdate(b *testing.B) {
	for name, projection := range map[string]Projection{"full": Full, "metadata": Metadata, "keys": Keys} {
		b.Run(name, func(b *testing.B) {
			s, w := newTestWatch(projection)
			s.Attach(EventHandler{Known: func([]*Object) {}, Synced: func() {}, Changed: func(Change) {}})
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
