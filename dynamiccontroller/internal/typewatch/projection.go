package typewatch

import (
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Projection is the part of each object that a watch requests and stores. A deeper projection includes the shallower
// ones.
type Projection uint8

const (
	// Keys stores the key of each object, one number for its resourceVersion and one number for its UID.
	Keys Projection = iota
	// Metadata stores a PartialObjectMetadata without managedFields.
	Metadata
	// Full stores whole objects.
	Full
)

// reduce returns the part of a received object that is stored.
func (p Projection) reduce(obj any) any {
	m, ok := obj.(*metav1.PartialObjectMetadata)
	switch {
	case !ok || p == Full:
		return obj
	case p == Metadata:
		m.ManagedFields = nil // they make up most of an object's metadata
		return m
	default:
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
		}}
	}
}

// project returns a stored object in the form in which a watch with this projection would have stored it. If less is
// stored than the projection includes, the result has the Go type of the projection, but only the stored content.
// Objects of other Go types, which only a transform can return, are returned unchanged.
func (p Projection) project(obj any) any {
	switch o := obj.(type) {
	case *unstructured.Unstructured:
		switch p {
		case Full:
			return o
		case Metadata:
			return metadataOf(o)
		default:
			return stub(o.GetNamespace(), o.GetName())
		}
	case *metav1.PartialObjectMetadata:
		switch p {
		case Full:
			return wholeOf(o)
		case Metadata:
			return o
		default:
			return stub(o.Namespace, o.Name)
		}
	default:
		return obj
	}
}

func metadataOf(o *unstructured.Unstructured) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		// An API server sends this TypeMeta in its responses to a metadata client.
		TypeMeta: metav1.TypeMeta{APIVersion: metav1.SchemeGroupVersion.String(), Kind: "PartialObjectMetadata"},
		ObjectMeta: metav1.ObjectMeta{
			Name:                       o.GetName(),
			GenerateName:               o.GetGenerateName(),
			Namespace:                  o.GetNamespace(),
			UID:                        o.GetUID(),
			ResourceVersion:            o.GetResourceVersion(),
			Generation:                 o.GetGeneration(),
			CreationTimestamp:          o.GetCreationTimestamp(),
			DeletionTimestamp:          o.GetDeletionTimestamp(),
			DeletionGracePeriodSeconds: o.GetDeletionGracePeriodSeconds(),
			Labels:                     o.GetLabels(),
			Annotations:                o.GetAnnotations(),
			OwnerReferences:            o.GetOwnerReferences(),
			Finalizers:                 o.GetFinalizers(),
		},
	}
}

func wholeOf(m *metav1.PartialObjectMetadata) *unstructured.Unstructured {
	metadata, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&m.ObjectMeta)
	if err != nil {
		metadata = map[string]any{"namespace": m.Namespace, "name": m.Name}
	}
	return &unstructured.Unstructured{Object: map[string]any{"metadata": metadata}}
}

// stub returns an object that has only a namespace and a name.
func stub(namespace, name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func stubOf(key string) *metav1.PartialObjectMetadata {
	namespace, name, _ := cache.SplitMetaNamespaceKey(key)
	return stub(namespace, name)
}

// sameMetadata reports whether two states of an object have the same metadata, ignoring managedFields.
func sameMetadata(a, b any) bool {
	x, xWhole := a.(*unstructured.Unstructured)
	y, yWhole := b.(*unstructured.Unstructured)
	if xWhole && yWhole && sameJSON(x.Object["metadata"], y.Object["metadata"], maxDepth) {
		return true
	}
	return sameContent(Metadata.project(a), Metadata.project(b))
}

// sameContent reports whether two states of an object are equal. The TypeMeta of partial metadata is ignored, because
// it depends on whether the object was received in a list or in a watch event.
func sameContent(a, b any) bool {
	switch a := a.(type) {
	case *metav1.PartialObjectMetadata:
		b, ok := b.(*metav1.PartialObjectMetadata)
		return ok && equality.Semantic.DeepEqual(a.ObjectMeta, b.ObjectMeta)
	case *unstructured.Unstructured:
		b, ok := b.(*unstructured.Unstructured)
		return ok && a != nil && b != nil && sameJSON(a.Object, b.Object, maxDepth)
	default:
		return reflect.DeepEqual(a, b)
	}
}

// maxDepth is the nesting depth at which sameJSON falls back to reflect.DeepEqual. This is needed because the result of a
// transform can contain a reference to itself, and only reflect.DeepEqual detects such a cycle.
const maxDepth = 64

// sameJSON returns the same result as reflect.DeepEqual for decoded JSON, but is several times faster and does not
// allocate memory. The speed matters because a relist compares every object. With reflect.DeepEqual, the comparison
// would take longer than decoding the list.
func sameJSON(a, b any, depth int) bool {
	if depth == 0 {
		return reflect.DeepEqual(a, b)
	}
	switch a := a.(type) {
	case nil, string, bool, int64, float64:
		return a == b
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) || (a == nil) != (b == nil) {
			return false
		}
		for key, value := range a {
			if other, known := b[key]; !known || !sameJSON(value, other, depth-1) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) || (a == nil) != (b == nil) {
			return false
		}
		for i := range a {
			if !sameJSON(a[i], b[i], depth-1) {
				return false
			}
		}
		return true
	default:
		return reflect.DeepEqual(a, b)
	}
}

// Owner is an owner reference of an object.
type Owner struct {
	UID        types.UID
	uid        uint64 // hash of UID
	Controller bool
	// Keys holds the possible keys of the owner, which is either cluster-scoped or in the object's namespace.
	Keys []string
}

// ownerCache holds the owners of a changed object, as they were before the change and as they are after it. It exists
// because the subscriptions of a thousand owner types can handle the same change, and parsing the owner references of a
// whole object takes longer than looking up an owner.
type ownerCache struct {
	entries [2]struct {
		obj    any
		owners []Owner
	}
	next int
}

func (c *ownerCache) get(obj any) []Owner {
	for i := range c.entries {
		if obj != nil && c.entries[i].obj == obj {
			return c.entries[i].owners
		}
	}
	owners := parseOwners(obj)
	// Stored objects never change, so a pointer identifies a state. A transform can return values that are not
	// pointers.
	if obj != nil && reflect.TypeOf(obj).Kind() == reflect.Pointer {
		c.entries[c.next].obj, c.entries[c.next].owners = obj, owners
		c.next = (c.next + 1) % len(c.entries)
	}
	return owners
}

func parseOwners(obj any) []Owner {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil
	}
	references := m.GetOwnerReferences()
	owners := make([]Owner, len(references))
	for i, r := range references {
		owners[i] = Owner{UID: r.UID, uid: hashOf(string(r.UID)), Controller: r.Controller != nil && *r.Controller, Keys: []string{r.Name}}
		if namespace := m.GetNamespace(); namespace != "" {
			owners[i].Keys = append(owners[i].Keys, namespace+"/"+r.Name)
		}
	}
	return owners
}
