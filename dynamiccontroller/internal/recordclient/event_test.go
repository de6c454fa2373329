package recordclient_test

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"weak"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

func TestWatch_DeliversEventsInChunksOfAnySize(t *testing.T) {
	var want []map[string]any
	for _, name := range []string{"one", "two", "three"} {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON([]byte(widget(name))); err != nil {
			t.Fatal(err)
		}
		want = append(want, u.Object)
	}
	check := func(t *testing.T, body io.Reader) {
		t.Helper()
		got := events(t, body, objects.Full)
		if len(got) != len(want) {
			t.Fatalf("got %v", got)
		}
		for i, eventType := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
			if diff := cmp.Diff(want[i], decode(t, got[i].Object)); diff != "" || got[i].Type != eventType {
				t.Fatalf("got %s: %s", got[i].Type, diff)
			}
		}
	}
	reordered := `{"object":` + widget("three") + `,"other":{"type":"x"},"type":"DELETED"}`
	frames := []string{frame(watch.Added, widget("one")), frame(watch.Modified, widget("two")), reordered}
	for name, body := range map[string]string{
		"a newline after each event": strings.Join(frames, "\n") + "\n",
		"nothing between the events": strings.Join(frames, ""),
		"blank lines between events": "\n " + strings.Join(frames, "\r\n\n"),
		"indented":                   strings.ReplaceAll(strings.Join(frames, "\n"), `,"`, ",\n\t\""),
	} {
		t.Run(name, func(t *testing.T) {
			check(t, strings.NewReader(body))
			check(t, iotest.OneByteReader(strings.NewReader(body)))
			for i := range len(body) {
				check(t, io.MultiReader(strings.NewReader(body[:i]), strings.NewReader(body[i:])))
			}
		})
	}
}

func TestWatch_ReportsMalformedEventAsError(t *testing.T) {
	for name, test := range map[string]struct{ body, want string }{
		"not JSON":           {"<html>", "invalid character '<'"},
		"malformed":          {`{"type":]`, "invalid character ']'"},
		"unknown type":       {frame("CREATED", widget("two")), "CREATED"},
		"no type":            {"{}", "unknown type"},
		"error not a status": {frame(watch.Error, widget("two")), "Widget"},
		"error not a map":    {frame(watch.Error, "7"), "ERROR"},
		"too large":          {frame(watch.Added, `"`+strings.Repeat("x", 17<<20)+`"`), "too large"},
	} {
		t.Run(name, func(t *testing.T) {
			got := events(t, strings.NewReader(frame(watch.Added, widget("one"))+"\n"+test.body), objects.Full)
			if len(got) != 2 || got[0].Type != watch.Added || got[1].Type != watch.Error {
				t.Fatalf("got %v", got)
			}
			if err := apierrors.FromObject(got[1].Object); !apierrors.IsInternalError(err) || !contains(err, test.want) {
				t.Errorf("got %v, want an internal error that contains %q", err, test.want)
			}
		})
	}
}

// An unusable object does not end the watch.
func TestWatch_UnusableObjectIsAnUnusableRecord(t *testing.T) {
	for name, body := range map[string]string{
		"no object":        `{"type":"ADDED"}`,
		"null object":      frame(watch.Added, "null"),
		"object not a map": frame(watch.Modified, "7"),
		"no kind":          frame(watch.Modified, `{"metadata":{"name":"a"}}`),
		"no name":          frame(watch.Deleted, `{"kind":"Widget","metadata":{"uid":"u"}}`),
	} {
		first := frame(watch.Added, `{"kind":"Widget","metadata":{"name":"one","resourceVersion":"12"}}`)
		got := events(t, strings.NewReader(first+body+frame(watch.Added, widget("two"))), objects.Full)
		if len(got) != 3 {
			t.Fatalf("%s: got %v", name, got)
		}
		if r := got[1].Object.(*objects.Record); r.Unusable() == nil {
			t.Errorf("%s: the object is usable", name)
		}
		if r := got[2].Object.(*objects.Record); r.Unusable() != nil || r.GetName() != "two" {
			t.Errorf("%s: the next event is %v", name, r)
		}
	}
}

func TestWatch_EndsWithoutErrorWhenConnectionIsCut(t *testing.T) {
	requireEndWithoutError(t, frame(watch.Added, widget("one")), objects.Full)
}

// requireEndWithoutError cuts the connection after each byte of two events, and requires the watch to end without an
// error.
func requireEndWithoutError(t *testing.T, event string, p objects.Projection) {
	t.Helper()
	lost := []error{
		io.EOF, io.ErrUnexpectedEOF, errors.New("read tcp: connection reset by peer"),
		errors.New("http2: client connection lost"), errors.New("stream error: stream ID 7; INTERNAL_ERROR"),
		errors.New("read tcp: no route to host"), fmt.Errorf("read tcp: %w", io.EOF),
	}
	for n := range 2 * len(event) {
		for _, err := range lost {
			body := io.MultiReader(strings.NewReader((event + event)[:n]), iotest.ErrReader(err))
			if got := events(t, body, p); len(got) != n/len(event) || n >= len(event) && got[0].Type != watch.Added {
				t.Fatalf("cut after %d bytes with %v: got %v", n, err, got)
			}
		}
	}
}

