package objects

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
)

// Decode decodes the object. The projection determines the type of the result: *unstructured.Unstructured for Full and
// Complete, *metav1.PartialObjectMetadata for Keys and Metadata. If the record keeps less than the projection includes,
// the object has only the fields that the record keeps. The caller owns the object, unless the record holds it in
// decoded form; see [Encode].
func (r *Record) Decode(projection Projection) (runtime.Object, error) {
	switch {
	case r.opaque != nil:
		return r.opaque, nil
	case projection == Keys:
		return &metav1.PartialObjectMetadata{
			ObjectMeta: metav1.ObjectMeta{Namespace: r.GetNamespace(), Name: r.GetName()},
		}, nil
	case projection == Metadata:
		m, err := r.decodeMetadata()
		if err != nil {
			return nil, r.decodeError(err)
		}
		return &metav1.PartialObjectMetadata{TypeMeta: partialTypeMeta, ObjectMeta: *m}, nil
	default:
		return r.decodeWhole(projection)
	}
}

func (r *Record) decodeWhole(projection Projection) (*unstructured.Unstructured, error) {
	data, err := r.encodedAs(r.projection)
	if err != nil {
		return nil, r.decodeError(err)
	}
	u := &unstructured.Unstructured{}
	if err := Unmarshal(data, u); err != nil {
		return nil, r.decodeError(err)
	}
	if projection < Complete && r.projection == Complete {
		unstructured.RemoveNestedField(u.Object, "metadata", "managedFields")
	}
	return u, nil
}

// DecodeInto decodes the fields that a projection includes into a Go struct, as [Unmarshal] does.
func (r *Record) DecodeInto(into any, projection Projection) error {
	data, err := r.encodedAs(projection)
	if err == nil {
		err = Unmarshal(data, into)
	}
	if err != nil {
		return r.decodeError(err)
	}
	return nil
}

// Unmarshal decodes JSON into the value to which into points. The names of JSON fields are case-sensitive, and numbers
// are decoded, as in typed clients. Unlike its own decoder, an Unstructured can lack a kind.
func Unmarshal(data []byte, into any) error {
	u, ok := into.(*unstructured.Unstructured)
	if !ok {
		return json.Unmarshal(data, into)
	}
	u.Object = map[string]any{}
	return json.Unmarshal(data, &u.Object)
}

// encodedAs returns the fields that a projection includes as JSON.
func (r *Record) encodedAs(projection Projection) ([]byte, error) {
	switch {
	case r.opaque != nil:
		return json.Marshal(r.opaque)
	case r.data == "" || r.protobuf:
		m, err := r.decodeMetadata()
		if err != nil {
			return nil, err
		}
		return json.Marshal(&metav1.PartialObjectMetadata{ObjectMeta: *m})
	case projection >= r.projection:
		return []byte(r.data), nil
	}
	var p parsed
	if err := p.scan([]byte(r.data), metav1.TypeMeta{}); err != nil {
		return nil, err
	}
	reduced, err := p.record(projection)
	if err != nil {
		return nil, err
	}
	return []byte(reduced.data), nil
}

func (r *Record) decodeError(err error) error { return fmt.Errorf("decode %q: %w", r.Key(), err) }

// ObjectMeta returns the metadata without managedFields. The caller owns the result. Fields with the wrong type are
// empty.
func (r *Record) ObjectMeta() *metav1.ObjectMeta {
	m, err := r.decodeMetadata()
	if err != nil {
		return r.headerMeta()
	}
	return m
}

func (r *Record) decodeMetadata() (*metav1.ObjectMeta, error) {
	switch {
	case r.opaque != nil:
		return r.opaqueMeta()
	case r.protobuf:
		return r.unmarshalMetadata()
	case r.metadata == 0:
		return r.headerMeta(), nil
	}
	m, raw := &metav1.ObjectMeta{}, []byte(r.rawAt(r.metadata))
	if json.Unmarshal(raw, m) == nil {
		m.ManagedFields = nil
		return m, nil
	}
	// A field has the wrong type. The accessors of Unstructured return the other fields.
	content := map[string]any{}
	if err := json.Unmarshal(raw, &content); err != nil {
		return nil, err
	}
	return metaOf(&unstructured.Unstructured{Object: map[string]any{"metadata": content}}), nil
}

func (r *Record) opaqueMeta() (*metav1.ObjectMeta, error) {
	accessor, err := meta.Accessor(r.opaque)
	if err != nil {
		return nil, err
	}
	m := metaOf(accessor).DeepCopy()
	m.ResourceVersion = r.GetResourceVersion()
	return m, nil
}

// headerMeta returns the metadata in the header.
func (r *Record) headerMeta() *metav1.ObjectMeta {
	return &metav1.ObjectMeta{
		Namespace: r.GetNamespace(), Name: r.GetName(), UID: r.GetUID(), ResourceVersion: r.GetResourceVersion(),
	}
}

// metaOf returns the metadata without managedFields.
func metaOf(o metav1.Object) *metav1.ObjectMeta {
	return &metav1.ObjectMeta{
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
	}
}

// OwnerReferences returns the owner references. No other fields are decoded.
func (r *Record) OwnerReferences() []metav1.OwnerReference {
	switch {
	case r.opaque != nil:
		return r.ObjectMeta().OwnerReferences
	case r.protobuf:
		return r.unmarshalField(ownerReferencesField).OwnerReferences
	}
	raw := r.rawAt(r.ownerReferences)
	if raw == "" {
		return nil
	}
	var references []metav1.OwnerReference
	if err := json.Unmarshal([]byte(raw), &references); err != nil {
		return r.ObjectMeta().OwnerReferences
	}
	return references
}
