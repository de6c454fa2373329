package objects

import (
	"unsafe"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Projection is the part of each object that is kept. A wider projection includes the narrower ones.
type Projection uint8

const (
	// Keys keeps the namespace, name, UID and resourceVersion.
	Keys Projection = iota
	// Metadata keeps the metadata without managedFields.
	Metadata
	// Full keeps the whole object without managedFields.
	Full
	// Complete keeps the whole object.
	Complete
)

// Record is one version of an object. It is immutable and safe for concurrent use.
//
// A Record implements runtime.Object and metav1.Object, so that lists and watch events can carry it. The getters of
// metav1.Object decode the metadata on each call, except the getters for the namespace, name, UID and resourceVersion.
// The setters panic.
type Record struct {
	// header is the key, the UID and the resourceVersion. It is one string to save allocations.
	header string
	// data is the object as JSON, or the part of it that is kept. If protobuf is true, it is an ObjectMeta as protobuf.
	// data is a string because a custom UnmarshalJSON could modify a byte slice, and because labels can be read from a
	// string without copying.
	data string
	// opaque is an object that is kept in decoded form; see Encode.
	opaque runtime.Object

	namespaceLen, keyLen, uidLen uint32 // lengths of the parts of the header

	// Positions of values in JSON data; 0 if a value is absent.
	kind, apiVersion, metadata, labels, ownerReferences uint32

	projection Projection
	protobuf   bool
	encoded    bool
}

// setHeader sets the header. It copies its arguments.
func (r *Record) setHeader(namespace, name, uid, resourceVersion []byte) {
	r.namespaceLen, r.uidLen = uint32(len(namespace)), uint32(len(uid))
	r.keyLen = uint32(len(name))
	if len(namespace) == 0 {
		r.header = string(name) + string(uid) + string(resourceVersion)
		return
	}
	r.keyLen += uint32(len(namespace) + len("/"))
	r.header = string(namespace) + "/" + string(name) + string(uid) + string(resourceVersion)
}

// Key returns the namespace and name: "namespace/name", or "name" if the object is cluster-scoped.
func (r *Record) Key() string { return r.header[:r.keyLen] }

// GetNamespace returns the namespace.
func (r *Record) GetNamespace() string { return r.header[:r.namespaceLen] }

// GetName returns the name.
func (r *Record) GetName() string {
	if r.namespaceLen == 0 {
		return r.Key()
	}
	return r.header[r.namespaceLen+1 : r.keyLen]
}

// GetUID returns the UID.
func (r *Record) GetUID() types.UID { return types.UID(r.header[r.keyLen : r.keyLen+r.uidLen]) }

// GetResourceVersion returns the resourceVersion.
func (r *Record) GetResourceVersion() string { return r.header[r.keyLen+r.uidLen:] }

// IsEncoded reports whether the record was created by [Encode] rather than by [Parse] or [ParseProtobuf].
func (r *Record) IsEncoded() bool { return r.encoded }

// IsDecoded reports whether the record keeps an object in decoded form, which a transform has returned.
func (r *Record) IsDecoded() bool { return r.opaque != nil }

// Encoded returns a copy of the record for which [Record.IsEncoded] returns true.
func (r *Record) Encoded() *Record {
	marked := *r
	marked.encoded = true
	return &marked
}

// Reduced returns the record of the object that reduce returns for the object's JSON. It returns the record itself if
// it has no JSON, or if reduce is nil or returns an invalid object.
func (r *Record) Reduced(reduce func(object []byte) []byte) *Record {
	if reduce == nil || r.opaque != nil || r.protobuf || r.data == "" {
		return r
	}
	text := reduce([]byte(r.data))
	if len(text) == len(r.data) {
		return r
	}
	reduced, err := Parse(text, r.projection, metav1.TypeMeta{})
	if err != nil || reduced.Key() != r.Key() {
		return r
	}
	return reduced
}

// Projection returns the part of the object that the record keeps.
func (r *Record) Projection() Projection { return r.projection }

// Size returns the memory that the record uses, in bytes. If the record holds an object in decoded form, that object is
// not included.
func (r *Record) Size() int {
	return allocated(int(unsafe.Sizeof(*r))) + allocated(len(r.header)) + allocated(len(r.data))
}

// DeepCopyObject returns the record itself, because it is immutable.
func (r *Record) DeepCopyObject() runtime.Object { return r }

// GetObjectKind returns the apiVersion and kind of the object. If they are unknown, it returns those of
// PartialObjectMetadata.
func (r *Record) GetObjectKind() schema.ObjectKind {
	switch {
	case r.opaque != nil:
		return r.opaque.GetObjectKind()
	case r.kind == 0:
		partial := partialTypeMeta
		return &partial
	default:
		return &metav1.TypeMeta{Kind: r.stringAt(r.kind), APIVersion: r.stringAt(r.apiVersion)}
	}
}

// stringAt returns the string at a position of the data, or "" if it is absent.
func (r *Record) stringAt(position uint32) string {
	raw := r.rawAt(position)
	if raw == "" || raw[0] != '"' {
		return ""
	}
	value, _ := unquote(raw, span{0, len(raw)})
	return value
}

// rawAt returns the JSON value at a position of the data, or "" if it is absent.
func (r *Record) rawAt(position uint32) string {
	if position == 0 {
		return ""
	}
	return r.data[position:max(int(position), skipValue(r.data, int(position)))]
}

// partialTypeMeta is the TypeMeta of an API server's responses to a metadata client.
var partialTypeMeta = metav1.TypeMeta{APIVersion: metav1.SchemeGroupVersion.String(), Kind: partialObjectMetadata}

var (
	_ runtime.Object = (*Record)(nil)
	_ metav1.Object  = (*Record)(nil)
)
