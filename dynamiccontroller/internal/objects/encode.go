package objects

import (
	"bytes"
	gojson "encoding/json"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// Encode returns the record of a decoded object. If obj is an *unstructured.Unstructured or
// *metav1.PartialObjectMetadata, Encode neither keeps nor changes it. A transform can return an object of another type.
// The record keeps such an object in decoded form. If resourceVersion is not empty, it replaces the object's
// resourceVersion. A float64 without a fraction is later decoded as an int64.
func Encode(obj runtime.Object, projection Projection, resourceVersion string) (*Record, error) {
	r, err := encode(obj, projection, resourceVersion)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", describe(obj), err)
	}
	r.encoded = true
	return r, nil
}

func encode(obj runtime.Object, projection Projection, resourceVersion string) (*Record, error) {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	if resourceVersion == "" {
		resourceVersion = accessor.GetResourceVersion()
	}
	var data any
	switch o := obj.(type) {
	case *unstructured.Unstructured:
		if !hasReadableNamespace(o) {
			return nil, errNamespace
		}
		data = unstructuredData(o, projection, resourceVersion)
	case *metav1.PartialObjectMetadata:
		data = partialData(o, projection, resourceVersion)
	}
	if data == nil || projection == Keys {
		return headerOf(obj, accessor, data == nil, projection, resourceVersion)
	}
	var encoded bytes.Buffer
	encoder := gojson.NewEncoder(&encoded)
	encoder.SetEscapeHTML(false) // escaping would make the data larger
	if err := encoder.Encode(data); err != nil {
		return nil, err
	}
	var p parsed
	if err := p.scan(encoded.Bytes(), metav1.TypeMeta{}); err != nil {
		return nil, err
	}
	if p.isEmpty(p.name) {
		return nil, errNoName
	}
	return p.record(projection)
}

// headerOf returns a record that has no data.
func headerOf(
	obj runtime.Object, accessor metav1.Object, opaque bool, projection Projection, resourceVersion string,
) (*Record, error) {
	if err := checkKey(accessor.GetNamespace(), accessor.GetName()); err != nil {
		return nil, err
	}
	r := &Record{projection: projection}
	r.setHeader([]byte(accessor.GetNamespace()), []byte(accessor.GetName()), []byte(accessor.GetUID()),
		[]byte(resourceVersion))
	if opaque {
		r.opaque = obj
	}
	return r, nil
}

// unstructuredData returns the part of the object that the record keeps. It does not change the object.
func unstructuredData(o *unstructured.Unstructured, projection Projection, resourceVersion string) map[string]any {
	data := maps.Clone(o.Object)
	if projection < Full {
		maps.DeleteFunc(data, func(field string, _ any) bool {
			return field != "apiVersion" && field != "kind" && field != "metadata"
		})
	}
	metadata, ok := data["metadata"].(map[string]any)
	if !ok {
		return data
	}
	metadata = maps.Clone(metadata)
	if projection != Complete {
		delete(metadata, "managedFields")
	}
	if resourceVersion != "" {
		metadata["resourceVersion"] = resourceVersion
	}
	data["metadata"] = metadata
	return data
}

func partialData(
	o *metav1.PartialObjectMetadata, projection Projection, resourceVersion string,
) *metav1.PartialObjectMetadata {
	data := *o
	data.ResourceVersion = resourceVersion
	if projection != Complete {
		data.ManagedFields = nil
	}
	return &data
}

func describe(obj runtime.Object) string {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return fmt.Sprintf("%T", obj)
	}
	r := &Record{}
	r.setHeader([]byte(accessor.GetNamespace()), []byte(accessor.GetName()), nil, nil)
	return fmt.Sprintf("%q", r.Key())
}
