package dynamiccontroller

import (
	"container/list"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/resync"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/protect"
)

// registration represents one served type, from StartServingGVK to StopServiceGVK. It persists across the controller's
// runs and across changes of the type's handler.
type registration struct {
	controller *DynamicController
	gvr        schema.GroupVersionResource
	log        logr.Logger
	// group is not shared with an earlier or later registration of the same GVR, so that a handler that returns late
	// does not affect another registration.
	group group
	// options holds the handler and the options that are in effect.
	options       atomic.Pointer[serveOptions]
	newest        atomic.Pointer[pendingSwap] // the last call to StartServingGVK
	backoff       backoff                     // the default rate limiter
	subscriptions *subscriptionSet
	// resyncs is used only by the goroutine that performs resyncs.
	resyncs resync.Schedule
	// metricsForgotten, if not nil, is closed when Metrics.Forget has returned for an earlier registration.
	metricsForgotten <-chan struct{}
	forgetting       bool // Metrics.Forget has been called; guarded by the controller's lock

	stopped chan struct{} // closed when the registration is closed
	ended   chan struct{} // closed when the registration is closed and no longer in use
	end     sync.Once     // closes ended

	mu sync.Mutex // guards the fields below
	// lifetime is the parent of the handlers' contexts. It is cancelled when the run or the registration ends.
	lifetime      context.Context
	cancel        context.CancelCauseFunc // cancels lifetime
	running       map[string]time.Time    // start times of running handlers, by key
	records       map[string]record
	absentParked  list.List // keys of parked objects that are not in the cache, in the order in which they were parked
	malformedKeys int       // number of malformed keys ignored so far
	active        int       // number of running handlers and background tasks
	closed        bool
}

func newRegistration(c *DynamicController, gvr schema.GroupVersionResource) *registration {
	reg := &registration{
		controller: c,
		gvr:        gvr,
		log:        c.logOf(gvr),
		stopped:    make(chan struct{}),
		ended:      make(chan struct{}),
		running:    map[string]time.Time{},
		records:    map[string]record{},
	}
	reg.backoff = backoff{reg: reg, budget: rate.NewLimiter(retriesPerSecond, retriesBurst)}
	return reg
}

func (r *registration) addBackground(keys []string) {
	for batch := range slices.Chunk(keys, maxBatch) {
		r.group.Add(fairqueue.Background, batch...)
	}
}

// maxBatch limits the number of keys that are added each time the queue is locked.
const maxBatch = 256

// addAfter adds a key to the live lane after d. If the run has already ended, a key that is not in the cache is marked
// as pending instead, so that the next run reconciles it.
func (r *registration) addAfter(key string, d time.Duration) {
	if !r.group.AddAfter(key, d) && !r.subscriptions.primary.View().Store().Has(key) {
		r.markPending(key)
	}
}

// ignoreMalformedKey counts and logs a malformed key.
func (r *registration) ignoreMalformedKey(source, key string, reason error) {
	r.mu.Lock()
	r.malformedKeys++
	first := r.malformedKeys == 1
	r.mu.Unlock()
	log := r.log
	if !first {
		log = log.V(1)
	}
	log.Info("Malformed key ignored", keySource, source, keyKey, key, keyError, reason.Error())
}

// handlerOf is the context key for the options in effect when a handler was called. It includes the controller, because
// a handler can pass its context to another controller.
type handlerOf struct{ controller *DynamicController }

// enter sets lifetime to a new child of the run's base context, and returns it.
func (r *registration) enter(base context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(base)
	r.mu.Lock()
	r.lifetime, r.cancel = ctx, cancel
	closed := r.closed
	r.mu.Unlock()
	if closed {
		cancel(ErrServingStopped)
	}
	return ctx
}

// beginCall registers a call to the handler and returns the parent of the call's context. If ok is false, the
// registration is closed and the handler must not be called. Otherwise, the caller must call the handler and then
// endCall.
func (r *registration) beginCall(key string, options *serveOptions) (parent context.Context, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, false
	}
	r.active++
	r.running[key] = time.Now()
	r.updateRecordLocked(key, record.started)
	return context.WithValue(r.lifetime, handlerOf{r.controller}, options), true
}

