package restmapper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/dynamic-controller/engine/internal/listwatch"
)

// List reads a list and passes on each object as soon as it is decoded, to save memory. An API server that does not
// support streaming lists may also ignore the limit of a list request, and the schemas of all CRDs together can exceed
// the available memory.
func (w *watcher) List(
	ctx context.Context, options listwatch.RequestOptions, item func(runtime.Object),
) (metav1.ListMeta, error) {
	body, err := w.request(options).Stream(ctx)
	w.answered(err)
	if err != nil {
		return metav1.ListMeta{}, err
	}
	defer body.Close()
	m, kind, err := decodeList(json.NewDecoder(body), w.newObject, item)
	if err == nil {
		err = expectKind(kind, w.gvk.Kind+"List")
	}
	if err != nil {
		if err = fmt.Errorf("list %s: %w", w.gvr.GroupResource(), err); !errors.Is(err, io.ErrUnexpectedEOF) {
			err = malformed(err)
		}
	}
	return m, err
}

// decodeList returns the metadata and the kind of a list.
func decodeList(
	d *json.Decoder, newObject func() runtime.Object, item func(runtime.Object),
) (m metav1.ListMeta, kind string, err error) {
	if err := expectDelim(d, '{'); err != nil {
		return m, "", err
	}
	for d.More() {
		field, err := d.Token()
		if err != nil {
			return m, "", err
		}
		switch field {
		case "kind":
			err = d.Decode(&kind)
		case "metadata":
			err = d.Decode(&m)
		case "items":
			err = decodeItems(d, newObject, item)
		default:
			var ignored json.RawMessage
			err = d.Decode(&ignored)
		}
		if err != nil {
			return m, "", err
		}
	}
	return m, kind, expectDelim(d, '}')
}

func decodeItems(d *json.Decoder, newObject func() runtime.Object, item func(runtime.Object)) error {
	switch begin, err := d.Token(); {
	case err != nil:
		return err
	case begin == nil: // null means an empty list
		return nil
	case begin != json.Delim('['):
		return fmt.Errorf("expected [, got %v", begin)
	}
	for d.More() {
		object := newObject()
		if err := d.Decode(object); err != nil {
			return err
		}
		item(object)
	}
	return expectDelim(d, ']')
}

// expectDelim reads a delimiter. It returns an error if the body ends before the delimiter.
func expectDelim(d *json.Decoder, delim json.Delim) error {
	token, err := d.Token()
	switch {
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	case err != nil:
		return err
	case token != delim:
		return fmt.Errorf("expected %v, got %v", delim, token)
	}
	return nil
}

// expectKind returns an error if a response has a kind other than the expected one.
func expectKind(kind, expected string) error {
	if kind != expected {
		return fmt.Errorf("expected a response of kind %q, got kind %q", expected, kind)
	}
	return nil
}
