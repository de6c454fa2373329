package dynamiccontroller_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// answering is an API server over TLS with the objects of any number of types. It supports lists and watches, but no
// streaming lists. Once misbehaves is set, that function answers the requests.
type answering struct {
	*httptest.Server
	misbehaves atomic.Pointer[func(w http.ResponseWriter, r *http.Request) (answered bool)]

	mu      sync.Mutex // guards the fields below
	version int
	objects map[string]int
	history []string
	news    chan struct{} // closed and replaced on each event
	cut     chan struct{} // closed and replaced to end all watches
}

func newAnswering(t *testing.T) *answering {
	t.Helper()
	s := &answering{objects: map[string]int{}, news: make(chan struct{}), cut: make(chan struct{})}
	s.Server = httptest.NewUnstartedServer(s)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections)
	return s
}

func (s *answering) config() *rest.Config {
	return &rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, Timeout: 2 * time.Second}
}

func (s *answering) put(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.objects[name] = s.version
	s.history = append(s.history, `{"type":"ADDED","object":`+s.object(name)+"}\n")
	close(s.news)
	s.news = make(chan struct{})
}

func (s *answering) object(name string) string {
	return fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"namespace":"ns","name":%q,`+
		`"uid":%q,"resourceVersion":"%d"}}`, name, name, s.objects[name])
}

// misbehave ends all watches. From now on, requests are answered by f.
func (s *answering) misbehave(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.misbehaves.Store(&f)
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.cut)
	s.cut = make(chan struct{})
}

func (s *answering) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f := s.misbehaves.Load(); f != nil && (*f)(w, r) {
		return
	}
	switch query := r.URL.Query(); {
	case query.Get("sendInitialEvents") != "":
		answerStatus(w, http.StatusUnprocessableEntity, 0, "streaming lists are disabled")
	case query.Get("watch") != "":
		from, _ := strconv.Atoi(query.Get("resourceVersion"))
		s.watch(w, r, from)
	default:
		s.list(w)
	}
}

func (s *answering) list(w http.ResponseWriter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var items []string
	for _, name := range slices.Sorted(maps.Keys(s.objects)) {
		items = append(items, s.object(name))
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"apiVersion":"example.com/v1","kind":"WidgetList","metadata":{"resourceVersion":"%d"},`+
		`"items":[%s]}`, s.version, strings.Join(items, ","))
}

func (s *answering) watch(w http.ResponseWriter, r *http.Request, from int) {
	w.Header().Set("Content-Type", "application/json")
	s.mu.Lock()
	cut := s.cut
	s.mu.Unlock()
	for {
		_ = http.NewResponseController(w).Flush()
		s.mu.Lock()
		events, news := s.history[from:], s.news
		from = len(s.history)
		s.mu.Unlock()
		for _, event := range events {
			_, _ = fmt.Fprint(w, event)
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-news:
		case <-cut:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func answerStatus(w http.ResponseWriter, code int, retryAfter time.Duration, message string) {
	w.Header().Set("Content-Type", "application/json")
	if retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter/time.Second)))
	}
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(statusOf(code, message))
}

func statusOf(code int, message string) map[string]any {
	reasons := map[int]string{403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed", 410: "Expired",
		429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}
	return map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
		"reason": reasons[code], "message": message}
}

// toWatches returns a function that answers watches only.
func toWatches(answer func(http.ResponseWriter, *http.Request)) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("watch") == "" || r.URL.Query().Get("sendInitialEvents") != "" {
			return false
		}
		answer(w, r)
		return true
	}
}

func watchStatus(code int, retryAfter time.Duration) func(http.ResponseWriter, *http.Request) bool {
	return toWatches(func(w http.ResponseWriter, _ *http.Request) { answerStatus(w, code, retryAfter, "on purpose") })
}

func errorEvent(code int) func(http.ResponseWriter, *http.Request) bool {
	return toWatches(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"type": "ERROR", "object": statusOf(code, "on purpose")})
	})
}

