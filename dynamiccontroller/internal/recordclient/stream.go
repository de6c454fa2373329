package recordclient

import (
	"encoding/json"
	"errors"
	"io"
)

// maxValueSize is the maximum size of an object. client-go's watches have the same limit.
const maxValueSize = 16 << 20

var errTooLarge = errors.New("the object is too large")

// span is a JSON value in the buffer of a stream. It is valid until the next value is read.
type span []byte

// UnmarshalJSON sets the span to data without copying it.
func (s *span) UnmarshalJSON(data []byte) error {
	*s = data
	return nil
}

// stream reads JSON values one after another. Its methods return io.EOF after the last value, and io.ErrUnexpectedEOF
// if the last value is incomplete.
type stream struct {
	*json.Decoder
	source io.Reader
	body   *limitedReader
}

func newStream(body io.Reader) *stream {
	limited := &limitedReader{Reader: body, left: maxValueSize}
	return &stream{Decoder: json.NewDecoder(limited), source: limited, body: limited}
}

// read decodes the next value.
func (s *stream) read(into any) error {
	s.body.left = maxValueSize
	return s.Decode(into)
}

// shrink replaces the buffer, which would otherwise stay as large as the largest value that has been read. Spans become
// invalid.
func (s *stream) shrink() {
	s.source = io.MultiReader(s.Buffered(), s.source)
	s.Decoder = json.NewDecoder(s.source)
}

// limitedReader returns an error once the number of bytes in left has been read.
type limitedReader struct {
	io.Reader
	left int
}

func (r *limitedReader) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, errTooLarge
	}
	n, err := r.Reader.Read(p[:min(len(p), r.left)])
	r.left -= n
	return n, err
}
