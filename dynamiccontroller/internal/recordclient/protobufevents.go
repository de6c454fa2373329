package recordclient

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/internal/wire"
)

// protobufPrefix precedes each object that Kubernetes encodes as protobuf. The prefix is followed by a runtime.Unknown,
// whose field raw is the object. See k8s.io/apimachinery/pkg/runtime/serializer/protobuf.
var protobufPrefix = []byte("k8s\x00")

// Field numbers in k8s.io/apimachinery/pkg/runtime/generated.proto and pkg/apis/meta/v1/generated.proto.
const (
	eventTypeField   = 1 // of WatchEvent
	eventObjectField = 2

	extensionRawField = 1 // of RawExtension

	unknownTypeField = 1 // of Unknown
	unknownRawField  = 2

	typeKindField = 2 // of TypeMeta

	listMetaField  = 1 // of PartialObjectMetadataList
	listItemsField = 2
)

// lengthSize is the size of the header that precedes each protobuf-encoded event. The header contains the length of the
// event.
const lengthSize = 4

// protobufEvents reads protobuf-encoded events.
type protobufEvents struct {
	body   io.Reader
	frame  []byte
	object []byte // the encoded object of the event, which is part of the frame
}

func (e *protobufEvents) next(header []byte) (eventType watch.EventType, err error) {
	if err := e.readFrame(binary.BigEndian.Uint32(header)); err != nil {
		return "", err
	}
	e.object = nil
	event := wire.Read(e.frame)
	for event.Next() {
		switch event.Number {
		case eventTypeField:
			eventType = watch.EventType(event.Value)
		case eventObjectField:
			e.object = event.Value
		}
	}
	if err := event.Err(); err != nil {
		return "", fmt.Errorf("malformed watch event: %w", err)
	}
	return eventType, nil
}

func (e *protobufEvents) readFrame(length uint32) error {
	if length > maxValueSize {
		return errTooLarge
	}
	e.frame = slices.Grow(e.frame[:0], int(length))[:length]
	_, err := io.ReadFull(e.body, e.frame)
	return err
}

func (e *protobufEvents) record(projection objects.Projection) (*objects.Record, error) {
	object, err := e.unwrap("PartialObjectMetadata")
	if err != nil {
		return nil, err
	}
	return objects.ParseProtobufItem(object, projection), nil
}

func (e *protobufEvents) bookmark() (*metav1.PartialObjectMetadata, error) {
	object, err := e.unwrap("PartialObjectMetadata")
	if err != nil {
		return nil, err
	}
	bookmark := &metav1.PartialObjectMetadata{}
	return bookmark, bookmark.Unmarshal(object)
}

func (e *protobufEvents) status() (*metav1.Status, error) {
	object, err := e.unwrap("Status")
	if err != nil {
		return nil, err
	}
	status := &metav1.Status{}
	return status, status.Unmarshal(object)
}

// unwrap removes the messages that enclose the object. The object must have the given kind.
func (e *protobufEvents) unwrap(wantKind string) (object []byte, err error) {
	var encoded, kind []byte
	extension := wire.Read(e.object)
	for extension.Next() {
		if extension.Number == extensionRawField {
			encoded = extension.Value
		}
	}
	encoded, found := bytes.CutPrefix(encoded, protobufPrefix)
	if !found || extension.Err() != nil {
		return nil, errors.New("not a protobuf-encoded object")
	}
	unknown := wire.Read(encoded)
	for unknown.Next() {
		switch unknown.Number {
		case unknownTypeField:
			kind = kindIn(unknown.Value)
		case unknownRawField:
			object = unknown.Value
		}
	}
	switch {
	case unknown.Err() != nil:
		return nil, unknown.Err()
	case string(kind) != wantKind:
		return nil, fmt.Errorf("expected a %s, got kind %q", wantKind, kind)
	}
	return object, nil
}

// kindIn returns the kind in an encoded TypeMeta.
func kindIn(typeMeta []byte) (kind []byte) {
	for fields := wire.Read(typeMeta); fields.Next(); {
		if fields.Number == typeKindField {
			kind = fields.Value
		}
	}
	return kind
}

func (e *protobufEvents) size() int { return len(e.frame) }

func (e *protobufEvents) shrink() { e.frame, e.object = nil, nil }
