package recordclient

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

// protobufPrefix precedes each object that Kubernetes encodes as protobuf. The prefix is followed by a runtime.Unknown,
// whose field raw is the object. See k8s.io/apimachinery/pkg/runtime/serializer/protobuf.
var protobufPrefix = []byte("k8s\x00")

// protobufEvents reads events that are encoded as protobuf. Each event is preceded by its length, in four bytes.
type protobufEvents struct {
	body   io.Reader
	length [4]byte
	frame  []byte
	// The buffers in these values are reused for each event.
	event  metav1.WatchEvent
	object runtime.Unknown
}

func (e *protobufEvents) next() (watch.EventType, error) {
	if err := e.readFrame(); err != nil {
		return "", err
	}
	e.event.Type, e.event.Object.Raw = "", e.event.Object.Raw[:0]
	if err := e.event.Unmarshal(e.frame); err != nil {
		return "", fmt.Errorf("malformed watch event: %w", err)
	}
	return watch.EventType(e.event.Type), nil
}

func (e *protobufEvents) readFrame() error {
	if _, err := io.ReadFull(e.body, e.length[:]); err != nil {
		return err
	}
	length := binary.BigEndian.Uint32(e.length[:])
	if length > maxValueSize {
		return errTooLarge
	}
	e.frame = slices.Grow(e.frame[:0], int(length))[:length]
	_, err := io.ReadFull(e.body, e.frame)
	return err
}

func (e *protobufEvents) record(projection objects.Projection) (*objects.Record, error) {
	if err := e.unwrap(); err != nil {
		return nil, err
	}
	if e.object.Kind != "PartialObjectMetadata" {
		return nil, fmt.Errorf("expected a PartialObjectMetadata, got kind %q", e.object.Kind)
	}
	return objects.ParseProtobuf(e.object.Raw, projection)
}

func (e *protobufEvents) decode(into message) error {
	if err := e.unwrap(); err != nil {
		return err
	}
	into.GetObjectKind().SetGroupVersionKind(e.object.GroupVersionKind())
	return into.Unmarshal(e.object.Raw)
}

func (e *protobufEvents) unwrap() error {
	encoded, found := bytes.CutPrefix(e.event.Object.Raw, protobufPrefix)
	if !found {
		return errors.New("not an object that is encoded as protobuf")
	}
	e.object = runtime.Unknown{Raw: e.object.Raw[:0]}
	return e.object.Unmarshal(encoded)
}

func (e *protobufEvents) size() int { return len(e.event.Object.Raw) }

func (e *protobufEvents) shrink() { *e = protobufEvents{body: e.body} }
