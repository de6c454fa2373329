package recordclient_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	goruntime "runtime"
	"strings"
	"testing"
	"testing/iotest"
	"weak"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/recordclient"
)

func partial(name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "a", ResourceVersion: "7", Labels: map[string]string{"text": "grüße"},
		},
	}
}

// protobufObject encodes an object as API servers do.
func protobufObject(t *testing.T, obj runtime.Object) string {
	t.Helper()
	var b bytes.Buffer
	if err := protobuf.NewSerializer(nil, nil).Encode(obj, &b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// protobufFrame encodes an event as API servers do.
func protobufFrame(t *testing.T, eventType watch.EventType, object string) string {
	t.Helper()
	event := metav1.WatchEvent{Type: string(eventType), Object: runtime.RawExtension{Raw: []byte(object)}}
	data, err := event.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return protobufLength(len(data)) + string(data)
}

func protobufLength(n int) string { return string(binary.BigEndian.AppendUint32(nil, uint32(n))) }

func metadataOf(t *testing.T, obj runtime.Object) *metav1.PartialObjectMetadata {
	t.Helper()
	decoded, err := obj.(*objects.Record).Decode(objects.Metadata)
	if err != nil {
		t.Fatal(err)
	}
	return decoded.(*metav1.PartialObjectMetadata)
}

// tracingBody is a response body. When it ends, it records which of this package's functions are on the stack.
type tracingBody struct {
	io.Reader
	stack []string
}

func (b *tracingBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != io.EOF {
		return n, err
	}
	callers := make([]uintptr, 100)
	frames := goruntime.CallersFrames(callers[:goruntime.Callers(2, callers)])
	for {
		frame, more := frames.Next()
		if name, ours := strings.CutPrefix(frame.Function, reflect.TypeFor[recordclient.Clients]().PkgPath()+"."); ours {
			b.stack = append(b.stack, name)
		}
		if !more {
			return n, err
		}
	}
}

// With a deeper call chain, the garbage collector could not shrink the stack.
func TestProtobufWatch_WaitsInNext(t *testing.T) {
	body := &tracingBody{Reader: strings.NewReader(protobufFrame(t, watch.Added, protobufObject(t, partial("one"))))}
	if got := events(t, body, objects.Keys); len(got) != 1 {
		t.Fatalf("got %v", got)
	}
	if diff := cmp.Diff([]string{"watchBody.Read", "(*events).Next"}, body.stack); diff != "" {
		t.Error(diff)
	}
}

func TestProtobufWatch_DeliversEventsInChunksOfAnySize(t *testing.T) {
	types := []watch.EventType{watch.Added, watch.Modified, watch.Deleted}
	body := ""
	for _, eventType := range types {
		body += protobufFrame(t, eventType, protobufObject(t, partial(strings.ToLower(string(eventType)))))
	}
	check := func(body io.Reader) {
		t.Helper()
		got := events(t, body, objects.Metadata)
		if len(got) != len(types) {
			t.Fatalf("got %v", got)
		}
		for i, eventType := range types {
			want := partial(strings.ToLower(string(eventType)))
			if diff := cmp.Diff(want, metadataOf(t, got[i].Object)); diff != "" || got[i].Type != eventType {
				t.Fatalf("got %s: %s", got[i].Type, diff)
			}
		}
	}
	check(iotest.OneByteReader(strings.NewReader(body)))
	for i := range len(body) {
		check(io.MultiReader(strings.NewReader(body[:i]), strings.NewReader(body[i:])))
	}
}

func TestProtobufWatch_ReportsMalformedEventAsError(t *testing.T) {
	object := protobufObject(t, partial("two"))
	pod := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	for name, test := range map[string]struct{ body, want string }{
		"malformed event":    {protobufLength(1) + "\xff", "malformed watch event: unexpected EOF"},
		"unknown type":       {protobufFrame(t, "CREATED", object), "CREATED"},
		"no type":            {protobufLength(0), "unknown type"},
		"no object":          {protobufFrame(t, watch.Added, ""), "object of ADDED event: not a protobuf"},
		"no object field":    {protobufLength(7) + "\x0a\x05ADDED", "object of ADDED event: not a protobuf"},
		"no kind":            {protobufFrame(t, watch.Added, "k8s\x00\x12\x00"), "expected a PartialObjectMetadata"},
		"JSON object":        {protobufFrame(t, watch.Added, widget("two")), "object of ADDED event: not a protobuf"},
		"malformed object":   {protobufFrame(t, watch.Added, object[:len(object)-7]), "ADDED event: unexpected EOF"},
		"whole object":       {protobufFrame(t, watch.Modified, protobufObject(t, pod)), "expected a PartialObjectMetadata"},
		"error not a status": {protobufFrame(t, watch.Error, object), "expected a Status, got kind"},
		"too large":          {protobufLength(17 << 20), "too large"},
	} {
		t.Run(name, func(t *testing.T) {
			got := events(t, strings.NewReader(protobufFrame(t, watch.Added, object)+test.body), objects.Metadata)
			if len(got) != 2 || got[0].Type != watch.Added || got[1].Type != watch.Error {
				t.Fatalf("got %v", got)
			}
			if err := apierrors.FromObject(got[1].Object); !apierrors.IsInternalError(err) || !contains(err, test.want) {
				t.Errorf("got %v, want an internal error that contains %q", err, test.want)
			}
		})
	}
}

func TestProtobufWatch_EndsWithoutErrorWhenConnectionIsCut(t *testing.T) {
	object := protobufObject(t, partial("one"))
	requireEndWithoutError(t, protobufFrame(t, watch.Added, object), objects.Keys)
}

func TestProtobufWatch_DeliversStatusAndBookmark(t *testing.T) {
	bookmark := partial("")
	bookmark.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	status := &metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Message: "too old", Reason: metav1.StatusReasonExpired, Code: http.StatusGone,
	}
	for _, p := range []objects.Projection{objects.Keys, objects.Metadata} {
		got := events(t, strings.NewReader(protobufFrame(t, watch.Bookmark, protobufObject(t, bookmark))+
			protobufFrame(t, watch.Error, protobufObject(t, status))), p)
		wantBookmark, wantStatus := bookmark.DeepCopy(), status.DeepCopy()
		wantBookmark.TypeMeta, wantStatus.TypeMeta = metav1.TypeMeta{}, metav1.TypeMeta{} // are not decoded
		want := []watch.Event{{Type: watch.Bookmark, Object: wantBookmark}, {Type: watch.Error, Object: wantStatus}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("projection %d: %s", p, diff)
		}
	}
}

func TestProtobufWatch_ReleasesLargeBuffers(t *testing.T) {
	large := partial("large")
	large.Annotations = map[string]string{"text": strings.Repeat("x", 1<<20)}
	added := protobufFrame(t, watch.Added, protobufObject(t, large))
	small := protobufFrame(t, watch.Modified, protobufObject(t, partial("small")))
	large.Annotations["text"] = strings.Repeat("x", 30<<10)
	medium := protobufFrame(t, watch.Added, protobufObject(t, large))
	bookmark := protobufFrame(t, watch.Bookmark, protobufObject(t, partial("")))
	for name, frames := range map[string][]string{
		"after a large object":           {added},
		"after a large and small object": {added, small},
		"after a bookmark":               {medium, bookmark},
		"after bookmark and object":      {medium, bookmark, small},
	} {
		body := &buffers{seen: map[weak.Pointer[byte]]int{}}
		for _, f := range frames {
			body.events = append(body.events, strings.NewReader(f))
		}
		if got := events(t, body, objects.Keys); len(got) != len(frames) || body.largest > 1<<10 {
			t.Errorf("%s: got %d events, and a buffer of %d bytes is still in memory", name, len(got), body.largest)
		}
	}
}

func partialList(items ...string) *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"},
		ListMeta: metav1.ListMeta{ResourceVersion: "42", Continue: "more"},
	}
	for _, name := range items {
		list.Items = append(list.Items, *partial(name))
	}
	return list
}

