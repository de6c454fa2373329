package dynamiccontroller_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// maxRead is the time after which a read counts as blocked, also on a busy machine.
const maxRead = 30 * time.Second

// reader is a log sink, and user code of other kinds. In each call, it reads everything that the controller offers, as
// a program does that adds states to its log lines. These tests run in real time, because a goroutine that waits for a
// lock stops the time of a synctest bubble.
type reader struct {
	read func()

	mu      sync.Mutex // guards the fields below
	calls   []string   // the calls that have returned: log lines, and names of functions
	blocked string     // the first call in which a read did not return
	changed chan struct{}
}

func newReader() *reader { return &reader{read: func() {}, changed: make(chan struct{})} }

// logger returns a logger that reads in each call.
func (r *reader) logger() logr.Logger {
	return funcr.New(func(_, args string) { r.call(args) }, funcr.Options{Verbosity: 1})
}

// call reads, and waits for this. After a read that did not return, it reads nothing.
func (r *reader) call(name string) {
	r.mu.Lock()
	blocked := r.blocked != ""
	r.mu.Unlock()
	if !blocked {
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			r.read()
		}()
		select {
		case <-returned:
		case <-time.After(maxRead):
			blocked = true
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, name)
	if blocked && r.blocked == "" {
		r.blocked = name
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

// await waits for n calls whose names contain the text.
func (r *reader) await(t *testing.T, n int, text string) {
	t.Helper()
	over := time.After(2 * maxRead)
	for {
		r.mu.Lock()
		got, changed := 0, r.changed
		for _, call := range r.calls {
			if strings.Contains(call, text) {
				got++
			}
		}
		r.mu.Unlock()
		if got >= n {
			return
		}
		select {
		case <-changed:
		case <-over:
			t.Fatalf("%d calls contain %q, want %d: %q", got, text, n, r.calls)
		}
	}
}

// check fails the test if a read was blocked.
func (r *reader) check(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.blocked != "" {
		t.Errorf("the controller cannot be read during the call %q", r.blocked)
	}
}

type readingMetrics struct {
	dynamiccontroller.NoMetrics
	*reader
}

func (m readingMetrics) Reconciled(dynamiccontroller.Reconcile)  { m.call("Metrics.Reconciled") }
func (m readingMetrics) Synced(dynamiccontroller.Sync)           { m.call("Metrics.Synced") }
func (m readingMetrics) WriteLagged(schema.GroupVersionResource) { m.call("Metrics.WriteLagged") }
func (m readingMetrics) Forget(schema.GroupVersionResource)      { m.call("Metrics.Forget") }

type readingLimiter struct{ *reader }

func (l readingLimiter) NumRequeues(dynamiccontroller.ObjectIdentifiers) int { return 0 }
func (l readingLimiter) Forget(dynamiccontroller.ObjectIdentifiers)          { l.call("limiter.Forget") }
func (l readingLimiter) When(dynamiccontroller.ObjectIdentifiers) time.Duration {
	l.call("limiter.When")
	return time.Microsecond
}

// options returns options with functions that read.
func (r *reader) options(events *events) []dynamiccontroller.Option {
	return []dynamiccontroller.Option{
		dynamiccontroller.WithMetrics(readingMetrics{reader: r}),
		dynamiccontroller.WithParked(func(dynamiccontroller.ObjectIdentifiers) { r.call("parked function") }),
		dynamiccontroller.WithWatchErrors(func(dynamiccontroller.WatchError) { r.call("watch error function") }),
		dynamiccontroller.WithTypeEvents(func(notify func(schema.GroupVersionResource, bool)) func() {
			events.notify = notify
			r.call("type events")
			return func() { r.call("end of type events") }
		}),
	}
}

// readEverything calls all methods of the controller, and of what belongs to it, that only read.
func readEverything(
	c *dynamiccontroller.DynamicController, types []schema.GroupVersionResource,
	registrations ...*dynamiccontroller.EventHandlerRegistration,
) {
	c.TouchLocks()
	c.Status()
	c.AllInformerHaveSynced()
	c.QueueLen()
	c.WatchCount()
	c.Watches().HasSynced()
	c.Watches().HasSyncedShard(0, 1)
	c.ShardLoad(0, 1)
	for _, gvr := range types {
		if lister, err := c.Lister(gvr); err == nil {
			readLister(lister)
		}
		status, _ := c.TypeStatusOf(gvr)
		for _, secondary := range status.Secondaries {
			if lister, err := c.SecondaryLister(gvr, secondary.WatchKey); err == nil {
				readLister(lister)
				_, _ = lister.OwnedBy("uid")
			}
		}
	}
	for _, w := range c.StandaloneWatches() {
		w.Key()
		w.Status()
		w.RunningFunction()
		readLister(w.Lister())
	}
	for _, r := range registrations {
		r.Key()
		r.Status()
		r.RunningFunction()
		r.HasSynced()
		readLister(r.Lister())
	}
}

func readLister(l dynamiccontroller.Lister) {
	_, _ = l.Get("default/a")
	_, _ = l.List(labels.Everything())
	_, _ = l.ByNamespace("default").List(labels.Everything())
	_, _ = l.Objects("default", nil)
	_, _ = l.ByIndex("index", "x")
	for object, err := range l.All("", nil) {
		_, _ = object, err
	}
}

// inRealTime calls run in a goroutine. The function stop cancels the context of run and returns its error.
func inRealTime(run func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- run(ctx) }()
	return func() error {
		cancel()
		return <-result
	}
}

// readers is a fixture whose log sink and user functions read the controller.
type readers struct {
	*fixture
	*reader
	events                            events
	served, child, forbidden, watched schema.GroupVersionResource
}

func newReaders(t *testing.T) *readers {
	r := &readers{reader: newReader()}
	r.fixture = newFixtureWithLogger(t, r.logger(), 4, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1},
		r.options(&r.events)...)
	r.served, r.child, r.forbidden, r.watched = r.types[0], r.types[1], r.types[2], r.types[3]
	r.failLists(r.forbidden, apierrors.NewForbidden(r.forbidden.GroupResource(), "", errOnPurpose))
	return r
}

