package restmapper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// List reads a list and reduces each object as soon as it is decoded, to save memory. An API server that does not
// support streaming lists may also ignore the limit of a list request, and the schemas of all CRDs together can exceed
// the available memory.
func (w *watcher) List(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	request := w.client.Get().Resource(w.gvr.Resource).VersionedParams(&options, metav1.ParameterCodec)
	body, err := request.Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	list := &metainternalversion.List{}
	if err := w.decodeList(json.NewDecoder(body), list); err != nil {
		return nil, fmt.Errorf("list %s: %w", w.gvr.GroupResource(), err)
	}
	return list, nil
}

func (w *watcher) decodeList(d *json.Decoder, list *metainternalversion.List) error {
	if err := expectDelim(d, '{'); err != nil {
		return err
	}
	kind := ""
	for d.More() {
		field, err := d.Token()
		if err != nil {
			return err
		}
		switch field {
		case "kind":
			err = d.Decode(&kind)
		case "metadata":
			err = d.Decode(&list.ListMeta)
		case "items":
			err = w.decodeItems(d, list)
		default:
			var ignored json.RawMessage
			err = d.Decode(&ignored)
		}
		if err != nil {
			return err
		}
	}
	if err := expectDelim(d, '}'); err != nil {
		return err
	}
	return expectKind(kind, w.gvk.Kind+"List")
}

func (w *watcher) decodeItems(d *json.Decoder, list *metainternalversion.List) error {
	switch begin, err := d.Token(); {
	case err != nil:
		return err
	case begin == nil: // null means an empty list
		return nil
	case begin != json.Delim('['):
		return fmt.Errorf("expected [, got %v", begin)
	}
	for d.More() {
		object := w.newObject()
		if err := d.Decode(object); err != nil {
			return err
		}
		reduced, err := w.reduce(object)
		if err != nil {
			return err
		}
		list.Items = append(list.Items, reduced.(runtime.Object))
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