func TestWatch_ReportsStatusOfErrorEvent(t *testing.T) {
	status := `{"kind":"Status","apiVersion":"v1","metadata":{},` +
		`"status":"Failure","message":"too old","reason":"Expired","code":410}`
	got := events(t, strings.NewReader(frame(watch.Error, status)), objects.Keys)
	if len(got) != 1 || got[0].Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(got[0].Object)) {
		t.Errorf("got %v", got)
	}
}

func TestWatch_KeepsAnnotationsOfBookmarks(t *testing.T) {
	bookmark := `{"kind":"Widget","apiVersion":"example.com/v1",` +
		`"metadata":{"resourceVersion":"9","creationTimestamp":null,"annotations":{"k8s.io/initial-events-end":"true"}}}`
	for _, p := range []objects.Projection{objects.Keys, objects.Metadata, objects.Full, objects.Complete} {
		got := events(t, strings.NewReader(frame(watch.Bookmark, bookmark)), p)
		if len(got) != 1 || got[0].Type != watch.Bookmark {
			t.Fatalf("projection %d: got %v", p, got)
		}
		bookmark, err := meta.Accessor(got[0].Object)
		if err != nil || bookmark.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" ||
			bookmark.GetResourceVersion() != "9" {
			t.Errorf("projection %d: got %v, %v", p, bookmark, err)
		}
	}
}

// buffers is a response body that returns one event after another. When no events are left, Read records the size of
// the largest buffer that is still in memory, among the buffers that were passed to it.
type buffers struct {
	events  []io.Reader
	seen    map[weak.Pointer[byte]]int
	largest int
}

func (b *buffers) Read(p []byte) (int, error) {
	b.seen[weak.Make(&p[0])] = len(p)
	for len(b.events) > 0 {
		if n, err := b.events[0].Read(p); err == nil {
			return n, nil
		}
		b.events = b.events[1:]
	}
	runtime.GC()
	for buffer, size := range b.seen {
		if buffer.Value() != nil {
			b.largest = max(b.largest, size)
		}
	}
	return 0, io.EOF
}

func TestWatch_ReleasesLargeBuffers(t *testing.T) {
	large := strings.Replace(widget("large"), "grüße", strings.Repeat("x", 1<<20), 1)
	medium := strings.Replace(widget("medium"), "grüße", strings.Repeat("x", 30<<10), 1)
	added := frame(watch.Added, medium)
	bookmark := frame(watch.Bookmark, `{"kind":"Widget","apiVersion":"example.com/v1","metadata":{"resourceVersion":"9"}}`)
	small := frame(watch.Modified, widget("small"))
	for name, test := range map[string]struct {
		events []string
		limit  int
	}{
		"after a large object":           {[]string{frame(watch.Added, large)}, 1 << 10},
		"after a large and small object": {[]string{frame(watch.Added, large), small}, 1 << 10},
		"after a bookmark":               {[]string{added, bookmark}, 1 << 10},
		"after bookmark and object":      {[]string{added, bookmark, small}, 1 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			body := &buffers{seen: map[weak.Pointer[byte]]int{}}
			for _, event := range test.events {
				body.events = append(body.events, strings.NewReader(event))
			}
			if got := events(t, body, objects.Full); len(got) != len(test.events) || body.largest > test.limit {
				t.Errorf("got %d events, and a buffer of %d bytes is still in memory", len(got), body.largest)
			}
		})
	}
}

// An object that JSON readers refuse is unusable, and has the identity that can be read. The watch continues.
func TestWatch_ObjectThatJSONReadersRefuseIsUnusable(t *testing.T) {
	const maxDepth = 10_000
	deep := func(depth int) string {
		return strings.Replace(widget("deep"), `"spec":`, `"spec":`+strings.Repeat("[", depth-1)+strings.Repeat("]", depth-1)+
			`,"x":`, 1)
	}
	for name, test := range map[string]struct {
		object, key, reason string
	}{
		"as deep as JSON readers accept": {deep(maxDepth), "a/deep", ""},
		"too deep":                       {deep(maxDepth + 1), "a/deep", "exceeded max depth"},
		"not a number":                   {strings.Replace(widget("nan"), `"spec":`, `"spec":NaN,"x":`, 1), "a/nan", "'N'"},
		"a bad escape":                   {strings.Replace(widget("bad"), `grüße`, `\x`, 1), "a/bad", "escape"},
		"brackets that do not match":     {strings.Replace(widget("two"), `{"text"`, `["text"`, 1), "a/two", "after array"},
	} {
		body := frame(watch.Added, test.object) + frame(watch.Modified, widget("next"))
		for _, r := range []io.Reader{strings.NewReader(body), iotest.OneByteReader(strings.NewReader(body))} {
			got := events(t, r, objects.Full)
			if len(got) != 2 || got[1].Object.(*objects.Record).Key() != "a/next" {
				t.Fatalf("%s: got %v", name, got)
			}
			first := got[0].Object.(*objects.Record)
			if key, _ := first.Identity(); key != test.key {
				t.Errorf("%s: got the key %q, want %q", name, key, test.key)
			}
			if reason := first.Unusable(); (reason != nil) != (test.reason != "") || reason != nil &&
				!contains(reason, test.reason) {
				t.Errorf("%s: unusable because of %v, want %q", name, reason, test.reason)
			}
		}
		list, err := list(t, strings.NewReader("{"+listType+","+listMeta+`,"items":[`+test.object+","+widget("b")+"]}"))
		if err != nil || len(list.Items) != 2 || (list.Items[0].Unusable() != nil) != (test.reason != "") {
			t.Errorf("%s: got the list %v, %v", name, list, err)
		}
	}
}
