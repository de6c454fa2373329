package recordclient

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

const (
	// maxValueSize is the maximum size of an object. client-go's watches have the same limit.
	maxValueSize = 16 << 20
	// minBuffer is the size of the buffer of an idle stream.
	minBuffer = 512
	// maxEmptyReads is the number of reads in a row that return neither data nor an error.
	maxEmptyReads = 100
)

var errTooLarge = errors.New("the object is too large")

// stream splits JSON into values. It does not examine what is between the beginning and the end of a value, so that an
// object that JSON readers refuse does not affect the objects after it. For example, json.Decoder refuses an event with
// an object of a depth of 10,000, which API servers accept.
type stream struct {
	body   io.Reader
	buffer []byte
	at     int   // position in the buffer
	err    error // from the body, after the bytes in the buffer
}

// newStream returns a stream of the bytes that have been read from the body, followed by the rest of the body.
func newStream(body io.Reader, read ...byte) *stream { return &stream{body: body, buffer: read} }

// parts returns a stream of a value, so that its parts can be read.
func parts(value []byte) *stream { return &stream{buffer: value, err: io.EOF} }

// next returns the first byte of the next value or delimiter, without reading it. It returns io.EOF at the end.
func (s *stream) next() (byte, error) {
	for {
		for ; s.at < len(s.buffer); s.at++ {
			if c := s.buffer[s.at]; !isSpace(c) {
				return c, nil
			}
		}
		if err := s.fill(); err != nil {
			return 0, err
		}
	}
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

// value reads a value. The result is valid until more is read. At the end of the stream, value returns io.EOF.
func (s *stream) value() ([]byte, error) {
	first, err := s.next()
	if err != nil {
		return nil, err
	}
	if !beginsValue(first) {
		return nil, unexpectedByte(first)
	}
	var b boundary
	for size := 0; ; {
		n, ended := b.find(s.buffer[s.at+size:])
		size += n
		switch {
		case size > maxValueSize:
			return nil, errTooLarge
		case !ended:
			if err = s.fill(); err == nil {
				continue
			}
			if !errors.Is(err, io.EOF) || b.depth > 0 || b.inString {
				return nil, unexpected(err)
			}
		}
		value := s.buffer[s.at : s.at+size]
		s.at += size
		return value, nil
	}
}

// read reads a value and decodes it.
func (s *stream) read(into any) error {
	value, err := s.value()
	if err != nil {
		return err
	}
	return json.Unmarshal(value, into)
}

// text reads a string.
func (s *stream) text() (text string, err error) {
	if c, err := s.next(); err != nil || c != '"' {
		return "", orUnexpectedByte(c, err)
	}
	value, err := s.value()
	if err != nil {
		return "", err
	}
	if bytes.IndexByte(value, '\\') < 0 {
		return string(value[1 : len(value)-1]), nil
	}
	err = json.Unmarshal(value, &text)
	return text, err
}

// members reads an object, and calls member for each of its members. The function must read the value.
func (s *stream) members(member func(name string) error) error {
	return s.elements('{', '}', func() error {
		name, err := s.text()
		if err != nil {
			return err
		}
		if err := s.skip(':'); err != nil {
			return err
		}
		if err := member(name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}

// items reads an array, and calls item for each of its items. The function must read the item.
func (s *stream) items(item func() error) error { return s.elements('[', ']', item) }

func (s *stream) elements(opening, closing byte, element func() error) error {
	if err := s.skip(opening); err != nil {
		return err
	}
	if c, err := s.next(); err != nil || c == closing {
		s.at++
		return unexpected(err)
	}
	for {
		if err := element(); err != nil {
			return unexpected(err)
		}
		switch c, err := s.next(); {
		case err != nil:
			return unexpected(err)
		case c == closing:
			s.at++
			return nil
		case c != ',':
			return unexpectedByte(c)
		}
		s.at++
	}
}

// skip reads a delimiter.
func (s *stream) skip(delimiter byte) error {
	if c, err := s.next(); err != nil || c != delimiter {
		return orUnexpectedByte(c, err)
	}
	s.at++
	return nil
}

func orUnexpectedByte(c byte, err error) error {
	if err != nil {
		return unexpected(err)
	}
	return unexpectedByte(c)
}

func unexpectedByte(c byte) error { return fmt.Errorf("invalid character %q", c) }

// fill reads more bytes from the body. Values that have been returned become invalid.
func (s *stream) fill() error {
	if s.err != nil {
		return s.err
	}
	if s.at > 0 {
		s.buffer = s.buffer[:copy(s.buffer, s.buffer[s.at:])]
		s.at = 0
	}
	if size := len(s.buffer); size == cap(s.buffer) {
		s.buffer = slices.Grow(s.buffer, max(size, minBuffer-size))
	}
	for range maxEmptyReads {
		n, err := s.body.Read(s.buffer[len(s.buffer):cap(s.buffer)])
		s.buffer, s.err = s.buffer[:len(s.buffer)+n], err
		if n > 0 {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

// shrink replaces the buffer, which would otherwise stay as large as the largest value that has been read. Values that
// have been returned stay valid.
func (s *stream) shrink() {
	s.buffer = append(make([]byte, 0, minBuffer), s.buffer[s.at:]...)
	s.at = 0
}

// boundary finds the end of a value. It can receive the value in parts.
type boundary struct {
	depth    int
	inString bool
	escaped  bool // the next byte of the string is escaped
}

// find returns the number of bytes that belong to the value, and whether the value ends with them. The end of a number
// or literal is only known when the next byte has been received.
func (b *boundary) find(data []byte) (n int, ended bool) {
	for i, c := range data {
		switch {
		case b.escaped:
			b.escaped = false
		case b.inString:
			b.escaped = c == '\\'
			if b.inString = c != '"'; !b.inString && b.depth == 0 {
				return i + 1, true
			}
		case c == '"':
			b.inString = true
		case c == '{' || c == '[':
			b.depth++
		case c == '}' || c == ']':
			if b.depth--; b.depth == 0 {
				return i + 1, true
			}
			if b.depth < 0 { // after a number or literal
				return i, true
			}
		case b.depth == 0 && (c == ',' || c == ':' || isSpace(c)):
			return i, true
		}
	}
	return len(data), false
}

func beginsValue(c byte) bool {
	switch c {
	case '{', '[', '"', '-', 't', 'f', 'n':
		return true
	}
	return '0' <= c && c <= '9'
}

// parseItem returns the record of an object. The record is unusable if JSON readers refuse the object.
func parseItem(data []byte, projection objects.Projection, typeMeta metav1.TypeMeta) *objects.Record {
	if len(data) == 0 || json.Valid(data) {
		return objects.ParseItem(data, projection, typeMeta)
	}
	var ignored json.RawMessage
	return objects.RefusedItem(data, json.Unmarshal(data, &ignored))
}
