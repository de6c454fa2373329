package dynamiccontroller_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

var widgetsGVR = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

// serveLists starts a server that answers lists with the items and accepts watches, on which nothing arrives. It
// returns a config for the server and a channel with the User-Agent of each list.
func serveLists(t *testing.T, items ...string) (*rest.Config, <-chan string) {
	t.Helper()
	agents := make(chan string, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch query := r.URL.Query(); {
		case query.Get("sendInitialEvents") != "":
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":422,"reason":"Invalid"}`)
		case query.Get("watch") != "":
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		default:
			agents <- r.UserAgent()
			_, _ = fmt.Fprintf(w, `{"apiVersion":"example.com/v1","items":[%s],"kind":"WidgetList",`+
				`"metadata":{"resourceVersion":"10"}}`, strings.Join(items, ","))
		}
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return &rest.Config{Host: server.URL}, agents
}

func widget(metadata string) string {
	return `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{` + metadata + `}}`
}

func TestS3_UnusableItemsDoNotAffectOtherObjects(t *testing.T) {
	config, _ := serveLists(t,
		widget(`"namespace":"ns","name":"a","uid":"a","resourceVersion":"1"`),
		widget(`"namespace":"ns","uid":"nameless","resourceVersion":"2"`),
		widget(`"namespace":"ns","name":"labels","resourceVersion":"3","labels":{"x":1}`), `null`,
		widget(`"namespace":"ns","name":"b","uid":"b","resourceVersion":"4"`))
	for _, mode := range []dynamiccontroller.CacheMode{dynamiccontroller.CacheMetadata, dynamiccontroller.CacheFull} {
		c, err := dynamiccontroller.NewForConfig(logr.Discard(), dynamiccontroller.Config{}, config)
		if err != nil {
			t.Fatal(err)
		}
		reconciled := make(chan string, 10)
		handle := func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			reconciled <- id.NamespacedKey
			return nil
		}
		if err := c.StartServingGVK(t.Context(), widgetsGVR, handle, dynamiccontroller.WithCache(mode)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		for range 2 {
			select {
			case <-reconciled:
			case <-time.After(30 * time.Second):
				t.Fatalf("not reconciled: %+v", c.Status())
			}
		}
		lister, err := c.Lister(widgetsGVR)
		if err != nil {
			t.Fatal(err)
		}
		if all, err := lister.List(labels.Everything()); err != nil || len(all) != 2 {
			t.Errorf("mode %d: List: %v, %v", mode, all, err)
		}
		if s := c.Status()[0]; s.Unusable != 3 || s.UnusableMessage == "" || !s.Synced || s.Objects != 2 {
			t.Errorf("mode %d: status %+v", mode, s.WatchStatus)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// serveStream starts a server that answers streaming lists with the events, watches with nothing, and plain lists with
// the items.
func serveStream(t *testing.T, events []string, items ...string) *rest.Config {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		query := r.URL.Query()
		if query.Get("watch") == "" {
			_, _ = fmt.Fprintf(w, `{"apiVersion":"example.com/v1","items":[%s],"kind":"WidgetList",`+
				`"metadata":{"resourceVersion":"10"}}`, strings.Join(items, ","))
			return
		}
		if query.Get("sendInitialEvents") != "" {
			_, _ = fmt.Fprintln(w, strings.Join(events, "\n"))
		}
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return &rest.Config{Host: server.URL}
}

// Only a plain list shows which object was deleted.
func TestD3_UnidentifiedDeletionInAStreamingList(t *testing.T) {
	a := widget(`"namespace":"ns","name":"a","uid":"a","resourceVersion":"1"`)
	b := widget(`"namespace":"ns","name":"b","uid":"b","resourceVersion":"2"`)
	events := []string{
		`{"type":"ADDED","object":` + a + `}`, `{"type":"ADDED","object":` + b + `}`,
		`{"type":"DELETED","object":` + widget(`"namespace":"ns","resourceVersion":"3"`) + `}`,
		`{"type":"BOOKMARK","object":` + widget(`"resourceVersion":"3","annotations":{"k8s.io/initial-events-end":"true"}`) +
			`}`,
	}
	config := serveStream(t, events, a)
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	records, err := dynamiccontroller.NewForConfig(logr.Discard(), dynamiccontroller.Config{}, config)
	if err != nil {
		t.Fatal(err)
	}
	decoded := dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{}, client)
	for name, c := range map[string]*dynamiccontroller.DynamicController{"records": records, "decoded": decoded} {
		if err := c.StartServingGVK(t.Context(), widgetsGVR, succeed); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		synced, stop := context.WithTimeout(ctx, 30*time.Second)
		if err := c.WaitForGVRSync(synced, widgetsGVR); err != nil {
			t.Error(err)
		}
		stop()
		s := c.Status()[0]
		if s.Objects != 1 || s.Unusable != 0 || !strings.Contains(s.LastProblem, "cannot be identified") {
			t.Errorf("%s: %+v", name, s.WatchStatus)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// deepWidget returns an object whose JSON has the given depth.
func deepWidget(name string, depth int) string {
	return fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"namespace":"ns","name":%q,"uid":%q,`+
		`"resourceVersion":"11"},"spec":%s%s}`, name, name, strings.Repeat("[", depth-1), strings.Repeat("]", depth-1))
}

// API servers accept objects of a depth of 10,000, which is one more in a watch event. JSON readers in Go accept no
// more. Servers of aggregated APIs can send anything.
func TestD3_ObjectsThatJSONReadersRefuseEndNoWatch(t *testing.T) {
	const maxDepth = 10_000
	broken := strings.Replace(deepWidget("broken", 2), "[", "[NaN", 1)
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		requests.Add(1)
		switch query := r.URL.Query(); {
		case query.Get("sendInitialEvents") != "":
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":422,"reason":"Invalid"}`)
		case query.Get("watch") != "":
			for _, object := range []string{
				deepWidget("deep", maxDepth), deepWidget("too-deep", maxDepth+1), broken, deepWidget("b", 2),
			} {
				_, _ = fmt.Fprintf(w, `{"type":"ADDED","object":%s}`, object)
			}
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		default:
			_, _ = fmt.Fprintf(w, `{"apiVersion":"example.com/v1","items":[%s,%s,%s],"kind":"WidgetList",`+
				`"metadata":{"resourceVersion":"10"}}`, deepWidget("a", maxDepth), deepWidget("listed", maxDepth+1),
				deepWidget("c", 2))
		}
	}))
	defer server.Close()
	defer server.CloseClientConnections()
	logged := &logBuffer{}
	c, err := dynamiccontroller.NewForConfig(logged.logger(0), dynamiccontroller.Config{}, &rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	reconciled := make(chan string, 10)
	handle := func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		lister, err := c.Lister(id.GVR)
		if err == nil {
			_, err = lister.Get(id.NamespacedKey)
		}
		reconciled <- fmt.Sprint(id.Name(), " ", err)
		return dynamiccontroller.Terminal(err)
	}
	if err := c.StartServingGVK(t.Context(), widgetsGVR, handle); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	want := map[string]bool{"a <nil>": true, "b <nil>": true, "c <nil>": true, "deep <nil>": true}
	for n := len(want); n > 0; n-- {
		select {
		case got := <-reconciled:
			if !want[got] {
				t.Errorf("reconciled %q", got)
			}
			delete(want, got)
		case <-time.After(10 * time.Second):
			t.Fatalf("%v not reconciled: %+v", want, c.Status()[0].WatchStatus)
		}
	}
	s := c.Status()[0]
	if s.Unusable != 3 || s.Objects != 4 || s.State != dynamiccontroller.TypeSynced || s.LastProblem != "" {
		t.Errorf("status %+v", s.WatchStatus)
	}
	if !strings.Contains(s.UnusableMessage, "ns/broken: invalid character 'N'") || logged.count("max depth") == 0 {
		t.Errorf("%q is in the status, and the log is %q", s.UnusableMessage, logged.lines)
	}
	if n := requests.Load(); n != 3 {
		t.Errorf("%d requests, want a streaming list, a list and a watch", n)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
