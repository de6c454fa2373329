package recordclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/internal/listwatch"
)

// maxIdleBuffer is the size of the largest object whose buffer is kept for later events.
const maxIdleBuffer = 64 << 10

// events reads the events of a watch, in the encoding that the server has chosen. It implements [listwatch.Stream] in
// the goroutine of its caller.
type events struct {
	body       io.ReadCloser
	projection objects.Projection
	reader     eventReader // nil before the first event
	// header holds the first byte of the response until the encoding is detected. After that, it holds the length of a
	// protobuf-encoded event. For JSON, it is empty.
	header []byte
}

// eventReader reads the events of a watch in one encoding.
type eventReader interface {
	// next reads the next event. The header contains the bytes of the event that have already been read, if any. Errors
	// from the body are returned unchanged.
	next(header []byte) (watch.EventType, error)
	// record returns the record of the event's object, which can be unusable. It returns an error if the object is not
	// encoded as expected.
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

func newEvents(body io.ReadCloser, projection objects.Projection) *events {
	return &events{body: watchBody{body}, projection: projection, header: make([]byte, 1)}
}

// watchBody wraps the response body of a watch request. If the connection is lost for any reason, Read returns
// io.ErrUnexpectedEOF, so that other errors come from a malformed response.
type watchBody struct{ io.ReadCloser }

func (b watchBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Next returns the next event. If the context of the request is cancelled, it returns io.ErrUnexpectedEOF.
func (d *events) Next(context.Context) (watch.Event, error) {
	// An idle watch of protobuf-encoded events waits here. The call chain is short, so that the garbage collector can
	// shrink the goroutine's stack from 8 kB to 4 kB, which it does only if less than a quarter of the stack is in use.
	// With JSON, an idle watch waits in next.
	if _, err := io.ReadFull(d.body, d.header); err != nil {
		return watch.Event{}, err
	}
	return d.read()
}

// read reads an event whose first byte has arrived.
func (d *events) read() (watch.Event, error) {
	if d.reader == nil {
		if err := d.detectEncoding(); err != nil {
			return watch.Event{}, err
		}
	}
	eventType, err := d.reader.next(d.header)
	switch {
	case err == io.EOF || err == io.ErrUnexpectedEOF: //nolint:errorlint // returned unwrapped by the body
		return watch.Event{}, err
	case err != nil:
		return watch.Event{}, malformed(err)
	}
	object, err := d.object(eventType)
	// A bookmark ends the initial list. Later bookmarks arrive about once a minute.
	if eventType == watch.Bookmark || d.reader.size() > maxIdleBuffer {
		d.reader.shrink()
	}
	return watch.Event{Type: eventType, Object: object}, err
}

func malformed(err error) error { return fmt.Errorf("%w: %w", listwatch.ErrMalformed, err) }

// detectEncoding examines the first byte of the response, because Request.Stream does not return the Content-Type. A
// protobuf-encoded event begins with its length, whose first byte is 0. JSON does not contain this byte. For protobuf,
// detectEncoding also reads the rest of the first event's length.
func (d *events) detectEncoding() error {
	if first := d.header; first[0] != 0 {
		d.reader = &jsonEvents{stream: newStream(d.body, first...)}
		d.header = nil
		return nil
	}
	d.reader = &protobufEvents{body: d.body}
	d.header = make([]byte, lengthSize)
	_, err := io.ReadFull(d.body, d.header[1:])
	return err
}

// object returns the object of an event.
func (d *events) object(eventType watch.EventType) (object runtime.Object, err error) {
	switch eventType {
	case watch.Added, watch.Modified, watch.Deleted:
		object, err = d.reader.record(d.projection)
	case watch.Bookmark:
		// A bookmark has no name. The loop reads its resourceVersion and its annotations.
		object, err = d.reader.bookmark()
	case watch.Error:
		object, err = d.reader.status()
	default:
		err = fmt.Errorf("unknown type of watch event: %q", eventType)
	}
	if err != nil {
		return nil, malformed(fmt.Errorf("object of %s event: %w", eventType, err))
	}
	return object, nil
}

// Close closes the response.
func (d *events) Close() { _ = d.body.Close() }

// jsonEvents reads JSON-encoded events.
type jsonEvents struct {
	stream *stream
	object []byte // of the event; valid until the next one is read
}

func (e *jsonEvents) next([]byte) (eventType watch.EventType, err error) {
	e.object = nil // so that no buffer is kept in memory while the next event is awaited
	event, err := e.stream.value()
	if err != nil {
		return "", err
	}
	fields := parts(event)
	err = fields.members(func(name string) (err error) {
		switch name {
		case "type":
			var text string
			text, err = fields.text()
			eventType = watch.EventType(text)
		case "object":
			e.object, err = fields.value()
		default:
			_, err = fields.value()
		}
		return err
	})
	if errors.Is(err, io.ErrUnexpectedEOF) { // the event is complete, so that the connection was not lost
		err = errMalformedEvent
	}
	return eventType, err
}

var errMalformedEvent = errors.New("the watch event is not a JSON object")

func (e *jsonEvents) record(projection objects.Projection) (*objects.Record, error) {
	return parseItem(e.object, projection, metav1.TypeMeta{}), nil
}

func (e *jsonEvents) bookmark() (*metav1.PartialObjectMetadata, error) {
	bookmark := &metav1.PartialObjectMetadata{}
	return bookmark, json.Unmarshal(e.object, bookmark)
}

func (e *jsonEvents) status() (*metav1.Status, error) {
	status := &metav1.Status{}
	err := json.Unmarshal(e.object, status)
	if err == nil && status.Kind != "Status" {
		err = fmt.Errorf("expected a Status, got kind %q", status.Kind)
	}
	return status, err
}

func (e *jsonEvents) size() int { return len(e.object) }

func (e *jsonEvents) shrink() { e.stream.shrink() }