// start serves a type whose functions log and read in all places. It replaces the options if the type is served.
func (r *readers) start(gvr schema.GroupVersionResource) {
	r.t.Helper()
	handler := func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		switch id.Name() {
		case "panics":
			panic("on purpose")
		case "parked":
			return dynamiccontroller.Terminal(errOnPurpose)
		default:
			return errOnPurpose
		}
	}
	err := r.controller.StartServingGVK(r.t.Context(), gvr, handler,
		dynamiccontroller.WithRateLimiter(readingLimiter{r.reader}),
		dynamiccontroller.WithFlow(func(dynamiccontroller.ObjectIdentifiers) string { panic("on purpose") }),
		dynamiccontroller.WithIndex("index", func(dynamiccontroller.Object) []string { return nil }),
		dynamiccontroller.Owns(r.child),
		dynamiccontroller.Watches(r.child, func(context.Context, dynamiccontroller.Object) []string { panic("on purpose") }),
	)
	if err != nil {
		r.t.Fatal(err)
	}
}

// term runs the controller once, and stops types in it.
func (r *readers) term(n int) {
	r.t.Helper()
	stop := inRealTime(r.controller.Run)
	r.await(r.t, n, "Starting workers")
	for _, name := range []string{"panics", "fails", "parked"} {
		r.write(r.served, name)
	}
	r.write(r.child, "child", r.id(r.served, "fails"))
	r.write(r.watched, "a")
	for _, text := range []string{
		"Handler panicked", "Reconcile failed, will retry", "Reconcile failed, object parked", "parked function",
		"limiter.When", "limiter.Forget", "Flow function panicked", "MapFunc panicked", "Malformed key ignored",
		" of an event handler panicked", "Metrics.Reconciled", "Metrics.Synced",
	} {
		r.await(r.t, n, text)
	}
	r.start(r.child)
	r.start(r.served) // a swap
	if err := r.controller.DrainShard(r.t.Context(), 0, 1); err != nil {
		r.t.Error(err)
	}
	r.controller.ResumeShard(0, 1)
	r.events.notify(r.child, false)
	r.await(r.t, n, "Type is no longer served by the API server")
	for _, gvr := range []schema.GroupVersionResource{r.child, r.served} {
		if err := r.controller.StopServiceGVK(r.t.Context(), gvr); err != nil {
			r.t.Error(err)
		}
	}
	r.await(r.t, 2*n, "Stopped serving")
	r.await(r.t, 2*n, "Metrics.Forget")
	r.start(r.served)
	if err := stop(); err != nil {
		r.t.Error(err)
	}
}

