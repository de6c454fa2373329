package feed

import (
	"testing"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fakemetadata"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/recordclient"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// with returns a source that is changed.
func with(source *Source, change func(*Source)) *Source {
	change(source)
	return source
}

func accepting(source *Source) *Source {
	return with(source, func(s *Source) {
		s.Accepts = func(Environment, *typewatch.Object, *typewatch.Object) bool { return true }
	})
}

func whole(source *Source) *Source {
	return with(source, func(s *Source) { s.Watch.Projection = objects.Full })
}

func transforming(source *Source) *Source {
	return with(source, func(s *Source) { s.Watch.Transform = func(o any) (any, error) { return o, nil } })
}

func ownedByAny() *Source {
	return with(owned(gadgets), func(s *Source) { s.EveryOwner = true })
}

func mappedGadgets() *Source { return mapped(gadgets, func() []string { return nil }) }

func TestSource_Reads(t *testing.T) {
	for name, test := range map[string]struct {
		source *Source
		want   reads
	}{
		"the own type":                          {sourceFor(widgets), readsKey},
		"the own type, whole objects":           {whole(sourceFor(widgets)), readsKey},
		"the own type with a transform":         {transforming(sourceFor(widgets)), readsKey},
		"the own type with a predicate":         {accepting(sourceFor(widgets)), readsEverything},
		"an owned type":                         {owned(gadgets), readsOwners},
		"an owned type, whole objects":          {whole(owned(gadgets)), readsOwners},
		"an owned type with a transform":        {transforming(owned(gadgets)), readsEverything},
		"an owned type with a predicate":        {accepting(owned(gadgets)), readsEverything},
		"a MapFunc for metadata":                {mappedGadgets(), readsMetadata},
		"a MapFunc for whole objects":           {whole(mappedGadgets()), readsEverything},
		"a MapFunc for metadata and transforms": {transforming(mappedGadgets()), readsEverything},
		"a MapFunc and a predicate":             {accepting(mappedGadgets()), readsEverything},
	} {
		if got := test.source.reads(); got != test.want {
			t.Errorf("%s: got %d, want %d", name, got, test.want)
		}
	}
}

// shape changes the metadata of an object.
type shape func(*metav1.ObjectMeta)

func uid(uid types.UID) shape { return func(m *metav1.ObjectMeta) { m.UID = uid } }

func labelled(value string) shape {
	return func(m *metav1.ObjectMeta) { m.Labels = map[string]string{"app": value} }
}

func version(version string, generation int64) shape {
	return func(m *metav1.ObjectMeta) {
		m.ResourceVersion, m.Generation = version, generation
		m.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: version}}
	}
}

// ownedBy makes the first owner the controller, unless it is empty.
func ownedBy(owners ...string) shape {
	return func(m *metav1.ObjectMeta) {
		for i, owner := range owners {
			if owner != "" {
				m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{
					Name: owner, UID: types.UID("uid-" + owner), Controller: ptr.To(i == 0),
				})
			}
		}
	}
}

// idlePool returns a pool that is not started.
func idlePool() *typewatch.Pool {
	client := fake.NewSimpleDynamicClient(runtime.NewScheme())
	return typewatch.NewPool(typewatch.Config{
		Source: recordclient.Clients{Dynamic: client, Metadata: fakemetadata.New(client, nil)},
		Log:    func(schema.GroupVersionResource) logr.Logger { return logr.Discard() },
	})
}

