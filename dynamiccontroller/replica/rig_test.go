package replica

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/internal/writes"
)

var errBroken = errors.New("broken")

const (
	testLeaseDuration   = 3 * time.Second
	testRetryPeriod     = 500 * time.Millisecond
	testShutdownTimeout = 5 * time.Second

	// maxAcquire is the longest time between a candidate's attempts to acquire the lease. It exceeds RetryPeriod because
	// client-go adds jitter.
	maxAcquire = testRetryPeriod * 22 / 10
	// maxTakeover is the longest time from a leader's last renewal until another replica leads. The candidate can observe
	// the renewal up to maxAcquire late, and can then notice the expiry of the lease up to maxAcquire late.
	maxTakeover = testLeaseDuration + 2*maxAcquire
	// maxReacquire is the longest time that a replica needs to lead again after a loss, not counting the time for which
	// the lease is blocked: RetryPeriod to notice the loss, RetryPeriod with jitter before it campaigns, and maxAcquire.
	maxReacquire = testRetryPeriod + testRetryPeriod*12/10 + maxAcquire
)

func testOptions() Options {
	return Options{
		LeaseName: "test", LeaseNamespace: "default", LeaseDuration: testLeaseDuration, RenewDeadline: 2 * time.Second,
		RetryPeriod: testRetryPeriod, ShutdownTimeout: testShutdownTimeout,
	}
}

func withoutElection(o *Options) { o.LeaderElection = ptr.To(false) }
func stepDown(o *Options)        { o.OnFailure = StepDown }
func exitOnLoss(o *Options)      { o.OnLostLease = ExitOnLoss }

// defaultDurations makes RenewDeadline longer than ShutdownTimeout.
func defaultDurations(o *Options) {
	d := DefaultOptions()
	o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = d.LeaseDuration, d.RenewDeadline, d.RetryPeriod
}

// rig is a Replica with a fake lease, a fake transport and a wall clock that can be set.
type rig struct {
	*Replica
	t         testing.TB
	lease     *fakeLease   // nil without leader election
	ahead     atomic.Int64 // the offset of the wall clock
	log       *logBuffer
	transport *fakeTransport
	write     func(ctx context.Context) error // sends a write through FencedConfig

	cancel context.CancelFunc
	result func() error // waits for Run
}

func newRig(t testing.TB, s *fakeServer, name string, change ...func(*Options)) *rig {
	r := &rig{t: t, log: &logBuffer{}, transport: &fakeTransport{}}
	o := testOptions()
	o.Identity, o.log = name, r.log.logger()
	for _, c := range change {
		c(&o)
	}
	newLease := func(_ *rest.Config, o Options, _ *writes.Ledger) (resourcelock.Interface, *connections, error) {
		r.lease = &fakeLease{server: s, identity: o.Identity}
		return r.lease, nil, nil
	}
	clock := clock{wall: func() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) }}
	var err error
	cfg := &rest.Config{Host: "http://api", Transport: r.transport}
	r.Replica, err = newReplica(cfg, o, backend{lease: newLease}, clock)
	wantNoError(t, err)
	client := r.fencedClient()
	r.write = func(ctx context.Context) error { return send(ctx, client, http.MethodPost, nil) }
	return r
}

func (r *rig) fencedClient() *http.Client {
	r.t.Helper()
	client, err := rest.HTTPClientFor(r.FencedConfig())
	wantNoError(r.t, err)
	return client
}

