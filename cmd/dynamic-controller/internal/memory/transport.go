package memory

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
)

// Transport reserves the memory for responses, if the context of a request has a [Reservation]. If the memory is not
// available, the request fails, although the API server may have processed it.
type Transport struct {
	http.RoundTripper
	// Reduce removes content that is not needed from a response, if it is set. In this case, the Transport must not be
	// used for watches.
	Reduce func(response []byte) []byte
}

// The text of a response exists up to four times until it has been decoded: in the growing buffers of the transport and
// of the client. Afterwards, parts of it can still be referenced.
const copies, copiesAfterwards = 4, 1

// RoundTrip implements [http.RoundTripper].
func (t Transport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(request)
	r := FromContext(request.Context())
	if err != nil || r == nil && t.Reduce == nil {
		return response, err
	}
	text, err := r.read(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		r.Shrink(copies * int64(len(text)))
		return nil, err
	}
	held := copies * int64(len(text))
	if t.Reduce != nil && response.StatusCode < http.StatusMultipleChoices {
		text = t.Reduce(text)
	}
	if err := r.Grow(OfJSON(text)); err != nil {
		r.Shrink(held)
		return nil, err
	}
	response.Body = &body{Reader: bytes.NewReader(text), close: func() {
		r.Shrink(held - copiesAfterwards*int64(len(text)))
	}}
	response.ContentLength = int64(len(text))
	return response, nil
}

// WrappedRoundTripper returns the wrapped transport, so that its idle connections can be closed.
func (t Transport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

// read reads a response, and reserves memory for it while it arrives.
func (r *Reservation) read(from io.Reader) (text []byte, err error) {
	const chunk = 32 << 10
	for {
		if cap(text)-len(text) == 0 {
			text = slices.Grow(text, max(len(text), chunk))
		}
		n, err := from.Read(text[len(text):min(cap(text), len(text)+chunk)])
		text = text[:len(text)+n]
		if grown := r.Grow(copies * int64(n)); grown != nil {
			return text[:len(text)-n], grown
		}
		if err == io.EOF {
			return text, nil
		}
		if err != nil {
			return text, err
		}
	}
}

type body struct {
	*bytes.Reader
	close func()
}

func (b *body) Close() error {
	if b.close != nil {
		b.close()
		b.close = nil
	}
	return nil
}
