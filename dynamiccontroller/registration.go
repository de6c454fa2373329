package dynamiccontroller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/protect"
)

// registration is one type being served, from the StartServingGVK that began it to the StopServiceGVK that ends it,
// over swaps of its handler and over runs of the controller. Its group in the queue carries the epoch that keeps what
// belongs to it apart from what belongs to a later registration of the same GVR.
type registration struct {
	gvr    schema.GroupVersionResource
	log    logr.Logger
	owner  *DynamicController
	group  group
	served atomic.Pointer[served]

	gate gate

	// primary is the need of the type itself, secondaries are those of the types watched beside it. The controller's lock
	// guards them.
	primary     *typewatch.Need
	secondaries map[secondaryKey]*secondary
	// round is for the goroutine that resyncs. It is here to end with the registration.
	round *resyncRound

	mu       sync.Mutex          // guards what follows
	calls    map[string]*call    // handlers that run, by key
	failures map[string]int      // in a row, by key
	parked   map[string]struct{} // keys that failed too often
	missed   map[string]struct{} // keys that the end of a run kept from their call, and are not in the cache
	newest   []ParkedObject      // details of those parked last
	// malformed is the number of keys that were refused.
	malformed int
	watches   int           // subscriptions that are being released, or whose watch has not ended
	closed    bool          // nothing new starts
	stopped   chan struct{} // closed when closed
	over      bool          // and all calls and watches have returned
	ended     chan struct{} // closed when over
}

// call is a handler that runs.
type call struct {
	cancel func(cause error)
	began  time.Time
}

func newRegistration(owner *DynamicController, gvr schema.GroupVersionResource) *registration {
	return &registration{
		gvr: gvr, log: owner.logOf(gvr), owner: owner,
		calls:    map[string]*call{},
		failures: map[string]int{},
		parked:   map[string]struct{}{},
		missed:   map[string]struct{}{},
		stopped:  make(chan struct{}),
		ended:    make(chan struct{}),
	}
}

func (r *registration) id(key string) ObjectIdentifiers {
	return ObjectIdentifiers{NamespacedKey: key, GVR: r.gvr}
}

// refuseKey reports a malformed key to the author of its source.
func (r *registration) refuseKey(source, key string, reason error) {
	r.mu.Lock()
	r.malformed++
	first := r.malformed == 1
	r.mu.Unlock()
	log := r.log
	if !first {
		log = log.V(1)
	}
	log.Info("malformed key ignored", keySource, source, keyKey, key, keyError, reason.Error())
}

func (r *registration) ids(keys []string) []ObjectIdentifiers {
	ids := make([]ObjectIdentifiers, len(keys))
	for i, key := range keys {
		ids[i] = r.id(key)
	}
	return ids
}

// sink puts what the watch tells into the queue. Release is called when the watch has told all that there is.
func (r *registration) sink(release func()) typewatch.Sink {
	return typewatch.Sink{
		Known:  func(keys []string) { r.group.Add(fairqueue.Background, r.ids(keys)...) },
		Synced: release,
		Changed: func(key string, old, now any) {
			if !r.wants(old, now) {
				return
			}
			if !r.group.Add(fairqueue.Live, r.id(key)) && now == nil {
				r.miss(key) // the run ends, and the cache shows no more that there was something
			}
		},
	}
}

// wants tells whether a change of an object of the type is to be reconciled.
func (r *registration) wants(old, now any) bool {
	served := r.served.Load()
	if served.predicate == nil {
		return true
	}
	primary := r.owner.watchOf(r)
	return served.wants(r.log, primary.View(old), primary.View(now))
}

// begin makes a call of the registration, unless that was closed. The context ends with base, with the registration
// and after the reconcile timeout.
func (r *registration) begin(base context.Context, key string, timeout time.Duration) (_ context.Context, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, false
	}
	stop := func() {}
	ctx := context.WithValue(base, ownKey{r.owner}, r.gvr)
	if timeout > 0 {
		ctx, stop = context.WithTimeoutCause(ctx, timeout, ErrReconcileTimeout)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	r.calls[key] = &call{began: time.Now(), cancel: func(cause error) {
		cancel(cause)
		stop()
	}}
	delete(r.parked, key)
	delete(r.missed, key)
	return ctx, true
}