func send(ctx context.Context, client *http.Client, method string, header http.Header) error {
	request, err := http.NewRequestWithContext(ctx, method, "http://api/x", strings.NewReader("{}"))
	if err != nil {
		return err
	}
	for name, values := range header {
		request.Header[name] = values
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	_, err = io.ReadAll(response.Body)
	return errors.Join(err, response.Body.Close())
}

func (r *rig) start() *rig {
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	r.cancel, r.result = cancel, sync.OnceValue(func() error { return <-result })
	go func() { result <- r.Run(ctx) }()
	r.t.Cleanup(func() { _ = r.stop() }) // no goroutine may outlive a synctest bubble
	return r
}

// stop cancels the context of Run and returns its error.
func (r *rig) stop() error {
	r.cancel()
	return r.result()
}

// crash stops the replica without releasing the lease.
func (r *rig) crash() {
	r.lease.disconnect()
	_ = r.stop()
}

func (r *rig) register(name string, runnable Runnable) {
	r.t.Helper()
	wantNoError(r.t, r.Register(name, runnable, ScopeLeader))
}

func (r *rig) registerFunc(name string, f func(ctx context.Context) error) {
	r.t.Helper()
	r.register(name, RunFunc(f))
}

func (r *rig) registerPerReplica(name string, runnable Runnable) {
	r.t.Helper()
	wantNoError(r.t, r.RegisterWithoutLeaderElection(name, runnable))
}

// worker is a runnable that records its runs.
type worker struct {
	linger time.Duration // the time between the cancellation of its context and its return

	mu          sync.Mutex // guards the fields below
	starts      int
	running     int
	terms       []int64
	cancelledBy error // the cause of the last context that ended
	exitCauses  []error
}

func (w *worker) Run(ctx context.Context) error {
	w.mu.Lock()
	w.starts++
	w.running++
	n, _ := Term(ctx)
	w.terms = append(w.terms, n)
	w.mu.Unlock()
	<-ctx.Done()
	w.mu.Lock()
	w.cancelledBy = context.Cause(ctx)
	linger := w.linger
	w.mu.Unlock()
	time.Sleep(linger)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running--
	w.exitCauses = append(w.exitCauses, context.Cause(ctx))
	return nil
}

func (w *worker) setLinger(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.linger = d
}

func (w *worker) counts() (starts, running int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.starts, w.running
}

func (w *worker) isRunning() bool {
	_, running := w.counts()
	return running > 0
}

// cancelCause returns the cause of the last context that ended, even if the worker has not returned.
func (w *worker) cancelCause() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cancelledBy
}

// exitCause returns the cause of the worker's context at the time when the worker last returned.
func (w *worker) exitCause() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.exitCauses) == 0 {
		return nil
	}
	return w.exitCauses[len(w.exitCauses)-1]
}

// logBuffer keeps log lines.
type logBuffer struct {
	mu    sync.Mutex // guards lines
	lines []string
}

func (l *logBuffer) logger() logr.Logger {
	return funcr.New(func(prefix, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines = append(l.lines, prefix+" "+args)
	}, funcr.Options{})
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

func (l *logBuffer) count(text string) int { return strings.Count(l.String(), text) }

// wantLog fails the test unless the text was logged n times.
func (r *rig) wantLog(n int, text string) {
	r.t.Helper()
	if got := r.log.count(text); got != n {
		r.t.Fatalf("%q was logged %d times, want %d; log:\n%s", text, got, n, r.log)
	}
}

// wantLine fails the test unless a line that contains all texts was logged.
func (r *rig) wantLine(texts ...string) {
	r.t.Helper()
	for line := range strings.Lines(r.log.String()) {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
			return
		}
	}
	r.t.Fatalf("no line contains %q; log:\n%s", texts, r.log)
}

// eventually polls until the condition holds, and returns the time that this took.
func eventually(t testing.TB, limit time.Duration, condition func() bool) time.Duration {
	t.Helper()
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		if condition() {
			return time.Since(began)
		}
		if time.Since(began) > limit {
			t.Fatalf("the condition does not hold after %s", limit)
		}
	}
}

func wantNoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErrorIs(t testing.TB, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got error %v, want one that is or wraps %q", err, target)
	}
}

func wantErrorContains(t testing.TB, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Fatalf("got error %v, want one that contains %q", err, text)
		}
	}
}

// wantStarts fails the test unless the worker was started and is running the given numbers of times.
func wantStarts(t testing.TB, w *worker, starts, running int) {
	t.Helper()
	if gotStarts, gotRunning := w.counts(); gotStarts != starts || gotRunning != running {
		t.Fatalf("got %d starts, %d running; want %d starts, %d running", gotStarts, gotRunning, starts, running)
	}
}

// wantHolder fails the test unless the replica with that name holds the lease. If the name is empty, it fails the test
// if any replica holds the lease.
func wantHolder(t testing.TB, s *fakeServer, name string) {
	t.Helper()
	if holder, _, _ := strings.Cut(s.lease().HolderIdentity, "_"); holder != name {
		t.Fatalf("the lease is held by %q, want %q", holder, name)
	}
}

// wantReleased fails the test unless the lease was released.
func wantReleased(t testing.TB, s *fakeServer) {
	t.Helper()
	if lease := s.lease(); !isReleased(&lease) {
		t.Fatalf("the lease was not released: %+v", lease)
	}
}
