package recordclient

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

// itemFunc is called with the record of each item of a list. The record can be unusable.
type itemFunc func(runtime.Object)

// readList reads a list from a response, in the encoding that the server has chosen, and calls item for each item as it
// arrives.
func readList(body io.Reader, projection objects.Projection, item itemFunc) (metav1.ListMeta, error) {
	buffered := bufio.NewReader(body)
	start, err := buffered.Peek(len(protobufPrefix))
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return metav1.ListMeta{}, err
	case bytes.Equal(start, protobufPrefix):
		return readProtobufList(buffered, projection, item)
	}
	r := &jsonList{stream: newStream(buffered), projection: projection, item: item}
	if err = r.readFields(); err == nil {
		err = r.finish()
	}
	return r.meta, unexpected(err)
}

// listBody wraps the response body of a list. Its errors wrap io.ErrUnexpectedEOF, so that other errors come from a
// malformed response.
type listBody struct{ io.Reader }

func (b listBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("%w: %w", io.ErrUnexpectedEOF, err)
	}
	return n, err
}

// unexpected returns io.ErrUnexpectedEOF instead of io.EOF.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// jsonList reads the fields of a list, in any order.
type jsonList struct {
	stream     *stream
	projection objects.Projection
	item       itemFunc
	kind       string
	apiVersion string
	meta       metav1.ListMeta
	hasItems   bool     // the list has the field items
	untyped    [][]byte // items that cannot be parsed until the list's kind and apiVersion have arrived
}

func (r *jsonList) readFields() error {
	if c, err := r.stream.next(); err != nil || c != '{' {
		return r.notObject(err)
	}
	return r.stream.members(r.readField)
}

// notObject returns an error with the beginning of a response that is not an object.
func (r *jsonList) notObject(err error) error {
	if err != nil {
		return err
	}
	const excerpt = 100
	start := r.stream.buffer[r.stream.at:]
	return fmt.Errorf("expected a list, got %q", start[:min(len(start), excerpt)])
}

func (r *jsonList) readField(name string) error {
	switch name {
	case "kind":
		return r.stream.read(&r.kind)
	case "apiVersion":
		return r.stream.read(&r.apiVersion)
	case "metadata":
		return r.stream.read(&r.meta)
	case "items":
		return r.readItems()
	default:
		_, err := r.stream.value()
		return err
	}
}

func (r *jsonList) readItems() error {
	if r.hasItems {
		return errors.New("the list has two fields of this name")
	}
	r.hasItems = true
	if c, err := r.stream.next(); err != nil || c != '[' {
		return r.readNoItems()
	}
	return r.stream.items(func() error {
		item, err := r.stream.value()
		if err == nil {
			r.add(item)
		}
		return err
	})
}

// readNoItems reads the value null, which means an empty list.
func (r *jsonList) readNoItems() error {
	value, err := r.stream.value()
	if err == nil && string(value) != "null" {
		err = fmt.Errorf("expected an array, got %.100q", value)
	}
	return err
}

// add parses an item, or defers it until the list's kind and apiVersion are known. Items of built-in types have neither
// field, so parse derives both from the list. Items of custom resources have both fields. They are parsed immediately,
// because the API server sends the kind of their list after the items. The order of the items is not kept.
func (r *jsonList) add(item []byte) {
	if r.apiVersion != "" {
		record := r.parse(item)
		if r.kind != "" || !errors.Is(record.Unusable(), objects.ErrNoKind) {
			r.item(record)
			return
		}
	}
	r.untyped = append(r.untyped, bytes.Clone(item))
}

// parse returns the record of an item.
func (r *jsonList) parse(item []byte) *objects.Record {
	return parseItem(item, r.projection, metav1.TypeMeta{
		APIVersion: r.apiVersion, Kind: strings.TrimSuffix(r.kind, "List"),
	})
}

// finish validates the list, parses the untyped items, and checks that nothing follows the list.
func (r *jsonList) finish() error {
	isList := r.hasItems || strings.HasSuffix(r.kind, "List")
	if !isList || r.kind == "" || r.apiVersion == "" {
		return fmt.Errorf("expected a list, got kind %q of %q", r.kind, r.apiVersion)
	}
	for i, item := range r.untyped {
		r.item(r.parse(item))
		r.untyped[i] = nil // release the item
	}
	switch c, err := r.stream.next(); {
	case err == nil:
		return fmt.Errorf("unexpected data after the list: %q", c)
	case !errors.Is(err, io.EOF):
		return err
	}
	return nil
}
