package objects

import (
	"errors"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// ParseProtobuf returns the record of a PartialObjectMetadata that is encoded as protobuf. The projection must be Keys
// or Metadata. With Metadata, the record keeps the metadata as protobuf. The record does not retain data.
//
// If data is malformed, either ParseProtobuf or the methods that decode the record return an error.
func ParseProtobuf(data []byte, projection Projection) (*Record, error) {
	if projection > Metadata {
		return nil, errors.New("a PartialObjectMetadata has only metadata")
	}
	var buffer [1024]byte
	var header [resourceVersionField + 1][]byte
	kept := buffer[:0]
	object := message{rest: data}
	for object.next() {
		if object.field != metadataField {
			continue
		}
		metadata := message{rest: object.value}
		for metadata.next() {
			if int(metadata.field) < len(header) {
				header[metadata.field] = metadata.value
			}
			if projection == Metadata && metadata.field != managedFieldsField {
				kept = append(kept, metadata.raw...)
			}
		}
		object.err = metadata.err
	}
	switch {
	case object.err != nil:
		return nil, object.err
	case len(header[nameField]) == 0:
		return nil, errNoName
	}
	r := &Record{projection: projection, data: string(kept), protobuf: projection == Metadata}
	r.setHeader(header[namespaceField], header[nameField], header[uidField], header[resourceVersionField])
	return r, nil
}

// message iterates over the fields of a protobuf message.
type message struct {
	rest  []byte
	field protowire.Number
	raw   []byte // the current field, including its number
	value []byte // the value of the current field, if it is length-delimited
	err   error
}

// next moves to the next field. It returns false after the last field or if the message is malformed.
func (m *message) next() bool {
	if len(m.rest) == 0 || m.err != nil {
		return false
	}
	field, wireType, tag := protowire.ConsumeTag(m.rest)
	n := tag
	if tag > 0 {
		n = protowire.ConsumeFieldValue(field, wireType, m.rest[tag:])
	}
	if n < 0 {
		m.err = protowire.ParseError(n)
		return false
	}
	m.field, m.raw, m.value = field, m.rest[:tag+n], nil
	if wireType == protowire.BytesType {
		m.value, _ = protowire.ConsumeBytes(m.rest[tag:])
	}
	m.rest = m.rest[len(m.raw):]
	return true
}

// unmarshalMetadata decodes data that is encoded as protobuf.
func (r *Record) unmarshalMetadata() (*metav1.ObjectMeta, error) {
	m := &metav1.ObjectMeta{}
	return m, m.Unmarshal(r.bytes())
}

// unmarshalField decodes one field of data that is encoded as protobuf. If the field is malformed, the result is empty.
func (r *Record) unmarshalField(field protowire.Number) (m metav1.ObjectMeta) {
	metadata := message{rest: r.bytes()}
	for metadata.next() {
		if metadata.field == field && m.Unmarshal(metadata.raw) != nil {
			return metav1.ObjectMeta{}
		}
	}
	return m
}

// bytes returns the data without copying it. The caller must not change it.
func (r *Record) bytes() []byte { return unsafe.Slice(unsafe.StringData(r.data), len(r.data)) }

// findProtobuf finds a label in data that is encoded as protobuf.
func (l *recordLabels) findProtobuf(label string) (value string, exists bool) {
	metadata := message{rest: (*Record)(l).bytes()}
	for metadata.next() {
		if metadata.field != labelsField {
			continue
		}
		var entry [valueField + 1][]byte
		for pair := (message{rest: metadata.value}); pair.next(); {
			if pair.field == keyField || pair.field == valueField {
				entry[pair.field] = pair.value
			}
		}
		if string(entry[keyField]) == label {
			value, exists = string(entry[valueField]), true
		}
	}
	return value, exists
}