// protobufList reads a list with the projection Metadata.
func protobufList(t *testing.T, body io.Reader) (*received, error) {
	t.Helper()
	client := newClient(t, respond(http.StatusOK, body), widgets, "", objects.Metadata)
	return listWith(t.Context(), client, metav1.ListOptions{})
}

func TestProtobufList_HasTheItemsAndTheMetadata(t *testing.T) {
	for name, items := range map[string][]string{"empty": nil, "two items": {"one", "two"}} {
		want := partialList(items...)
		var streamed bytes.Buffer
		options := protobuf.SerializerOptions{StreamingCollectionsEncoding: true}
		if err := protobuf.NewSerializerWithOptions(nil, nil, options).Encode(want, &streamed); err != nil {
			t.Fatal(err)
		}
		unknownField := "\x2a\x01x" // field 5
		for _, body := range []string{protobufObject(t, want), streamed.String(), streamed.String() + unknownField} {
			got, err := protobufList(t, iotest.OneByteReader(strings.NewReader(body)))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			items := &metav1.PartialObjectMetadataList{TypeMeta: want.TypeMeta, ListMeta: got.ListMeta}
			for _, item := range got.Items {
				items.Items = append(items.Items, *metadataOf(t, item))
			}
			if diff := cmp.Diff(want, items); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	}
}

func TestProtobufList_TruncatedResponseIsAnError(t *testing.T) {
	body := protobufObject(t, partialList("one", "two"))
	list, err := partialList("one", "two").Marshal()
	if err != nil {
		t.Fatal(err)
	}
	end := strings.Index(body, string(list)) + len(list) // only empty fields follow
	cut := errors.New("connection cut")
	for n := range end {
		if got, err := protobufList(t, strings.NewReader(body[:n])); err == nil {
			t.Fatalf("after %d bytes: got %v", n, got)
		}
		broken := io.MultiReader(strings.NewReader(body[:n]), iotest.ErrReader(cut))
		if got, err := protobufList(t, broken); !errors.Is(err, cut) {
			t.Fatalf("after %d bytes: got %v, %v, want %v", n, got, err, cut)
		}
	}
	if got, err := protobufList(t, strings.NewReader(body[:end])); err != nil || len(got.Items) != 2 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestProtobuf_UnusableObjectIsAnUnusableRecord(t *testing.T) {
	got, err := protobufList(t, strings.NewReader(protobufObject(t, partialList("one", "", "two"))))
	if err != nil || len(got.Items) != 3 || got.Items[1].Unusable() == nil || got.Items[2].GetName() != "two" {
		t.Errorf("list: got %v, %v", got, err)
	}
	body := protobufFrame(t, watch.Deleted, protobufObject(t, partial(""))) +
		protobufFrame(t, watch.Added, protobufObject(t, partial("two")))
	received := events(t, strings.NewReader(body), objects.Metadata)
	if len(received) != 2 || received[0].Object.(*objects.Record).Unusable() == nil ||
		received[1].Object.(*objects.Record).Unusable() != nil {
		t.Errorf("watch: got %v", received)
	}
}

func TestProtobufList_UnexpectedResponseIsAnError(t *testing.T) {
	status := &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}}
	valid := protobufObject(t, partialList("one"))
	beforeList := valid[:strings.Index(valid, "List")+len("List")]
	for name, test := range map[string]struct{ body, want string }{
		"a status":          {protobufObject(t, status), `kind "Status"`},
		"an object":         {protobufObject(t, partial("one")), `kind "PartialObjectMetadata"`},
		"nothing":           {"k8s\x00", `kind ""`},
		"no list":           {beforeList, "expected a PartialObjectMetadataList"},
		"a number":          {"k8s\x00\x10\x01", "field 2 has the wire type 0"},
		"a huge item":       {"k8s\x00\x0a\xff\xff\xff\xff\x7f", "too large"},
		"an invalid length": {"k8s\x00\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "too large"},
		"a field too long":  {beforeList + "\x12\x04\x0a\x05\x12\x03abc", "longer than the list"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := protobufList(t, strings.NewReader(test.body))
			if !contains(err, test.want, "widgets.example.com") {
				t.Errorf("got %v and error %v, want an error that contains %q", got, err, test.want)
			}
		})
	}
}