// Nothing is logged, and no user function is called, while the controller holds a lock: log sinks and other functions
// can read the controller.
func TestD5_LogSinksAndUserFunctionsCanReadTheController(t *testing.T) {
	r := newReaders(t)
	registration := addEventHandler(r.fixture, r.watched, dynamiccontroller.EventHandler{
		OnAdd:    func(context.Context, dynamiccontroller.Object, bool) { panic("on purpose") },
		OnUpdate: func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) { panic("on purpose") },
	})
	r.read = func() { readEverything(r.controller, r.types, registration) }
	malformed := []dynamiccontroller.ObjectIdentifiers{{GVR: r.served, NamespacedKey: "a/b/c"}}
	standalone, err := r.controller.StartWatch(r.watched,
		func(context.Context, dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers {
			return malformed
		})
	if err != nil {
		t.Fatal(err)
	}
	r.start(r.served)
	r.start(r.forbidden)
	r.controller.Enqueue(r.id(r.served, "before the run"), r.id(r.child, "not served"))
	stopWatches := inRealTime(r.controller.RunWatches)
	for _, text := range []string{"Watch forbidden, will retry", "watch error function", "type events"} {
		r.await(t, 1, text)
	}
	r.term(1)
	r.term(2)
	for _, err := range []error{standalone.Stop(t.Context()), registration.Remove(t.Context()), stopWatches()} {
		if err != nil {
			t.Error(err)
		}
	}
	r.await(t, 1, "end of type events")
	r.check(t)
}

// A lag of the cache behind an own write is logged and reported without a lock as well.
func TestD5_LogSinksCanReadTheControllerWhenTheCacheLags(t *testing.T) {
	r, l := newReader(), newLagServer(t)
	l.controller = dynamiccontroller.NewDynamicController(r.logger(),
		dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1, MaxWriteLag: time.Millisecond}, l.server,
		dynamiccontroller.WithMetadataClient(l.server.MetadataClient()),
		dynamiccontroller.WithMetrics(readingMetrics{reader: r}))
	r.read = func() {
		readEverything(l.controller, []schema.GroupVersionResource{lagParents, lagChildren, lagOthers})
	}
	l.write = l.createOnce(nil)
	l.serve(dynamiccontroller.Owns(lagChildren))
	stop := inRealTime(l.controller.Run)
	if err := l.controller.WaitForGVRSync(t.Context(), lagParents); err != nil {
		t.Fatal(err)
	}
	release := l.server.HoldWatches(lagChildren)
	l.server.Apply(lagObject(lagParents, "first", nil))
	r.await(t, 1, "A cache lacks a write of a handler")
	r.await(t, 1, "Metrics.WriteLagged")
	release()
	if err := stop(); err != nil {
		t.Error(err)
	}
	r.check(t)
}

// The function of WithFlow assigns objects whose handlers run since an earlier registration. It hangs without a lock of
// the controller.
func TestS3_HungFlowFunctionOfAHandlerThatIsStillRunning(t *testing.T) {
	r := newReader()
	f := newFixtureWithLogger(t, r.logger(), 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
	r.read = func() { readEverything(f.controller, f.types) }
	hung, other, hang, hangFlow := f.types[0], f.types[1], make(chan struct{}), make(chan struct{})
	stop := inRealTime(f.controller.Run)
	r.await(t, 1, "Starting workers")
	running := make(chan struct{})
	handler := func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
		close(running)
		<-hang
		return nil
	}
	cancelled, cancel := context.WithCancel(t.Context())
	if err := f.controller.StartServingGVK(t.Context(), hung, handler); err != nil {
		t.Fatal(err)
	}
	f.controller.Enqueue(f.id(hung, "a"))
	<-running
	time.AfterFunc(time.Millisecond, cancel)
	if err := f.controller.StopServiceGVK(cancelled, hung); !errors.Is(err, dynamiccontroller.ErrStillRunning) {
		t.Errorf("StopServiceGVK returned %v", err)
	}
	started := make(chan error, 1)
	flow := func(dynamiccontroller.ObjectIdentifiers) string {
		r.call("flow function")
		<-hangFlow
		return ""
	}
	go func() {
		started <- f.controller.StartServingGVK(t.Context(), hung, succeed, dynamiccontroller.WithFlow(flow))
	}()
	r.await(t, 1, "flow function")
	r.check(t)
	if !t.Failed() {
		if err := f.controller.StartServingGVK(t.Context(), other, succeed); err != nil {
			t.Error(err)
		}
	}
	close(hangFlow)
	close(hang)
	if err := <-started; err != nil {
		t.Error(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}
