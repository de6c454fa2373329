package memory

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
)

// Transport reserves the memory for responses, if the context of a request has a [Reservation]. If the memory is not
// available, the request fails, although the API server may have processed it. The response to a deletion contains only
// metadata, because clients do not use it.
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
	response, err := t.RoundTripper.RoundTrip(metadataOnly(request, isPage))
	if err != nil || r == nil && t.Reduce == nil && !isPage {
		return response, err
	}
	isPage = isPage && response.StatusCode < http.StatusMultipleChoices
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
	if t.Reduce != nil && !isPage && response.StatusCode < http.StatusMultipleChoices {
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

// metadataOnly returns a request for the metadata of the affected objects, if the request is a deletion or for a page.
// An API server that does not support this sends whole objects.
func metadataOnly(request *http.Request, isPage bool) *http.Request {
	kind := "PartialObjectMetadata"
	if isPage {
		kind += "List"
	} else if request.Method != http.MethodDelete {
		return request
	}
	request = request.Clone(request.Context())
	request.Header.Set("Accept", "application/json;as="+kind+";g=meta.k8s.io;v=v1,application/json")
	return request
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
