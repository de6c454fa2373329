package replica

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// server is the API server's side of one lease: a record that is replaced only by who knows its version.
type server struct {
	mu      sync.Mutex
	record  *resourcelock.LeaderElectionRecord
	version int
	changes []string // holders, as the lease named them one after another
}

var leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

func (s *server) set(record *resourcelock.LeaderElectionRecord) {
	s.version++
	s.record = record
	holder := "(none)"
	if record != nil {
		holder, _, _ = strings.Cut(record.HolderIdentity, "_")
	}
	if n := len(s.changes); n == 0 || s.changes[n-1] != holder {
		s.changes = append(s.changes, holder)
	}
}

// edit is what someone does with kubectl; a nil record deletes the lease.
func (s *server) edit(change func(r *resourcelock.LeaderElectionRecord) *resourcelock.LeaderElectionRecord) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record != nil {
		copied := *s.record
		s.set(change(&copied))
	}
}

func (s *server) delete() {
	s.edit(func(*resourcelock.LeaderElectionRecord) *resourcelock.LeaderElectionRecord { return nil })
}

func (s *server) give(holder string) {
	s.edit(func(r *resourcelock.LeaderElectionRecord) *resourcelock.LeaderElectionRecord {
		r.HolderIdentity = holder
		return r
	})
}

func (s *server) history() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.changes, " ")
}

func (s *server) now() resourcelock.LeaderElectionRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record == nil {
		return resourcelock.LeaderElectionRecord{}
	}
	return *s.record
}

func (s *server) exists() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record != nil
}

// fakeLease is one replica's client, as resourcelock.LeaseLock is.
type fakeLease struct {
	server   *server
	identity string
	version  int
	requests atomic.Int64
	seen     atomic.Bool // whether an answer came that told of the lease
	meddle   atomic.Pointer[func(ctx context.Context, verb string, do func() error) error]
}

func (l *fakeLease) request(ctx context.Context, verb string, do func() error) error {
	l.requests.Add(1)
	atServer := func() error {
		l.server.mu.Lock()
		defer l.server.mu.Unlock()
		return do()
	}
	if meddle := l.meddle.Load(); meddle != nil {
		return (*meddle)(ctx, verb, atServer)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return atServer()
}

func (l *fakeLease) Get(ctx context.Context) (record *resourcelock.LeaderElectionRecord, raw []byte, err error) {
	err = l.request(ctx, "get", func() error {
		if l.server.record == nil {
			return apierrors.NewNotFound(leases, "lease")
		}
		copied := *l.server.record
		record, l.version = &copied, l.server.version
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	l.seen.Store(true)
	raw, err = json.Marshal(record)
	return record, raw, err
}

func (l *fakeLease) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	version := 0
	err := l.request(ctx, "create", func() error {
		if l.server.record != nil {
			return apierrors.NewAlreadyExists(leases, "lease")
		}
		l.server.set(&record)
		version = l.server.version
		return nil
	})
	if err == nil {
		l.version = version
		l.seen.Store(true)
	}
	return err
}

func (l *fakeLease) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	known, version := l.version, 0
	err := l.request(ctx, "update", func() error {
		switch {
		case l.server.record == nil:
			return apierrors.NewNotFound(leases, "lease")
		case known != l.server.version:
			return apierrors.NewConflict(leases, "lease", errors.New("it was changed"))
		}
		l.server.set(&record)
		version = l.server.version
		return nil
	})
	if err == nil {
		l.version = version
		l.seen.Store(true)
	}
	return err
}

func (l *fakeLease) RecordEvent(string) {}
func (l *fakeLease) Identity() string   { return l.identity }
func (l *fakeLease) Describe() string   { return "fake" }

// fail makes every request fail as it does without an API server, until heal.
func (l *fakeLease) fail() {
	l.set(func(context.Context, string, func() error) error { return errors.New("connection refused") })
}

func (l *fakeLease) set(f func(ctx context.Context, verb string, do func() error) error) {
	l.meddle.Store(&f)
}
func (l *fakeLease) heal() { l.meddle.Store(nil) }

// rig is a replica on such a lease.
type rig struct {
	*Replica
	t     testing.TB
	lease *fakeLease
	ahead atomic.Int64 // of the wall clock
	log   *lines
	wire  *wire
	write func(ctx context.Context) error

	cancel context.CancelFunc
	result func() error
}

func testOptions() Options {
	return Options{LeaseName: "test", LeaseNamespace: "default", LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second,
		RetryPeriod: 500 * time.Millisecond, ShutdownTimeout: 5 * time.Second}
}

func newRig(t testing.TB, s *server, name string, change ...func(*Options)) *rig {
	r := &rig{t: t, log: &lines{}, wire: &wire{}}
	o := testOptions()
	o.Identity, o.Log = name, r.log.logger()
	for _, c := range change {
		c(&o)
	}
	wall := clock{wall: func() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) }}
	var err error
	r.Replica, err = build(&rest.Config{Host: "http://api", Transport: r.wire}, o, func(_ *rest.Config, o Options) (resourcelock.Interface, func(), error) {
		r.lease = &fakeLease{server: s, identity: o.Identity}
		return r.lease, func() {}, nil
	}, wall)
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(r.FencedConfig())
	if err != nil {
		t.Fatal(err)
	}
	r.write = func(ctx context.Context) error { return send(ctx, client, http.MethodPost, nil) }
	return r
}

