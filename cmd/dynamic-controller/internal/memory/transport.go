package memory

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
)

// Transport reserves the memory for responses, if the context of a request has a [Reservation]. If the memory is not
// available, the request fails, although the API server may have processed it. The response to a successful deletion is
// replaced with a Status, because clients do not use it.
type Transport struct {
	http.RoundTripper
	// Reduce removes content that is not needed from a response, if it is set. In this case, the Transport must not be
	// used for watches.
	Reduce func(response []byte) []byte
	// ReduceItem is called for each item of a page, which is a list with a limit. If it is set, the API server sends only
	// the metadata of the items, and a page must no longer be used when the next one is requested: the memory is reserved
	// until then. Reduce is not called for pages.
	ReduceItem func(item []byte) []byte
}

// The text of a response exists up to four times until it has been decoded: in the growing buffers of the transport and
// of the client. Afterwards, parts of it can still be referenced.
const copies, copiesAfterwards = 4, 1

// RoundTrip implements [http.RoundTripper].
func (t Transport) RoundTrip(request *http.Request) (*http.Response, error) {
	r := FromContext(request.Context())
	isPage := t.ReduceItem != nil && request.Method == http.MethodGet && request.URL.Query().Has("limit")
	if isPage {
		r.endPage()
	}
	if isPage {
		request = request.Clone(request.Context())
		request.Header.Set("Accept", onlyMetadata)
	}
	response, err := t.RoundTripper.RoundTrip(request)
	if err != nil || r == nil && t.Reduce == nil && !isPage {
		return response, err
	}
	isSuccess := response.StatusCode < http.StatusMultipleChoices
	if request.Method == http.MethodDelete && isSuccess {
		return withoutContent(response)
	}
	isPage = isPage && isSuccess
	var text []byte
	if isPage {
		text, err = t.readPage(r, response.Body)
	} else {
		text, err = r.read(response.Body)
	}
	held := copies * int64(len(text))
	if err = errors.Join(err, response.Body.Close()); err != nil {
		r.Shrink(held)
		return nil, err
	}
	if t.Reduce != nil && !isPage && isSuccess {
		text = t.Reduce(text)
	}
	decoded := OfJSON(text)
	if err := r.Grow(decoded); err != nil {
		r.Shrink(held)
		return nil, err
	}
	if isPage {
		r.startPage(decoded + copiesAfterwards*int64(len(text)))
	}
	response.Body = &body{Reader: bytes.NewReader(text), close: func() {
		r.Shrink(held - copiesAfterwards*int64(len(text)))
	}}
	response.ContentLength = int64(len(text))
	return response, nil
}

// onlyMetadata requests a list with only the metadata of its items. An API server that does not support this sends
// whole objects.
const onlyMetadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"

// withoutContent replaces the content of a response.
func withoutContent(response *http.Response) (*http.Response, error) {
	const status = `{"kind":"Status","apiVersion":"v1","status":"Success"}`
	_, err := io.Copy(io.Discard, response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return nil, err
	}
	response.Header.Set("Content-Type", "application/json")
	response.Body, response.ContentLength = io.NopCloser(strings.NewReader(status)), int64(len(status))
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
