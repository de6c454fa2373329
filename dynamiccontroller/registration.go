package dynamiccontroller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/resync"
	"github.com/dynamic-controller/engine/internal/protect"
)

// registration represents one served type, from StartServingGVK until StopServiceGVK. It remains the same when its
// handler is swapped and when a run of the controller ends. Each registration has its own opening of the type's group
// in the queue, which distinguishes it from later registrations of the same GVR.
type registration struct {
	controller *DynamicController
	gvr        schema.GroupVersionResource
	log        logr.Logger
	group      group
	// options holds the options that are in effect, including the handler.
	options       atomic.Pointer[serveOptions]
	newest        atomic.Pointer[serveOptions] // options of the last call to StartServingGVK; they can still be pending
	backoff       *backoff                     // the default rate limiter
	subscriptions *subscriptionSet
	// resyncs is used only by the goroutine that performs resyncs.
	resyncs resync.Schedule
	// metricsForgotten is closed when Metrics.Forget has returned for an earlier registration of the type. It is nil if
	// no such call was pending.
	metricsForgotten <-chan struct{}

	stopped chan struct{} // closed by close
	ended   chan struct{} // closed when the registration is closed and nothing that belongs to it is active

	mu sync.Mutex // guards the fields below
	// lifetime is the parent of the contexts of handlers. It is cancelled when the run ends or the registration is
	// closed.
	lifetime context.Context
	cancel   context.CancelCauseFunc // of lifetime
	running  map[string]time.Time    // the times when the running handlers were called, by key
	records  map[string]*record
	// malformedKeys is the number of malformed keys that were ignored.
	malformedKeys int
	active        int // running handlers, background tasks, and subscriptions that have not ended
	closed        bool
	over          bool // ended is closed or about to be
}

func newRegistration(c *DynamicController, gvr schema.GroupVersionResource) *registration {
	reg := &registration{
		controller: c,
		gvr:        gvr,
		log:        c.logOf(gvr),
		stopped:    make(chan struct{}),
		ended:      make(chan struct{}),
		running:    map[string]time.Time{},
		records:    map[string]*record{},
	}
	reg.backoff = newBackoff(reg, c.config)
	return reg
}

func (r *registration) id(key string) ObjectIdentifiers {
	return ObjectIdentifiers{NamespacedKey: key, GVR: r.gvr}
}

// add adds keys to a lane of the queue.
func (r *registration) add(lane fairqueue.Lane, keys []string) {
	for batch := range slices.Chunk(keys, maxBatch) {
		ids := make([]ObjectIdentifiers, len(batch))
		for i, key := range batch {
			ids[i] = r.id(key)
		}
		r.group.Add(lane, ids...)
	}
}

// maxBatch is the maximum number of keys that are added to the queue while its lock is held once.
const maxBatch = 256

// addOrMarkPending adds a key to the live lane. If the run has ended, the next run reconciles the object, either
// because the cache holds it or because it is marked as pending.
func (r *registration) addOrMarkPending(key string) {
	if !r.group.Add(fairqueue.Live, r.id(key)) && !r.subscriptions.primary.View().Has(key) {
		r.markPending(key)
	}
}

// ignoreMalformedKey reports a key that cannot be reconciled. Only the first one is logged at V(0).
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

// handlerOf is the key of the context value that identifies the registration whose handler is running. It contains the
// controller, because the contexts of several controllers can be nested.
type handlerOf struct{ controller *DynamicController }

// enter sets the parent context of handlers, which it derives from the base context of a run, and returns it.
func (r *registration) enter(base context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(context.WithValue(base, handlerOf{r.controller}, r))
	r.mu.Lock()
	r.lifetime, r.cancel = ctx, cancel
	closed := r.closed
	r.mu.Unlock()
	if closed {
		cancel(ErrServingStopped)
	}
	return ctx
}

// beginCall registers a call to the handler. It returns the context from which the context of the call must be derived.
// If the registration is closed, ok is false and the handler must not be called. Otherwise endCall must be called when
// the handler has returned.
func (r *registration) beginCall(key string) (lifetime context.Context, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, false
	}
	r.active++
	r.running[key] = time.Now()
	r.startRecordLocked(key)
	return r.lifetime, true
}

func (r *registration) endCall(key string, outcome Outcome) {
	r.mu.Lock()
	took := time.Since(r.running[key])
	r.mu.Unlock()
	// Metrics must be called before the handler call counts as returned, because Metrics.Forget is called after the
	// last handler call.
	if r.metricsForgotten != nil {
		<-r.metricsForgotten
	}
	r.callMetrics(func() { r.controller.metrics.Reconciled(r.gvr, outcome, took) })
	r.mu.Lock()
	delete(r.running, key)
	r.mu.Unlock()
	r.release()
}

// callMetrics calls a method of Metrics and recovers from a panic.
func (r *registration) callMetrics(call func()) {
	if panicked := protect.Call(call); panicked != nil {
		r.log.Error(panicked, "Metrics panicked", keyStack, string(panicked.Stack))
	}
}

// background calls f in a goroutine. The registration does not end before f has returned.
func (r *registration) background(f func()) (done <-chan struct{}) {
	r.mu.Lock()
	r.active++
	r.mu.Unlock()
	returned := make(chan struct{})
	go func() {
		defer r.release()
		defer close(returned)
		f()
	}()
	return returned
}

// await waits until done is closed or ctx is cancelled, and reports whether done is closed.
func await(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return isClosed(done)
	}
}

// release records that a call or a background task has ended.
func (r *registration) release() {
	r.mu.Lock()
	r.active--
	r.mu.Unlock()
	r.endIfIdle()
}

// close cancels the contexts of handlers and drops all records. No handler starts afterwards.
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
	close(r.stopped)
	r.mu.Unlock()
	defer r.release()
	if cancel != nil {
		cancel(ErrServingStopped)
	}
	r.subscriptions.close()
}

// endIfIdle ends a closed registration when it has no active calls, tasks or subscriptions.
func (r *registration) endIfIdle() {
	r.mu.Lock()
	ends := r.closed && r.active == 0 && !r.over
	r.over = r.over || ends
	r.mu.Unlock()
	if ends {
		r.controller.forget(r)
		close(r.ended)
	}
}

// runningHandlers describes the handler calls that have not returned, with the oldest one first.
func (r *registration) runningHandlers() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := make([]string, 0, len(r.running))
	for key := range r.running {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b string) int { return r.running[a].Compare(r.running[b]) })
	for i, key := range keys {
		keys[i] = fmt.Sprintf("%s (for %s)", r.id(key), time.Since(r.running[key]).Round(time.Millisecond))
	}
	return keys
}

// stillActive describes the handlers and the watch that a closed registration is still waiting for.
func (r *registration) stillActive() []string {
	names := r.runningHandlers()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.active > len(r.running) {
		names = append(names, "the watch of "+nameOf(r.gvr))
	}
	return names
}

// enumerate returns a text with the first names, followed by the number of the remaining ones.
func enumerate(names []string) string {
	const limit = 10
	if len(names) > limit {
		names = append(names[:limit:limit], fmt.Sprintf("%d more", len(names)-limit))
	}
	return strings.Join(names, ", ")
}