func send(ctx context.Context, client *http.Client, method string, header http.Header) error {
	request, err := http.NewRequestWithContext(ctx, method, "http://api/x", strings.NewReader("{}"))
	if err != nil {
		return err
	}
	for name, values := range header {
		request.Header[name] = values
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	_, err = io.ReadAll(answer.Body)
	return errors.Join(err, answer.Body.Close())
}

func (r *rig) start() *rig {
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	r.cancel, r.result = cancel, sync.OnceValue(func() error { return <-result })
	go func() { result <- r.Run(ctx) }()
	r.t.Cleanup(func() { _ = r.stop() }) // nothing may be left in the bubble when a test gives up
	return r
}

func (r *rig) stop() error {
	r.cancel()
	return r.result()
}

// crash ends the replica without a release: the lease's client fails from now on, and its goroutines are joined.
func (r *rig) crash() {
	r.lease.fail()
	_ = r.stop()
}

func (r *rig) lead(name string, f func(ctx context.Context) error) {
	r.t.Helper()
	if err := r.Register(name, RunFunc(f)); err != nil {
		r.t.Fatal(err)
	}
}

// worker is a runnable that counts its lives.
type worker struct {
	mu      sync.Mutex
	lives   int
	running int
	told    error // the cause of the last end, when it came
	causes  []error
	terms   []int64
	linger  time.Duration // after its context ended
}

func (w *worker) Run(ctx context.Context) error {
	w.mu.Lock()
	w.lives++
	w.running++
	n, _ := Term(ctx)
	w.terms = append(w.terms, n)
	w.mu.Unlock()
	<-ctx.Done()
	w.mu.Lock()
	w.told = context.Cause(ctx)
	linger := w.linger
	w.mu.Unlock()
	time.Sleep(linger)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running--
	w.causes = append(w.causes, context.Cause(ctx))
	return nil
}

func (w *worker) counts() (lives, running int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lives, w.running
}

// ended is why its context ended last, whether it has returned or not.
func (w *worker) ended() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.told
}

func (w *worker) lastCause() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.causes) == 0 {
		return nil
	}
	return w.causes[len(w.causes)-1]
}

// wire answers requests, or holds them until their context ends.
type wire struct {
	passed atomic.Int64
	hold   atomic.Bool
	body   func(r *http.Request) io.ReadCloser
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.passed.Add(1)
	if w.hold.Load() {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	answer := &http.Response{StatusCode: http.StatusOK, Request: r, Body: http.NoBody}
	if w.body != nil {
		answer.Body = w.body(r)
	}
	return answer, nil
}

// lines is a log that tests can read.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) logger() logr.Logger {
	return funcr.New(func(prefix, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all = append(l.all, prefix+" "+args)
	}, funcr.Options{})
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.all, "\n")
}

func (l *lines) count(what string) int { return strings.Count(l.String(), what) }

func wantNoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantIs(t testing.TB, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("want an error that is %q, got %v", target, err)
	}
}

func wantSays(t testing.TB, err error, words ...string) {
	t.Helper()
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Fatalf("want an error that says %q, got %v", word, err)
		}
	}
}

func wantLives(t testing.TB, w *worker, lives, running int) {
	t.Helper()
	if gotLives, gotRunning := w.counts(); gotLives != lives || gotRunning != running {
		t.Fatalf("want %d lives, %d running, got %d and %d", lives, running, gotLives, gotRunning)
	}
}

var errBroken = fmt.Errorf("broken")
