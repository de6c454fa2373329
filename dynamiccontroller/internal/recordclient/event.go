package recordclient

import (
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

// eventDecoder reads the events of a watch. It implements watch.Decoder.
type eventDecoder struct {
	body       io.Closer
	stream     *stream
	projection objects.Projection
	event      struct {
		Type   watch.EventType `json:"type"`
		Object span            `json:"object"`
	}
}

func newEventDecoder(body io.ReadCloser, projection objects.Projection) *eventDecoder {
	return &eventDecoder{body: body, stream: newStream(body), projection: projection}
}

// Decode returns the next event. Errors from the stream are returned unchanged, because the caller compares them.
func (d *eventDecoder) Decode() (watch.EventType, runtime.Object, error) {
	d.event.Type, d.event.Object = "", nil // so that no buffer is kept in memory while Decode waits
	if err := d.stream.read(&d.event); err != nil {
		return "", nil, err
	}
	obj, err := d.object()
	// A bookmark ends the initial list. Later bookmarks arrive about once a minute.
	if d.event.Type == watch.Bookmark || len(d.event.Object) > maxIdleBuffer {
		d.stream.shrink()
	}
	return d.event.Type, obj, err
}

func (d *eventDecoder) object() (obj runtime.Object, err error) {
	switch d.event.Type {
	case watch.Added, watch.Modified, watch.Deleted:
		obj, err = objects.Parse(d.event.Object, d.projection, metav1.TypeMeta{})
	case watch.Bookmark:
		// A bookmark has no name. The reflector reads its resourceVersion and its annotations.
		bookmark := &metav1.PartialObjectMetadata{}
		obj, err = bookmark, json.Unmarshal(d.event.Object, bookmark)
	case watch.Error:
		status := &metav1.Status{}
		obj, err = status, json.Unmarshal(d.event.Object, status)
		if err == nil && status.Kind != "Status" {
			err = fmt.Errorf("expected a Status, got kind %q", status.Kind)
		}
	default:
		return nil, fmt.Errorf("unknown type of watch event: %q", d.event.Type)
	}
	if err != nil {
		return nil, fmt.Errorf("object of %s event: %w", d.event.Type, err)
	}
	return obj, nil
}

// Close closes the response, so that Decode returns.
func (d *eventDecoder) Close() { _ = d.body.Close() }