func (r *registration) endCall(key string, outcome Outcome, queued time.Duration) {
	r.mu.Lock()
	done := Reconcile{GVR: r.gvr, Outcome: outcome, Queued: queued, Took: time.Since(r.running[key])}
	r.mu.Unlock()
	if metrics := r.controller.metrics; metrics != nil {
		if r.metricsForgotten != nil {
			<-r.metricsForgotten
		}
		// The call is still registered here, because Metrics.Forget must not precede the last Metrics.Reconciled.
		callUserCode(r.log, "Metrics panicked", func() { metrics.Reconciled(done) })
	}
	r.mu.Lock()
	delete(r.running, key)
	r.mu.Unlock()
	r.release()
}

// callUserCode calls f and reports whether f returned normally. If f panics, callUserCode logs the panic with the
// message. It calls f in a goroutine, because f can call runtime.Goexit.
func callUserCode(log logr.Logger, message string, f func()) (returned bool) {
	<-closedAfter(func() {
		panicked := protect.Call(f)
		if panicked != nil {
			log.Error(panicked, message, keyStack, string(panicked.Stack))
		}
		returned = panicked == nil
	})
	return returned
}

// background calls f in a goroutine. The registration does not end until f has returned.
func (r *registration) background(f func()) {
	r.mu.Lock()
	r.active++
	r.mu.Unlock()
	go func() {
		defer r.release()
		f()
	}()
}

// await waits until done is closed or ctx is cancelled, and reports whether done is closed.
func await(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return typewatch.IsClosed(done)
	}
}

// release records that a handler call or a background task has ended. If the registration is closed and was waiting
// only for that call or task, the registration ends.
func (r *registration) release() {
	r.mu.Lock()
	r.active--
	ends := r.closed && r.active == 0
	r.mu.Unlock()
	if ends {
		go r.end.Do(r.forget) // because Metrics.Forget can hang
	}
}

// close cancels the contexts of handlers, removes all records and ends the subscriptions. No handler starts afterwards.
func (r *registration) close() {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return
	}
	r.closed = true
	r.active++
	cancel := r.cancel
	r.records = nil
	r.absentParked.Init()
	close(r.stopped)
	r.mu.Unlock()
	defer r.release()
	if cancel != nil {
		cancel(ErrServingStopped)
	}
	r.subscriptions.close()
}

// forget removes a registration that has ended, and closes r.ended. For the type's last registration, it calls
// Metrics.Forget first.
func (r *registration) forget() {
	defer close(r.ended)
	c := r.controller
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.metrics != nil && c.registrations[r.gvr] == nil && len(c.ending[r.gvr]) == 1 {
		r.forgetting = true
		c.mu.Unlock()
		callUserCode(r.log, "Metrics panicked", func() { c.metrics.Forget(r.gvr) })
		c.mu.Lock()
	}
	ending := slices.DeleteFunc(c.ending[r.gvr], func(other *registration) bool { return other == r })
	if c.ending[r.gvr] = ending; len(ending) == 0 {
		delete(c.ending, r.gvr)
	}
	if c.current != nil {
		delete(c.current.registrations, r)
	}
}

// runningHandlers describes the running handler calls, oldest first.
func (r *registration) runningHandlers() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	byStart := func(a, b string) int { return r.running[a].Compare(r.running[b]) }
	for _, key := range slices.SortedFunc(maps.Keys(r.running), byStart) {
		since := time.Since(r.running[key]).Round(time.Millisecond)
		names = append(names, fmt.Sprintf("%s %s (for %s)", nameOf(r.gvr), key, since))
	}
	return names
}

// stillActive describes what keeps a closed registration from ending.
func (r *registration) stillActive() []string {
	names := r.runningHandlers()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.active > len(r.running):
		names = append(names, "the watch of "+nameOf(r.gvr))
	case r.active == 0:
		names = append(names, "Metrics.Forget for "+nameOf(r.gvr))
	}
	return names
}

// enumerate joins the names and truncates a long list.
func enumerate(names []string) string {
	const limit = 10
	if len(names) > limit {
		names = append(names[:limit:limit], fmt.Sprintf("%d more", len(names)-limit))
	}
	return strings.Join(names, ", ")
}
