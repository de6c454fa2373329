package restmapper

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/internal/testkit"
)

// userFunctions maps each parameter of the package that can contain user code to the case of
// TestUserFunctions_CannotEndAnything that calls it. A new parameter is added here, with a case in which it panics and
// calls runtime.Goexit.
var userFunctions = map[string]string{
	"New.cfg":                  "transport, when it sends",
	"Mapper.Subscribe.f":       "subscriber",
	"Mapper.TypeEvents.notify": "type events",
}

// dataTypes are the types of parameters without user code. Options are created by functions of the package, and loggers
// are trusted.
var dataTypes = []string{
	"...Option", "...string", "ChangeType", "Source", "[]*meta.RESTMapping", "context.Context", "error", "int",
	"logr.Logger", "schema.GroupKind", "schema.GroupVersion", "schema.GroupVersionResource", "string", "time.Duration",
	"time.Time",
}

func TestUserFunctions_HaveCases(t *testing.T) {
	parameters, err := testkit.Parameters(".")
	if err != nil {
		t.Fatal(err)
	}
	for name, typeName := range parameters {
		if userFunctions[name] == "" && !slices.Contains(dataTypes, typeName) {
			t.Errorf("%s %s: add it to userFunctions, with a case in which it panics, or to dataTypes", name, typeName)
		}
	}
	for name, testCase := range userFunctions {
		if parameters[name] == "" || !isCase(testCase) {
			t.Errorf("%s or its case %q does not exist", name, testCase)
		}
	}
}

func isCase(name string) bool {
	_, ok := userFunctionCases[name]
	return ok
}

// userFunctionCases pass functions that misbehave to the mapper and its config.
var userFunctionCases = map[string]func(m *Mapper, misbehave func()){
	"transport, when it sends":         nil,
	"transport, when it reads":         nil,
	"transport, in discovery":          nil,
	"transport, in lists of a refresh": nil,
	"subscriber":                       func(m *Mapper, misbehave func()) { m.Subscribe(func(Change) { misbehave() }) },
	"type events": func(m *Mapper, misbehave func()) {
		m.TypeEvents(func(schema.GroupVersionResource, bool) { misbehave() })
	},
}

// misbehavingTransport misbehaves as its case says.
type misbehavingTransport struct {
	next      http.RoundTripper
	misbehave func()
	where     string
}

func (t misbehavingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	isDiscovery := r.URL.Path == corePath || r.URL.Path == groupsPath
	isRefresh := r.Header.Get("Accept") == acceptMetadata
	switch {
	case strings.HasSuffix(t.where, "sends"),
		isDiscovery && strings.HasSuffix(t.where, "discovery"), isRefresh && strings.HasSuffix(t.where, "refresh"):
		t.misbehave()
	}
	response, err := t.next.RoundTrip(r)
	// A goroutine of client-go reads the responses to watches, and does not recover from panics.
	isWatch := r.URL.Query().Get("watch") != ""
	if err == nil && !isWatch && strings.HasSuffix(t.where, "reads") {
		response.Body = misbehavingBody{response.Body, t.misbehave}
	}
	return response, err
}

type misbehavingBody struct {
	io.ReadCloser
	misbehave func()
}

func (b misbehavingBody) Read(p []byte) (int, error) {
	b.misbehave()
	return b.ReadCloser.Read(p)
}

// Whatever user code does, the process lives, the failure is visible, and the mapper works as soon as the code behaves.
func TestUserFunctions_CannotEndAnything(t *testing.T) {
	for name, prepare := range userFunctionCases {
		for what, f := range map[string]func(){"panic: on purpose": func() { panic("on purpose") },
			"called runtime.Goexit": runtime.Goexit} {
			t.Run(name+", "+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testUserFunction(t, name, prepare, what, f) })
			})
		}
	}
}

func testUserFunction(
	t *testing.T, name string, prepare func(m *Mapper, misbehave func()), want string, f func(),
) {
	var misbehaves atomic.Bool
	misbehaves.Store(true)
	call := func() {
		if misbehaves.Load() {
			f()
		}
	}
	api := newMemoryAPI()
	cfg := api.config()
	if prepare == nil {
		cfg.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
			return misbehavingTransport{next, call, name}
		}
	}
	var mu sync.Mutex
	var logged strings.Builder
	m, err := New(funcr.New(func(_, args string) {
		mu.Lock()
		defer mu.Unlock()
		logged.WriteString(args)
	}, funcr.Options{}), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if prepare != nil {
		prepare(m, call)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	refresh, cancelRefresh := context.WithTimeout(ctx, time.Minute)
	defer cancelRefresh()
	refreshed := m.Refresh(refresh)
	if (refreshed != nil) != (prepare == nil) {
		t.Errorf("Refresh: %v", refreshed)
	}
	synctest.Wait()
	mu.Lock()
	text := fmt.Sprint(logged.String(), refreshed)
	mu.Unlock()
	if !strings.Contains(text, want) {
		t.Errorf("%q is neither in the log nor the result of Refresh: %s", want, text)
	}
	misbehaves.Store(false)
	time.Sleep(time.Minute)
	if err := m.Refresh(ctx); err != nil {
		t.Errorf("Refresh, after the code behaves: %v", err)
	}
	if _, err := m.KindFor(schema.GroupVersionResource{Version: "v1", Resource: "pods"}); err != nil {
		t.Error(err)
	}
	if errs := m.Errors(); len(errs) > 0 {
		t.Errorf("the mapper still reports %v", errs)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
