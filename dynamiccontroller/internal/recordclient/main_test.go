package recordclient_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"
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
) listwatch.Client {
	t.Helper()
	return newClientFor(t, &rest.Config{Host: "http://server", QPS: -1}, answer, gvr, namespace, p)
}

func newClientFor(
	t *testing.T, cfg *rest.Config, answer http.RoundTripper,
	gvr schema.GroupVersionResource, namespace string, p objects.Projection,
) listwatch.Client {
	t.Helper()
	source, err := recordclient.NewForConfigAndClient(cfg, &http.Client{Transport: answer})
	if err != nil {
		t.Fatal(err)
	}
	if err := source.Check(p); err != nil {
		t.Fatal(err)
	}
	return source.Client(gvr, namespace, p)
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
func list(t *testing.T, body io.Reader) (*recordclient.List, error) {
	t.Helper()
	response := response(http.StatusOK, nil)
	received := &closer{Reader: body}
	response.Body = received
	answer := transport(func(*http.Request) (*http.Response, error) { return response, nil })
	got, err := newClient(t, answer, widgets, "", objects.Full).List(t.Context(), metav1.ListOptions{})
	if !received.closed {
		t.Error("the response was not closed")
	}
	if err != nil {
		return nil, err
	}
	return got.(*recordclient.List), nil
}

// events opens a watch and returns all its events. The response has the given body.
func events(t *testing.T, body io.Reader, p objects.Projection) (all []watch.Event) {
	t.Helper()
	w, err := newClient(t, respond(http.StatusOK, body), widgets, "", p).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		all = append(all, event)
	}
	return all
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
