package recordclient

import (
	"bufio"
	"bytes"
	"encoding/json"
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
	switch token, err := r.stream.Token(); {
	case err != nil:
		return r.notJSON(err)
	case token != json.Delim('{'):
		return fmt.Errorf("expected a list, got %v", token)
	}
	for r.stream.More() {
		name, err := r.stream.Token()
		if err != nil {
			return err
		}
		if err := r.readField(name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	_, err := r.stream.Token() // the closing brace
	return err
}

// notJSON adds the beginning of the response to the error if the response is not JSON.
func (r *jsonList) notJSON(err error) error {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return err
	}
	const excerpt = 100
	start, _ := io.ReadAll(io.LimitReader(r.stream.Buffered(), excerpt))
	return fmt.Errorf("expected a list, got %q: %w", start, err)
}

func (r *jsonList) readField(name json.Token) error {
	var ignored span
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
		return r.stream.read(&ignored)
	}
}

func (r *jsonList) readItems() error {
	if r.hasItems {
		return errors.New("the list has two fields of this name")
	}
	r.hasItems = true
	switch token, err := r.stream.Token(); {
	case err != nil || token == nil: // null means an empty list
		return err
	case token != json.Delim('['):
		return fmt.Errorf("expected an array, got %v", token)
	}
	for r.stream.More() {
		var item span
		if err := r.stream.read(&item); err != nil {
			return err
		}
		r.add(item)
	}
	_, err := r.stream.Token() // the closing bracket
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
	return objects.ParseItem(item, r.projection, metav1.TypeMeta{
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
	switch token, err := r.stream.Token(); {
	case err == nil:
		return fmt.Errorf("unexpected data after the list: %v", token)
	case !errors.Is(err, io.EOF):
		return err
	}
	return nil
}
