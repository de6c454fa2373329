package replica

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/election"
)

var leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

type record = resourcelock.LeaderElectionRecord

// fakeServer stores one lease and rejects updates with an outdated version.
type fakeServer struct {
	mu      sync.Mutex // guards the fields below
	record  *record
	version int
	history []string // successive holders
}

func (s *fakeServer) setLocked(r *record) {
	s.version++
	s.record = r
	holder := "(none)"
	if r != nil {
		holder, _, _ = strings.Cut(r.HolderIdentity, "_")
	}
	if n := len(s.history); n == 0 || s.history[n-1] != holder {
		s.history = append(s.history, holder)
	}
}

func (s *fakeServer) set(r *record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setLocked(r)
}

// edit changes the lease as a user would. If change returns nil, the lease is deleted.
func (s *fakeServer) edit(change func(r *record) *record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record != nil {
		copied := *s.record
		s.setLocked(change(&copied))
	}
}

func (s *fakeServer) delete() { s.edit(func(*record) *record { return nil }) }

func (s *fakeServer) setHolder(holder string) {
	s.edit(func(r *record) *record {
		r.HolderIdentity = holder
		return r
	})
}

// release releases the lease on behalf of its holder.
func (s *fakeServer) release() {
	s.edit(func(*record) *record { return &record{LeaseDurationSeconds: 1} })
}

// holders returns the successive holders, without the UIDs of their identities.
func (s *fakeServer) holders() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.history, " ")
}

func (s *fakeServer) lease() record {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record == nil {
		return record{}
	}
	return *s.record
}

func (s *fakeServer) exists() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record != nil
}

// interceptor is called in place of a request for the lease. It can call send to send the request.
type interceptor func(ctx context.Context, verb string, send func() error) error

// fakeLease is the lease client of one replica.
type fakeLease struct {
	server      *fakeServer
	identity    string
	version     int
	requests    atomic.Int64
	seen        atomic.Bool // whether a response contained the lease
	interceptor atomic.Pointer[interceptor]
}

func (l *fakeLease) request(ctx context.Context, verb string, f func() error) error {
	l.requests.Add(1)
	send := func() error {
		l.server.mu.Lock()
		defer l.server.mu.Unlock()
		return f()
	}
	if intercept := l.interceptor.Load(); intercept != nil {
		return (*intercept)(ctx, verb, send)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return send()
}

func (l *fakeLease) Get(ctx context.Context) (r *record, raw []byte, err error) {
	err = l.request(ctx, verbGet, func() error {
		if l.server.record == nil {
			return apierrors.NewNotFound(leases, "lease")
		}
		copied := *l.server.record
		r, l.version = &copied, l.server.version
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	l.seen.Store(true)
	raw, err = json.Marshal(r)
	return r, raw, err
}

func (l *fakeLease) Create(ctx context.Context, r record) error {
	version := 0
	err := l.request(ctx, verbCreate, func() error {
		if l.server.record != nil {
			return apierrors.NewAlreadyExists(leases, "lease")
		}
		l.server.setLocked(&r)
		version = l.server.version
		return nil
	})
	l.written(version, err)
	return err
}

func (l *fakeLease) Update(ctx context.Context, r record) error {
	known, version := l.version, 0
	err := l.request(ctx, verbUpdate, func() error {
		switch {
		case l.server.record == nil:
			return apierrors.NewNotFound(leases, "lease")
		case known != l.server.version:
			return apierrors.NewConflict(leases, "lease", errors.New("it was changed"))
		}
		l.server.setLocked(&r)
		version = l.server.version
		return nil
	})
	l.written(version, err)
	return err
}

func (l *fakeLease) written(version int, err error) {
	if err == nil {
		l.version = version
		l.seen.Store(true)
	}
}

func (l *fakeLease) RecordEvent(string) {}
func (l *fakeLease) Identity() string   { return l.identity }
func (l *fakeLease) Describe() string   { return "fake" }

// intercept makes all requests call f instead, until reconnect is called.
func (l *fakeLease) intercept(f interceptor) { l.interceptor.Store(&f) }

// disconnect makes all requests fail until reconnect is called.
func (l *fakeLease) disconnect() {
	l.intercept(func(context.Context, string, func() error) error { return errors.New("connection refused") })
}

// hang makes all requests block until their contexts are cancelled. It applies until reconnect is called.
func (l *fakeLease) hang() {
	l.intercept(func(ctx context.Context, _ string, _ func() error) error {
		<-ctx.Done()
		return ctx.Err()
	})
}

// reject makes requests with the verb fail until reconnect is called.
func (l *fakeLease) reject(verb string, err error) {
	l.intercept(func(_ context.Context, v string, send func() error) error {
		if v == verb {
			return err
		}
		return send()
	})
}

func (l *fakeLease) reconnect() { l.interceptor.Store(nil) }

// fakeTransport answers every request, or blocks it until its context ends.
type fakeTransport struct {
	sent  atomic.Int64
	block atomic.Bool
	body  func(r *http.Request) io.ReadCloser // of the response, nil for an empty one
}

func (f *fakeTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	f.sent.Add(1)
	if f.block.Load() {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	response := &http.Response{StatusCode: http.StatusOK, Request: r, Body: http.NoBody}
	if f.body != nil {
		response.Body = f.body(r)
	}
	return response, nil
}

// roundTripperFunc is a function that implements http.RoundTripper.
type roundTripperFunc func(*http.Request) (*http.Response, error)

func (f roundTripperFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// releasedRecord is the record of a lease that was released.
func releasedRecord(transitions int) resourcelock.LeaderElectionRecord {
	return election.Record{Transitions: transitions}.Released(time.Now()).Lock()
}

func isReleased(r *resourcelock.LeaderElectionRecord) bool { return election.FromLock(*r).IsReleased() }