// end makes the call over.
func (r *registration) end(key string, outcome Outcome) {
	r.mu.Lock()
	took := time.Since(r.calls[key].began)
	r.mu.Unlock()
	// Not under a lock, and before the call is over: after the last call the metrics are told to forget the type.
	r.report(func() { r.owner.metrics.Reconciled(r.gvr, outcome, took) })

	defer r.endIfIdle()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls[key].cancel(nil)
	delete(r.calls, key)
}

// report calls a method of the metrics and recovers from its panics.
func (r *registration) report(metrics func()) {
	if panicked := protect.Call(metrics); panicked != nil {
		r.log.Error(panicked, "metrics panicked", keyStack, string(panicked.Stack))
	}
}

// ownKey is the key of the context value by which StopServiceGVK knows a type's own handlers: the type, by controller.
type ownKey struct{ controller *DynamicController }

// close ends all calls' contexts and lets nothing start any more. ended is closed when nothing runs any more.
func (r *registration) close() {
	defer r.endIfIdle()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.closed = true
	close(r.stopped)
	for _, c := range r.calls {
		c.cancel(ErrServingStopped)
	}
	r.failures, r.parked, r.missed, r.newest = nil, nil, nil, nil
}

// endIfIdle is called after whatever may have been the last that ran of a closed registration.
func (r *registration) endIfIdle() {
	r.mu.Lock()
	over := r.closed && len(r.calls) == 0 && r.watches == 0 && !r.over
	r.over = r.over || over
	r.mu.Unlock()
	if over {
		r.owner.forget(r)
		close(r.ended)
	}
}

func (r *registration) watchStarted() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watches++
}

func (r *registration) watchEnded() {
	defer r.endIfIdle()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watches--
}

// failed counts one more failure of the object in a row.
func (r *registration) failed(key string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0
	}
	r.failures[key]++
	return r.failures[key]
}

// recovered ends a row of failures.
func (r *registration) recovered(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.failures, key)
}

// park keeps the object out of the queue until something happens to it.
func (r *registration) park(key string, failures int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	delete(r.failures, key)
	r.parked[key] = struct{}{}
	r.newest = slices.DeleteFunc(r.newest, func(p ParkedObject) bool { return p.Key == key })
	r.newest = append(r.newest, ParkedObject{Key: key, Failures: failures, LastError: err.Error(), Since: time.Now()})
	if len(r.newest) > parkedDetails {
		r.newest = slices.Delete(r.newest, 0, 1)
	}
}

// miss notes that the run ended before the object had a call that it was owed. If it is in the cache the next run calls
// for it anyway.
func (r *registration) miss(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.missed[key] = struct{}{}
	}
}

// owed lists what a new run and a resync call for, whether the cache holds it or not: what was missed, failed and is
// parked.
func (r *registration) owed() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := slices.Collect(maps.Keys(r.missed))
	keys = slices.AppendSeq(keys, maps.Keys(r.failures))
	return slices.AppendSeq(keys, maps.Keys(r.parked))
}

// running lists the calls that have not returned, the oldest first.
func (r *registration) running() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := make([]string, 0, len(r.calls))
	for key := range r.calls {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b string) int { return r.calls[a].began.Compare(r.calls[b].began) })
	for i, key := range keys {
		keys[i] = fmt.Sprintf("%s (for %s)", r.id(key), time.Since(r.calls[key].began).Round(time.Millisecond))
	}
	return keys
}

// stillRunning is running, and the watch.
func (r *registration) stillRunning() []string {
	running := r.running()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watches > 0 {
		running = append(running, "the watch of "+nameOf(r.gvr))
	}
	return running
}

// enumerate names the first few and counts the rest.
func enumerate(names []string) string {
	const most = 10
	if len(names) > most {
		names = append(names[:most:most], fmt.Sprintf("%d more", len(names)-most))
	}
	return strings.Join(names, ", ")
}
