package recordclient

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

// List is a list of records, or one page of a list.
type List struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []*objects.Record
}

// DeepCopyObject returns a copy of the list. The copy shares the records, because records are immutable.
func (l *List) DeepCopyObject() runtime.Object {
	copied := *l
	l.ListMeta.DeepCopyInto(&copied.ListMeta)
	copied.Items = slices.Clone(l.Items)
	return &copied
}

// readList reads a list from a response, in the encoding that the server has chosen. Each item is parsed as it arrives.
func readList(body io.Reader, projection objects.Projection) (*List, error) {
	buffered := bufio.NewReader(body)
	start, err := buffered.Peek(len(protobufPrefix))
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, err
	case bytes.Equal(start, protobufPrefix):
		return readProtobufList(buffered, projection)
	}
	r := &jsonList{stream: newStream(buffered), projection: projection}
	if err = r.readFields(); err == nil {
		err = r.finish()
	}
	return &r.list, unexpected(err)
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
	list       List
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
		return r.stream.read(&r.list.Kind)
	case "apiVersion":
		return r.stream.read(&r.list.APIVersion)
	case "metadata":
		return r.stream.read(&r.list.ListMeta)
	case "items":
		return r.readItems()
	default:
		return r.stream.read(&ignored)
	}
}

func (r *jsonList) readItems() error {
	r.hasItems, r.list.Items, r.untyped = true, nil, nil
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
		if err := r.add(item); err != nil {
			return err
		}
	}
	_, err := r.stream.Token() // the closing bracket
	return err
}

// add parses an item, or defers it until the list's kind and apiVersion are known. Items of built-in types have neither
// field, so parse derives both from the list. Items of custom resources have both fields. They are parsed immediately,
// because the API server sends the kind of their list after the items. Items that follow a deferred item are deferred
// too, so that the items stay in order.
func (r *jsonList) add(item []byte) error {
	if r.list.APIVersion != "" && len(r.untyped) == 0 {
		err := r.parse(item)
		if err == nil || r.list.Kind != "" {
			return err
		}
	}
	r.untyped = append(r.untyped, bytes.Clone(item))
	return nil
}

// parse appends the record of an item to the list.
func (r *jsonList) parse(item []byte) error {
	record, err := objects.Parse(item, r.projection, metav1.TypeMeta{
		APIVersion: r.list.APIVersion, Kind: strings.TrimSuffix(r.list.Kind, "List"),
	})
	if err != nil {
		return fmt.Errorf("item %d: %w", len(r.list.Items), err)
	}
	r.list.Items = append(r.list.Items, record)
	return nil
}

// finish validates the list, parses the untyped items, and checks that nothing follows the list.
func (r *jsonList) finish() error {
	isList := r.hasItems || strings.HasSuffix(r.list.Kind, "List")
	if !isList || r.list.Kind == "" || r.list.APIVersion == "" {
		return fmt.Errorf("expected a list, got kind %q of %q", r.list.Kind, r.list.APIVersion)
	}
	for i, item := range r.untyped {
		if err := r.parse(item); err != nil {
			return err
		}
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
