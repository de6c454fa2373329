package writes

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// ResultOf must be called before a request is sent. The returned function records the result in the Recorder that the
// context of the request carries, if any. If the request is a write, the function replaces the body of a successful
// response by one that records what was written while the client reads it. The outcome is unknown if there is no
// response or an error of the server, if the response does not contain the object, or if the client does not read it.
// Nothing is recorded if the context has already ended, because the request is then not sent.
func ResultOf(r *http.Request) (record func(response *http.Response, err error)) {
	if From(r.Context()) == nil || r.Context().Err() != nil {
		return func(*http.Response, error) {}
	}
	return func(response *http.Response, err error) {
		switch {
		case err != nil, response.StatusCode >= http.StatusInternalServerError:
			recordLost(r) // it can have been executed
		case isSuccess(response.StatusCode) && response.Body != nil:
			response.Body = observe(r, response)
		}
	}
}

func isSuccess(status int) bool {
	return status >= http.StatusOK && status < http.StatusMultipleChoices
}

// observe returns the body of a successful response, which records what was written.
func observe(r *http.Request, response *http.Response) io.ReadCloser {
	t, ok := TargetOf(r)
	if !ok {
		return response.Body
	}
	isDelete := r.Method == http.MethodDelete
	parser := newParser(response.Header.Get("Content-Type"))
	if parser == nil || response.Header.Get("Content-Encoding") != "" || t.Name == "" && isDelete {
		recordLost(r)
		return response.Body
	}
	return &observedBody{ReadCloser: response.Body, parser: parser, ended: func(o object) {
		if w, ok := o.write(t, isDelete); ok {
			Record(r.Context(), w)
		} else {
			recordLost(r)
		}
	}}
}

// object is what is known about the object in a response: its metadata, or the details of a Status.
type object struct {
	name, uid, version string
	labels             labels.Set
	deleting           bool // has a deletionTimestamp
	finalizers, grace  bool // has finalizers or a grace period, so that a deletion is not over
	detailsUID         string
}

// write returns the write to the target whose response contains the object. It returns false if the response contains
// no object, like that to an eviction, a token or a review.
func (o object) write(t Target, isDelete bool) (Write, bool) {
	w := Write{Server: t.Server, Resource: t.Resource, Namespace: t.Namespace, Name: o.name, UID: types.UID(o.uid)}
	switch {
	case o.version != "":
		w.States = []State{{Version: o.version, Labels: o.labels, Scaled: t.Subresource == "scale"}}
		w.Gone = o.isGone(t.Resource, isDelete)
	case isDelete && o.detailsUID != "":
		w.Name, w.UID, w.Gone = t.Name, types.UID(o.detailsUID), true
	default:
		return Write{}, false
	}
	return w, true
}

// isGone reports whether the object in the response to a write was removed. A request that removes the last finalizer
// is answered with the version before the removal. A namespace has finalizers in its spec.
func (o object) isGone(resource schema.GroupResource, isDelete bool) bool {
	if !o.deleting {
		return isDelete // the last state of a removed object
	}
	return !o.finalizers && !o.grace && resource != schema.GroupResource{Resource: "namespaces"}
}

// objectParser finds the metadata of an encoded object.
type objectParser interface {
	// parse continues with the next part of the object, which can be split anywhere. It returns true when the object is
	// known. It must not be called again afterwards.
	parse(part []byte, last bool) (object, bool)
}

// newParser returns a parser for a media type, or nil.
func newParser(contentType string) objectParser {
	switch mediaType, _, _ := mime.ParseMediaType(contentType); mediaType {
	case runtime.ContentTypeJSON:
		return &jsonObject{}
	case runtime.ContentTypeProtobuf:
		return &protobufObject{}
	default:
		return nil
	}
}

// observedBody calls ended with the object that is read from it, or with an empty object.
type observedBody struct {
	io.ReadCloser
	ended func(object)

	mu     sync.Mutex   // guards parser, because Close can be called during Read
	parser objectParser // nil after ended was called
}

func (b *observedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.received(p[:n], errors.Is(err, io.EOF), err != nil)
	return n, err
}

func (b *observedBody) Close() error {
	b.received(nil, false, true)
	return b.ReadCloser.Close()
}

// received is called with each part of the body. The body is complete after the last part. Otherwise, it can be over
// because of an error, or because the client has closed it.
func (b *observedBody) received(data []byte, last, over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.parser == nil {
		return
	}
	if o, known := b.parser.parse(data, last); known {
		b.parser = nil
		b.ended(o)
	} else if over {
		b.parser = nil
		b.ended(object{})
	}
}