// A dropped state is lost if what the source reads of it is in none of the states that are delivered.
func TestLoses(t *testing.T) {
	pool := idlePool()
	states := func(shapes ...shape) []shape { return shapes }
	plain := version("1", 1)
	for name, test := range map[string]struct {
		source            *Source
		dropped, old, new []shape // no object if nil
		want              bool
	}{
		"own type: changed in between": {
			source: sourceFor(widgets), dropped: states(labelled("x")), old: states(plain), new: states(plain),
		},
		"own type: changed and deleted": {source: sourceFor(widgets), dropped: states(labelled("x")), old: states(plain)},
		"own type: added and changed":   {source: sourceFor(widgets), dropped: states(labelled("x")), new: states(plain)},
		"own type: added and deleted":   {source: sourceFor(widgets), dropped: states(plain), want: true},
		"own type with a predicate": {
			source: accepting(sourceFor(widgets)), dropped: states(plain), old: states(plain), new: states(plain), want: true,
		},

		"owned: the owner of the old state": {
			source: owned(gadgets), dropped: states(ownedBy("a"), labelled("x")), old: states(ownedBy("a")), new: states(plain),
		},
		"owned: the owner of the new state": {
			source: owned(gadgets), dropped: states(ownedBy("a")), old: states(plain), new: states(ownedBy("a")),
		},
		"owned: the owner of a deleted object": {
			source: owned(gadgets), dropped: states(ownedBy("a")), old: states(ownedBy("a")),
		},
		"owned: another owner": {
			source: owned(gadgets), dropped: states(ownedBy("b")), old: states(ownedBy("a")), new: states(ownedBy("c")),
			want: true,
		},
		"owned: an owner that is created again": {
			source: owned(gadgets), old: states(ownedBy("a")), new: states(ownedBy("a")), want: true,
			dropped: states(func(m *metav1.ObjectMeta) {
				m.OwnerReferences = []metav1.OwnerReference{{Name: "a", UID: "another", Controller: ptr.To(true)}}
			}),
		},
		"owned: added and deleted with an owner": {source: owned(gadgets), dropped: states(ownedBy("a")), want: true},
		"owned: added and deleted without owner": {source: owned(gadgets), dropped: states(plain)},
		"owned: an owner that is not the controller": {
			source: owned(gadgets), dropped: states(ownedBy("", "b")), old: states(plain), new: states(plain),
		},
		"owned: an owner that is the controller only in the dropped state": {
			source: owned(gadgets), dropped: states(ownedBy("a")), old: states(ownedBy("", "a")), new: states(plain), want: true,
		},
		"every owner: another one": {
			source: ownedByAny(), dropped: states(ownedBy("a", "b")), old: states(ownedBy("a")), new: states(ownedBy("a")),
			want: true,
		},
		"every owner: one in the old and one in the new state": {
			source: ownedByAny(), dropped: states(ownedBy("a", "b")), old: states(ownedBy("a")), new: states(ownedBy("b")),
		},
		"owned, with a predicate": {
			source: accepting(owned(gadgets)), dropped: states(plain), old: states(plain), new: states(plain), want: true,
		},

		"mapped: only the version, the generation and managedFields": {
			source: mappedGadgets(), dropped: states(version("2", 2)), old: states(labelled("x")), new: states(plain),
		},
		"mapped: like the old state": {
			source: mappedGadgets(), dropped: states(labelled("x")), old: states(labelled("x")), new: states(plain),
		},
		"mapped: changed and deleted": {source: mappedGadgets(), dropped: states(plain), old: states(version("3", 1))},
		"mapped: other labels": {
			source: mappedGadgets(), dropped: states(labelled("x")), old: states(plain), new: states(labelled("y")), want: true,
		},
		"mapped: another owner": {
			source: mappedGadgets(), dropped: states(ownedBy("a")), old: states(plain), new: states(plain), want: true,
		},
		"mapped: another UID": {
			source: mappedGadgets(), dropped: states(uid("other")), old: states(plain), new: states(plain), want: true,
		},
		"mapped: being deleted": {
			source: mappedGadgets(), old: states(plain), new: states(plain), want: true,
			dropped: states(func(m *metav1.ObjectMeta) { m.DeletionTimestamp = ptr.To(metav1.Unix(1, 0)) }),
		},
		"mapped: added and deleted": {source: mappedGadgets(), dropped: states(plain), want: true},
		"mapped, whole objects": {
			source: whole(mappedGadgets()), dropped: states(plain), old: states(plain), new: states(plain), want: true,
		},
		"mapped, with a predicate": {
			source: accepting(mappedGadgets()), dropped: states(plain), old: states(plain), new: states(plain), want: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			sub := Subscribe(pool, test.source, nil)
			defer func() { sub.Close(); <-sub.Ended() }()
			got := Loses(objectOf(t, sub, test.dropped), typewatch.Change{
				Key: "g", Old: objectOf(t, sub, test.old), New: objectOf(t, sub, test.new),
			})
			if got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}

// objectOf returns an object under the view of a subscription, or nil if there are no shapes.
func objectOf(t *testing.T, sub *typewatch.Subscription, shapes []shape) *typewatch.Object {
	t.Helper()
	if shapes == nil {
		return nil
	}
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "g", UID: "g"}}
	for _, shape := range shapes {
		shape(&object.ObjectMeta)
	}
	view := sub.View()
	record, err := objects.Encode(object, objects.Metadata, "")
	if err != nil {
		t.Fatal(err)
	}
	return typewatch.NewObject(record, view)
}

// If the source was replaced while changes waited, other functions are called with the states that are delivered. The
// methods of an object in decoded form are user code, and are not called.
func TestLoses_WithAnotherSourceOrForm(t *testing.T) {
	pool := idlePool()
	first, second := Subscribe(pool, mappedGadgets(), nil), Subscribe(pool, mappedGadgets(), nil)
	state := func(sub *typewatch.Subscription) *typewatch.Object { return objectOf(t, sub, []shape{labelled("x")}) }
	changed := objectOf(t, second, []shape{labelled("y")})
	record, err := objects.Encode(&opaque{}, objects.Metadata, "")
	if err != nil {
		t.Fatal(err)
	}
	decoded := typewatch.NewObject(record, first.View())
	for name, test := range map[string]struct {
		dropped, old, new *typewatch.Object
		want              bool
	}{
		"the same source":                  {state(first), state(first), state(first), false},
		"another source of the new state":  {state(first), state(first), state(second), true},
		"another source of the old state":  {state(first), state(second), nil, true},
		"an earlier source, deleted":       {state(second), state(first), nil, true},
		"an earlier source, and then this": {state(first), state(second), state(first), false},
		"only the earlier source had it":   {state(second), state(first), changed, true},
		"an object in decoded form":        {decoded, decoded, decoded, true},
	} {
		if got := Loses(test.dropped, typewatch.Change{Key: "g", Old: test.old, New: test.new}); got != test.want {
			t.Errorf("%s: got %t, want %t", name, got, test.want)
		}
	}
	for _, sub := range []*typewatch.Subscription{first, second} {
		sub.Close()
		<-sub.Ended()
	}
}

// opaque is an object that a transform has returned.
type opaque struct{ metav1.PartialObjectMetadata }

func (o *opaque) GetName() string { return "g" }
