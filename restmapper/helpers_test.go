package restmapper

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/internal/testkit"
)

// running is a mapper that runs until the test ends or stop is called.
type running struct {
	*testing.T
	*Mapper
	api  *fakeAPI
	logs *logs
	stop func()
}

func run(t *testing.T, opts ...Option) *running {
	t.Helper()
	r := newRunning(t, opts...)
	r.start()
	return r
}

// newRunning returns a mapper that has not been started.
func newRunning(t *testing.T, opts ...Option) *running {
	t.Helper()
	return newRunningFor(t, newFakeAPI(), opts...)
}

func newRunningFor(t *testing.T, api *fakeAPI, opts ...Option) *running {
	t.Helper()
	t.Cleanup(api.close)
	l := &logs{}
	m, err := New(l.logger(), api.config(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return &running{T: t, Mapper: m, api: api, logs: l}
}

// inMemory runs the test with a fake clock and a mapper that has not been started.
func inMemory(t *testing.T, test func(r *running)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(newRunningFor(t, newMemoryAPI())) })
}

// pollEvery sets a poll period that can be shorter than the minimum.
func pollEvery(d time.Duration) Option {
	return func(m *Mapper) error {
		m.pollPeriod = d
		return nil
	}
}

// pollSoon is a poll period for tests that wait for polls.
const pollSoon = 10 * time.Millisecond

func (r *running) start() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Mapper.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			r.Error(err)
		}
	})
	r.Cleanup(r.stop)
}

func (r *running) waitFor(gk schema.GroupKind, versions ...string) *meta.RESTMapping {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), testDeadline)
	defer cancel()
	mapping, err := r.WaitForMapping(ctx, gk, versions...)
	if err != nil {
		r.Fatalf("%v; errors: %v", err, r.Errors())
	}
	return mapping
}

func (r *running) eventually(what string, done func() bool) {
	r.Helper()
	testkit.Eventually(r, testDeadline, func() error {
		if done() {
			return nil
		}
		return fmt.Errorf("waiting for %q; errors: %v", what, r.Errors())
	})
}

func (r *running) isMapped(gk schema.GroupKind, versions ...string) bool {
	_, err := r.RESTMapping(gk, versions...)
	return err == nil
}

func (r *running) hasNot(gk schema.GroupKind, versions ...string) func() bool {
	return func() bool {
		_, err := r.RESTMapping(gk, versions...)
		return meta.IsNoMatchError(err)
	}
}

// failure returns the error from a source, or nil. The group is empty for the discovery documents.
func (r *running) failure(source Source, group string) *Error {
	for _, e := range r.Errors() {
		if e.Source == source && (source != SourceDiscovery || e.GroupVersion.Group == group) {
			return &e
		}
	}
	return nil
}

func (r *running) fails(source Source, group string) func() bool {
	return func() bool { return r.failure(source, group) != nil }
}

func (r *running) hasNoErrors() bool { return len(r.Errors()) == 0 }

// logs records the messages that are logged at the default level.
type logs struct {
	mu    sync.Mutex
	lines []string
}

func (l *logs) logger() logr.Logger {
	return funcr.New(func(_, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines = append(l.lines, args)
	}, funcr.Options{})
}

// count returns the number of messages that contain all of the texts.
func (l *logs) count(texts ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		hasAll := true
		for _, text := range texts {
			hasAll = hasAll && strings.Contains(line, text)
		}
		if hasAll {
			n++
		}
	}
	return n
}

var (
	pod        = schema.GroupKind{Kind: "Pod"}
	deployment = schema.GroupKind{Group: "apps", Kind: "Deployment"}
	widget     = schema.GroupKind{Group: "example.com", Kind: "Widget"}
	metric     = schema.GroupKind{Group: "metrics.example.com", Kind: "Metric"}
)

const testDeadline = time.Minute
