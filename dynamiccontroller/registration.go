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

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/attempts"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/feed"
	"github.com/dynamic-controller/engine/internal/shards"
)

// registration is the life of one served type, from StartServingGVK to StopServiceGVK. It persists across the
// controller's runs and across changes of the type's handler. It counts the calls to the handler, and ends when it is
// closed and neither a call nor its feed is running any more.
type registration struct {
	*core
	gvr   schema.GroupVersionResource
	shard atomic.Pointer[shards.Shard] // see indexAmong
	log   logr.Logger                  // of the type
	// forget is called when the registration has ended. It closes ended.
	forget func()
	// group is not shared with an earlier or later registration of the same GVR, so that a handler that returns late
	// does not affect another registration.
	group    group
	options  atomic.Pointer[serveOptions] // the handler and the options that are in effect
	attempts *attempts.Table
	backoff  *attempts.Backoff
	feed     *feed.Feed
	// metricsForgotten, if not nil, is closed when Metrics.Forget has returned for an earlier registration.
	metricsForgotten <-chan struct{}

	writeLags atomic.Int64 // waits for own writes that have reached Config.MaxWriteLag

	stopped chan struct{} // closed when the registration is closed
	ended   chan struct{} // closed when the registration is closed and no longer in use
	end     sync.Once     // closes ended

	mu sync.Mutex // guards the fields below
	// run is the run that serves the registration, or the last one. It is nil before the first one.
	run *run
	// lifetime is the parent of the handlers' contexts. It is cancelled when the run or the registration ends.
	lifetime      context.Context
	cancel        context.CancelCauseFunc // cancels lifetime
	running       map[string]time.Time    // start times of running handlers, by key
	spent         time.Duration           // the time of the calls that have ended in the run
	malformedKeys int                     // number of malformed keys ignored so far
	active        int                     // number of running handlers, and one for the feed while it is being closed
	closed        bool
}

// newRegistration returns a registration without a group and a feed. The caller must open it. The function forget is
// called once, when the registration has ended.
func newRegistration(
	c *core, gvr schema.GroupVersionResource, log logr.Logger, metricsForgotten <-chan struct{},
	forget func(*registration),
) *registration {
	reg := &registration{
		core:             c,
		gvr:              gvr,
		log:              log,
		attempts:         attempts.NewTable(),
		metricsForgotten: metricsForgotten,
		stopped:          make(chan struct{}),
		ended:            make(chan struct{}),
		running:          map[string]time.Time{},
	}
	reg.forget = func() {
		defer close(reg.ended)
		forget(reg)
	}
	reg.backoff = attempts.NewBackoff(reg.attempts, c.config.MinRetryDelay, c.config.MaxRetryDelay)
	return reg
}

// open opens the group, which no run serves yet, and starts the feed. It must be called once. Once the subscriptions
// have been made, done is closed.
func (r *registration) open(first *serveOptions, active bool, narrowed shards.Shard) (done <-chan struct{}) {
	r.options.Store(first)
	r.group = r.queue.Open(r.gvr, served{reg: r}, r.queueOptions(first))
	r.group.Stop() // until a run serves it
	r.feed = feed.New(r.pool, r.log, r, r.feedOptions(first), active, narrowed)
	return r.feed.Start()
}

// enter sets the run that serves the registration. It sets lifetime to a new child of the run's base context and
// returns it.
func (r *registration) enter(base context.Context, run *run) context.Context {
	ctx, cancel := context.WithCancelCause(base)
	r.mu.Lock()
	r.run, r.lifetime, r.cancel, r.spent = run, ctx, cancel, 0
	closed := r.closed
	r.mu.Unlock()
	if closed {
		cancel(ErrServingStopped)
	}
	return ctx
}

// isIn reports whether the type belongs to a shard.
func (r *registration) isIn(scope shards.Shard) bool {
	return scope.Count == 1 || r.indexAmong(scope.Count) == scope.Index
}

// indexAmong returns the index of the type's shard. It caches the last result.
func (r *registration) indexAmong(count int) int {
	if cached := r.shard.Load(); cached != nil && cached.Count == count {
		return cached.Index
	}
	shard := shards.Shard{Index: shards.Of(r.gvr.GroupResource(), count), Count: count}
	r.shard.Store(&shard)
	return shard.Index
}

// beginCall registers a call to the handler. It returns nil if the handler must not be called, because the registration
// is closed or another run serves it. Otherwise, the caller must call the handler and then endCall.
func (r *registration) beginCall(in *run, key string, cause queueCause) *call {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.run != in {
		return nil
	}
	r.active++
	r.running[key] = time.Now()
	failures, kept := r.attempts.Started(key)
	return &call{
		Context: r.lifetime, core: r.core, reg: r, options: r.options.Load(), key: key,
		cause: newCause(cause, failures, kept),
	}
}

// endCall reports a call's outcome to the metrics and records that the call has ended.
func (r *registration) endCall(made *call, queued time.Duration, outcome Outcome, err error) {
	r.mu.Lock()
	done := Reconcile{
		GVR: r.gvr, Outcome: outcome, Cause: made.cause, Queued: queued, Took: time.Since(r.running[made.key]), Err: err,
	}
	r.mu.Unlock()
	if metrics := r.metrics; metrics != nil {
		if r.metricsForgotten != nil {
			<-r.metricsForgotten
		}
		// The call is still registered here, because Metrics.Forget must not precede the last Metrics.Reconciled.
		callUserCode(r.log, "Metrics panicked", func() { metrics.Reconciled(done) })
	}
	r.mu.Lock()
	r.spent += time.Since(r.running[made.key])
	delete(r.running, made.key)
	r.mu.Unlock()
	r.release()
}

// release records that a handler call has ended, or the feed. If the registration is closed and was waiting only for
// that, the registration ends.
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
	close(r.stopped)
	r.mu.Unlock()
	if cancel != nil {
		cancel(ErrServingStopped)
	}
	r.attempts.Close()
	r.feed.Close()
	go func() {
		<-r.feed.Ended()
		r.release()
	}()
}

// busy returns the time of calls to the handler in the current run, including those that are running.
func (r *registration) busy() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	total := r.spent
	for _, began := range r.running {
		total += time.Since(began)
	}
	return total
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

// countWriteLag counts that an object is reconciled although a cache lacks a write. The first time, it logs which one.
func (r *registration) countWriteLag(key string, lacking schema.GroupResource) {
	if r.writeLags.Add(1) > 1 {
		return
	}
	r.log.Info("A cache lacks a write of a handler. The object is reconciled nevertheless. Further cases are only counted",
		keyObject, key, keyResource, lacking.String(), keyLimit, r.config.MaxWriteLag.String())
}

// reportWriteLags reports to the metrics, unless Metrics.Forget can have been called.
func (r *registration) reportWriteLags(n int) {
	metrics := r.metrics
	if metrics == nil {
		return
	}
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return
	}
	r.active++
	r.mu.Unlock()
	defer r.release()
	for range n {
		callUserCode(r.log, "Metrics panicked", func() { metrics.WriteLagged(r.gvr) })
	}
}

// enumerate joins the names and truncates a long list.
func enumerate(names []string) string {
	const limit = 10
	if len(names) > limit {
		names = append(names[:limit:limit], fmt.Sprintf("%d more", len(names)-limit))
	}
	return strings.Join(names, ", ")
}
