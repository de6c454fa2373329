package objects

import (
	"cmp"
	"errors"
	"strings"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/internal/wire"
)

// Field numbers in k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto.
const (
	metadataField = 1 // of PartialObjectMetadata

	nameField            = 1 // of ObjectMeta
	namespaceField       = 3
	uidField             = 5
	resourceVersionField = 6
	labelsField          = 11
	ownerReferencesField = 13
	managedFieldsField   = 17

	keyField   = 1 // of an entry of a map
	valueField = 2
)

// ParseProtobuf returns the record of a protobuf-encoded PartialObjectMetadata. The projection must be Keys or
// Metadata. With Metadata, the record keeps the metadata as protobuf. The record does not retain data.
//
// If data is malformed, either ParseProtobuf or the methods that decode the record return an error.
func ParseProtobuf(data []byte, projection Projection) (*Record, error) {
	r, _, err := readProtobuf(data, projection)
	return r, err
}

// ParseProtobufItem is like ParseProtobuf, but returns an unusable record instead of an error; see [Record.Unusable].
func ParseProtobufItem(data []byte, projection Projection) *Record {
	r, header, err := readProtobuf(data, projection)
	if err == nil {
		return r
	}
	namespace, name := header[namespaceField], header[nameField]
	hasKey := header.complete() && !errors.Is(err, errWireType) && checkKey(namespace, name) == nil
	return newUnusable(err, hasKey, namespace, name, header[uidField], header[resourceVersionField])
}

var errWireType = errors.New("the metadata has a name or a namespace that is not a string")

// protobufHeader holds the fields of the metadata up to resourceVersionField, by number. The entry 0, which is not the
// number of a field, is set if the metadata was read to its end.
type protobufHeader [resourceVersionField + 1][]byte

func (h *protobufHeader) complete() bool { return h[0] != nil }

func readProtobuf(data []byte, projection Projection) (r *Record, header protobufHeader, err error) {
	if projection > Metadata {
		return nil, header, errors.New("a PartialObjectMetadata has only metadata")
	}
	size, invalid := 0, error(nil)
	err = eachField(data, func(number protowire.Number, raw, value []byte) {
		if int(number) < len(header) {
			header[number] = value
			if isKey := number == nameField || number == namespaceField; isKey && value == nil {
				invalid = errWireType
			}
		}
		if number != managedFieldsField {
			size += len(raw)
			if projection != Keys && invalid == nil {
				invalid = checkProtobuf(number, raw, value)
			}
		}
	})
	if err == nil {
		header[0] = []byte{}
		err = cmp.Or(invalid, checkKey(header[namespaceField], header[nameField]))
	}
	if err != nil {
		return nil, header, err
	}
	r = &Record{projection: projection}
	r.setHeader(header[namespaceField], header[nameField], header[uidField], header[resourceVersionField])
	if projection == Metadata {
		var kept strings.Builder
		kept.Grow(size)
		_ = eachField(data, func(number protowire.Number, raw, _ []byte) {
			if number != managedFieldsField {
				kept.Write(raw)
			}
		})
		r.data, r.protobuf = kept.String(), true
	}
	return r, header, nil
}

// eachField calls f for each field of the metadata of an object.
func eachField(object []byte, f func(number protowire.Number, raw, value []byte)) error {
	fields := wire.Read(object)
	for fields.Next() {
		if fields.Number != metadataField {
			continue
		}
		metadata := wire.Read(fields.Value)
		for metadata.Next() {
			f(metadata.Number, metadata.Raw, metadata.Value)
		}
		if err := metadata.Err(); err != nil {
			return err
		}
	}
	return fields.Err()
}

// unmarshalMetadata decodes protobuf-encoded data.
func (r *Record) unmarshalMetadata() (*metav1.ObjectMeta, error) {
	m := &metav1.ObjectMeta{}
	return m, m.Unmarshal(r.bytes())
}

// unmarshalField decodes one field of protobuf-encoded data. If the field is malformed, the result is empty.
func (r *Record) unmarshalField(number protowire.Number) (m metav1.ObjectMeta) {
	metadata := wire.Read(r.bytes())
	for metadata.Next() {
		if metadata.Number == number && m.Unmarshal(metadata.Raw) != nil {
			return metav1.ObjectMeta{}
		}
	}
	return m
}

// bytes returns the data without copying it. The caller must not change it.
func (r *Record) bytes() []byte { return unsafe.Slice(unsafe.StringData(r.data), len(r.data)) }

// findProtobuf finds a label in protobuf-encoded data. The value is not copied.
func (l *recordLabels) findProtobuf(label string) (value string, exists bool) {
	metadata := wire.Read((*Record)(l).bytes())
	for metadata.Next() {
		if metadata.Number != labelsField {
			continue
		}
		var entry [valueField + 1][]byte
		for pair := wire.Read(metadata.Value); pair.Next(); {
			if pair.Number == keyField || pair.Number == valueField {
				entry[pair.Number] = pair.Value
			}
		}
		if found := entry[valueField]; string(entry[keyField]) == label {
			value, exists = unsafe.String(unsafe.SliceData(found), len(found)), true
		}
	}
	return value, exists
}
