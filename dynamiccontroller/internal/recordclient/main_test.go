package recordclient_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/recordclient"
	"github.com/dynamic-controller/engine/internal/listwatch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

// transport answers requests without a network.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// respond returns a transport that responds to each request with the given status and body.
func respond(status int, body io.Reader) transport {
	return func(*http.Request) (*http.Response, error) { return response(status, body), nil }
}

func response(status int, body io.Reader) *http.Response {
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(body),
	}
}

func newClient(
	t *testing.T, answer http.RoundTripper, gvr schema.GroupVersionResource, namespace string, p objects.Projection,
) listwatch.Requests {
	t.Helper()
	return newClientFor(t, &rest.Config{Host: "http://server", QPS: -1}, answer, gvr, namespace, p)
}

func newClientFor(
	t *testing.T, cfg *rest.Config, answer http.RoundTripper,
	gvr schema.GroupVersionResource, namespace string, p objects.Projection,
) listwatch.Requests {
	t.Helper()
	source, err := recordclient.NewForConfigAndClient(cfg, &http.Client{Transport: answer})
	if err != nil {
		t.Fatal(err)
	}
	if err := source.Check(p); err != nil {
		t.Fatal(err)
	}
	return source.Requests(gvr, namespace, p)
}

// received is a list, or a page of it.
type received struct {
	metav1.ListMeta
	Items []*objects.Record
}

func listWith(ctx context.Context, client listwatch.Requests, options metav1.ListOptions) (*received, error) {
	got := &received{}
	m, err := client.List(ctx, listwatch.RequestOptions{ListOptions: options}, func(item runtime.Object) {
		got.Items = append(got.Items, item.(*objects.Record))
	})
	got.ListMeta = m
	return got, err
}

// closer is a response body that records whether it has been closed.
type closer struct {
	io.Reader
	closed bool
}

func (c *closer) Close() error {
	c.closed = true
	return nil
}

// list sends a list request and returns the result. The response has the given body.
func list(t *testing.T, body io.Reader) (*received, error) {
	t.Helper()
	response := response(http.StatusOK, nil)
	closes := &closer{Reader: body}
	response.Body = closes
	answer := transport(func(*http.Request) (*http.Response, error) { return response, nil })
	got, err := listWith(t.Context(), newClient(t, answer, widgets, "", objects.Full), metav1.ListOptions{})
	if !closes.closed {
		t.Error("the response was not closed")
	}
	return got, err
}

// events opens a watch and returns all its events. The response has the given body. A malformed response is returned as
// an event of type ERROR.
func events(t *testing.T, body io.Reader, p objects.Projection) (all []watch.Event) {
	t.Helper()
	client := newClient(t, respond(http.StatusOK, body), widgets, "", p)
	w, err := client.Watch(t.Context(), listwatch.RequestOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for {
		event, err := w.Next(t.Context())
		switch {
		case err == nil:
			all = append(all, event)
		case errors.Is(err, listwatch.ErrMalformed):
			status := apierrors.NewInternalError(err).Status()
			return append(all, watch.Event{Type: watch.Error, Object: &status})
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return all
		default:
			t.Fatal(err)
		}
	}
}

func widget(name string) string {
	return `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"` + name +
		`","namespace":"a","resourceVersion":"7"},"spec":{"text":"grüße, \"世界\" \u00e9"}}`
}

func frame(eventType watch.EventType, object string) string {
	return `{"type":"` + string(eventType) + `","object":` + object + "}"
}

// decode returns the content of a record.
func decode(t *testing.T, obj runtime.Object) map[string]any {
	t.Helper()
	decoded, err := obj.(*objects.Record).Decode(objects.Full)
	if err != nil {
		t.Fatal(err)
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(decoded)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func contains(err error, parts ...string) bool {
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			return false
		}
	}
	return true
}