func TestProtobufList_LimitsSizeOfItemsButNotOfList(t *testing.T) {
	list := partialList("one", "two", "three")
	for i := range list.Items {
		list.Items[i].Annotations = map[string]string{"text": strings.Repeat("x", 7<<20)}
	}
	if got, err := protobufList(t, strings.NewReader(protobufObject(t, list))); err != nil || len(got.Items) != 3 {
		t.Errorf("21 MiB of items: got error %v", err)
	}
	list.Items[2].Annotations["text"] = strings.Repeat("x", 17<<20)
	if _, err := protobufList(t, strings.NewReader(protobufObject(t, list))); !contains(err, "too large") {
		t.Errorf("an item of 17 MiB: got error %v", err)
	}
}

// TestClient_DecodesTheStatusOfAFailedRequest covers servers that encode errors in the same way as objects, and servers
// that do not declare the encoding.
func TestClient_DecodesTheStatusOfAFailedRequest(t *testing.T) {
	status := apierrors.NewResourceExpired("why").ErrStatus
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	asJSON, err := json.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	for contentType, body := range map[string]string{
		runtime.ContentTypeProtobuf: protobufObject(t, &status), runtime.ContentTypeJSON: string(asJSON), "": string(asJSON),
	} {
		for name, send := range methods {
			failed := response(http.StatusGone, strings.NewReader(body))
			failed.Header.Set("Content-Type", contentType)
			answer := transport(func(*http.Request) (*http.Response, error) { return failed, nil })
			client := newClient(t, answer, widgets, "", objects.Metadata)
			err := send(t.Context(), client, metav1.ListOptions{})
			if !apierrors.IsResourceExpired(err) || err.Error() != "why" {
				t.Errorf("%s answered with %q: got %v", name, contentType, err)
			}
		}
	}
}
