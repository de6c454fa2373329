package objects

import (
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/json"
)

// SameContent reports whether both records have the same content. It compares only the parts that both records keep.
// The order of keys does not matter, nor does the TypeMeta of a record that keeps only metadata.
func (r *Record) SameContent(other *Record) bool {
	switch {
	case r == other:
		return true
	case (r.opaque != nil || other.opaque != nil) && r.projection != other.projection:
		return r.SameMetadata(other) // one of them can have managedFields
	case r.opaque != nil || other.opaque != nil:
		return reflect.DeepEqual(r.opaque, other.opaque)
	case r.projection < Full || other.projection < Full:
		return r.SameMetadata(other)
	case r.projection == other.projection:
		return r.header == other.header && sameJSON(r.data, other.data)
	}
	projection := min(r.projection, other.projection)
	a, err := r.encodedAs(projection)
	if err != nil {
		return false
	}
	b, err := other.encodedAs(projection)
	return err == nil && sameJSON(string(a), string(b))
}

// SameMetadata reports whether both objects have the same metadata, ignoring managedFields. If either record has the
// projection Keys, only the fields that Keys keeps are compared.
func (r *Record) SameMetadata(other *Record) bool {
	opaque := r.opaque != nil || other.opaque != nil
	if !opaque && (r.hasKeysOnly() || other.hasKeysOnly()) {
		return r.header == other.header
	}
	if !opaque && r.encodedMetadata() == other.encodedMetadata() {
		return true
	}
	a, err := r.decodeMetadata()
	if err != nil {
		return false
	}
	b, err := other.decodeMetadata()
	return err == nil && equality.Semantic.DeepEqual(a, b)
}

func (r *Record) hasKeysOnly() bool { return r.metadata == 0 && !r.protobuf }

// encodedMetadata returns the metadata in the encoding that the record uses.
func (r *Record) encodedMetadata() string {
	if r.protobuf {
		return r.data
	}
	return r.rawAt(r.metadata)
}

// sameJSON reports whether two JSON values are equal.
func sameJSON(a, b string) bool {
	if a == b {
		return true
	}
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return false
	}
	return reflect.DeepEqual(x, y)
}
