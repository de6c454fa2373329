package recordclient

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

// maxIdleBuffer is the size of the largest object whose buffer is kept for later events.
const maxIdleBuffer = 64 << 10

// eventDecoder reads the events of a watch, in the encoding that the server has chosen. It implements watch.Decoder.
type eventDecoder struct {
	body       io.ReadCloser
	projection objects.Projection
	events     eventReader // nil before the first event
	// header holds the first byte of the response until the encoding is detected. After that, it holds the length of a
	// protobuf-encoded event. For JSON, it is empty.
	header []byte
}

// eventReader reads the events of a watch in one encoding.
type eventReader interface {
	// next reads the next event. The header contains the bytes of the event that have already been read, if any. Errors
	// from the body are returned unchanged.
	next(header []byte) (watch.EventType, error)
	// record returns the record of the event's object.
	record(objects.Projection) (*objects.Record, error)
	// bookmark returns the event's object, which has only metadata.
	bookmark() (*metav1.PartialObjectMetadata, error)
	// status returns the event's object, which must be a Status.
	status() (*metav1.Status, error)
	// size returns the approximate size of the event's object.
	size() int
	// shrink releases the buffers.
	shrink()
}

func newEventDecoder(body io.ReadCloser, projection objects.Projection) *eventDecoder {
	return &eventDecoder{body: watchBody{body}, projection: projection, header: make([]byte, 1)}
}

// watchBody wraps the response body of a watch request. If the connection is lost for any reason, Read returns
// io.ErrUnexpectedEOF. The StreamWatcher then ends the watch, and the reflector resumes it. For other errors, such as
// "http2: client connection lost", the StreamWatcher would send an ERROR event, and the reflector would relist
// immediately.
type watchBody struct{ io.ReadCloser }

func (b watchBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Decode returns the next event. Errors from the body are returned unchanged, because the StreamWatcher compares them.
func (d *eventDecoder) Decode() (watch.EventType, runtime.Object, error) {
	// An idle watch of protobuf-encoded events waits here. The call chain is short, so that the garbage collector can
	// shrink the goroutine's stack from 8 kB to 4 kB, which it does only if less than a quarter of the stack is in use.
	// With JSON, an idle watch waits in next.
	if _, err := io.ReadFull(d.body, d.header); err != nil {
		return "", nil, err
	}
	if d.events == nil {
		if err := d.detectEncoding(); err != nil {
			return "", nil, err
		}
	}
	eventType, err := d.events.next(d.header)
	if err != nil {
		return "", nil, err
	}
	obj, err := d.object(eventType)
	// A bookmark ends the initial list. Later bookmarks arrive about once a minute.
	if eventType == watch.Bookmark || d.events.size() > maxIdleBuffer {
		d.events.shrink()
	}
	return eventType, obj, err
}

// detectEncoding examines the first byte of the response, because Request.Stream does not return the Content-Type. A
// protobuf-encoded event begins with its length, whose first byte is 0. JSON does not contain this byte. For protobuf,
// detectEncoding also reads the rest of the first event's length.
func (d *eventDecoder) detectEncoding() error {
	if first := d.header; first[0] != 0 {
		d.events = &jsonEvents{stream: newStream(io.MultiReader(bytes.NewReader(first), d.body))}
		d.header = nil
		return nil
	}
	d.events = &protobufEvents{body: d.body}
	d.header = make([]byte, lengthSize)
	_, err := io.ReadFull(d.body, d.header[1:])
	return err
}

func (d *eventDecoder) object(eventType watch.EventType) (obj runtime.Object, err error) {
	switch eventType {
	case watch.Added, watch.Modified, watch.Deleted:
		obj, err = d.events.record(d.projection)
	case watch.Bookmark:
		// A bookmark has no name. The reflector reads its resourceVersion and its annotations.
		obj, err = d.events.bookmark()
	case watch.Error:
		obj, err = d.events.status()
	default:
		return nil, fmt.Errorf("unknown type of watch event: %q", eventType)
	}
	if err != nil {
		return nil, fmt.Errorf("object of %s event: %w", eventType, err)
	}
	return obj, nil
}

// Close closes the response, so that Decode returns.
func (d *eventDecoder) Close() { _ = d.body.Close() }

// jsonEvents reads JSON-encoded events.
type jsonEvents struct {
	stream *stream
	event  struct {
		Type   watch.EventType `json:"type"`
		Object span            `json:"object"`
	}
}

func (e *jsonEvents) next([]byte) (watch.EventType, error) {
	e.event.Type, e.event.Object = "", nil // so that no buffer is kept in memory while the next event is awaited
	err := e.stream.read(&e.event)
	return e.event.Type, err
}

func (e *jsonEvents) record(projection objects.Projection) (*objects.Record, error) {
	return objects.Parse(e.event.Object, projection, metav1.TypeMeta{})
}

func (e *jsonEvents) bookmark() (*metav1.PartialObjectMetadata, error) {
	bookmark := &metav1.PartialObjectMetadata{}
	return bookmark, json.Unmarshal(e.event.Object, bookmark)
}

func (e *jsonEvents) status() (*metav1.Status, error) {
	status := &metav1.Status{}
	err := json.Unmarshal(e.event.Object, status)
	if err == nil && status.Kind != "Status" {
		err = fmt.Errorf("expected a Status, got kind %q", status.Kind)
	}
	return status, err
}

func (e *jsonEvents) size() int { return len(e.event.Object) }

func (e *jsonEvents) shrink() { e.stream.shrink() }