var misbehaviors = map[string]func(http.ResponseWriter, *http.Request) bool{
	"403":                      watchStatus(403, 0),
	"404":                      watchStatus(404, 0),
	"405":                      watchStatus(405, 0),
	"410":                      watchStatus(410, 0),
	"429 with Retry-After 600": watchStatus(429, 10*time.Minute),
	"500":                      watchStatus(500, 0),
	"503 with Retry-After 90":  watchStatus(503, 90*time.Second),
	"error event 403":          errorEvent(403),
	"error event 410":          errorEvent(410),
	"error event 500":          errorEvent(500),
	"closed at once":           toWatches(func(http.ResponseWriter, *http.Request) {}),
	"no headers":               toWatches(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }),
	"not JSON": toWatches(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, "<html>on purpose</html>")
	}),
	"no response to anything": func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true },
	"aborted":                 func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) },
	"incomplete lists, and 410": func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("watch") != "" {
			answerStatus(w, 410, 0, "on purpose")
			return true
		}
		_, _ = fmt.Fprint(w, `{"apiVersion":"example.com/v1","kind":"WidgetList","items":[`)
		return true
	},
}

var widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

// Whatever the server answers, within ten seconds the type is not synced any longer, or the change has arrived.
func TestS5_StateIsTrue(t *testing.T) {
	t.Parallel()
	for name, misbehavior := range misbehaviors {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newAnswering(t)
			requireTrueState(t, s, misbehavior, func() (*dynamiccontroller.DynamicController, error) {
				return dynamiccontroller.NewForConfig(logr.Discard(), dynamiccontroller.Config{}, s.config())
			})
		})
		t.Run(name+", dynamic client", func(t *testing.T) {
			t.Parallel()
			s := newAnswering(t)
			cfg := s.config()
			cfg.Timeout = 0
			requireTrueState(t, s, misbehavior, func() (*dynamiccontroller.DynamicController, error) {
				client, err := dynamic.NewForConfig(cfg)
				return dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{}, client), err
			})
		})
	}
}

func requireTrueState(
	t *testing.T, s *answering, misbehavior func(http.ResponseWriter, *http.Request) bool,
	newController func() (*dynamiccontroller.DynamicController, error),
) {
	t.Helper()
	s.put("before")
	c, err := newController()
	if err != nil {
		t.Fatal(err)
	}
	var reconciled sync.Map
	handle := func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		reconciled.Store(id.Name(), true)
		return nil
	}
	if err := c.StartServingGVK(t.Context(), widgets, handle); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	state := func() dynamiccontroller.TypeState { return c.Status()[0].State }
	within(t, 10*time.Second, func() bool { return state() == dynamiccontroller.TypeSynced })
	s.misbehave(misbehavior)
	s.put("after")
	arrived := func() bool { _, ok := reconciled.Load("after"); return ok }
	within(t, 10*time.Second, func() bool { return arrived() || state() != dynamiccontroller.TypeSynced })
	if status := c.Status()[0]; !arrived() && (status.Message == "" || !status.Synced) {
		t.Errorf("got %+v", status.WatchStatus)
	}
	s.misbehave(func(http.ResponseWriter, *http.Request) bool { return false })
}

func within(t *testing.T, limit time.Duration, done func() bool) {
	t.Helper()
	for began := time.Now(); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > limit {
			t.Fatal("timeout")
		}
	}
}

// A watch needs the goroutine of its loop, and the one of its HTTP/2 stream. The server has one more.
func TestWatch_NeedsTwoGoroutines(t *testing.T) {
	const types = 50
	s := newAnswering(t)
	s.put("a")
	c, err := dynamiccontroller.NewForConfig(logr.Discard(), dynamiccontroller.Config{Workers: 1}, s.config())
	if err != nil {
		t.Fatal(err)
	}
	serve := func(i int) {
		gvr := widgets
		gvr.Resource = fmt.Sprint("widgets", i)
		handle := func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil }
		if err := c.StartServingGVK(t.Context(), gvr, handle); err != nil {
			t.Fatal(err)
		}
	}
	synced := func() bool {
		return !slices.ContainsFunc(c.Status(), func(s dynamiccontroller.TypeStatus) bool {
			return s.State != dynamiccontroller.TypeSynced
		})
	}
	serve(0)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	within(t, 10*time.Second, synced)
	before := runtime.NumGoroutine()
	for i := range types {
		serve(i + 1)
	}
	within(t, 10*time.Second, synced)
	within(t, 10*time.Second, func() bool { return runtime.NumGoroutine()-before <= types*(2+1)+types/10 })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
