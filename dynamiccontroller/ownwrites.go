package dynamiccontroller

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/protect"
	"github.com/dynamic-controller/engine/internal/writes"
)

// ownWrites are writes of a handler call that a cache of its type lacks. Until the caches contain them, the queue does
// not hand out the object of the call.
//
//	handler returns ─▶ Settle ─▶ all caches contain the writes ────┐
//	                              Config.MaxWriteLag has passed ───┼─▶ Done
//	                              the run or the type has ended ───┘
type ownWrites struct {
	reg     *registration
	run     *run
	id      ObjectIdentifiers
	limit   time.Time
	made    []ownWrite
	unknown []unknownWrite
	// outcomes are the unknown writes that have been read from the API server, nil until then.
	outcomes atomic.Pointer[[]ownWrite]
	missing  missing // checked first
	over     atomic.Bool
}

// unknownWrite is the target of a request with an unknown outcome, and a cache that a type reads it from.
type unknownWrite struct {
	writes.Target
	in *typewatch.Subscription
}

type ownWrite struct {
	writes.Write
	history int64 // see typewatch.Pool.HistoryOf
}

// missing is a cache that lacks a write.
type missing struct {
	in    *typewatch.Subscription
	write ownWrite
	mark  typewatch.Mark
}

// isLacking reports whether the cache lacks the write.
func (m *missing) isLacking() bool {
	return m.in != nil && m.in.Lacks(m.write.Write, m.write.history, &m.mark)
}

// finish is called when a handler call has returned, or was not made. It calls the queue's Done, at once or when the
// caches contain the call's writes.
func (c *DynamicController) finish(id ObjectIdentifiers, in *run, made *call) {
	w := c.ownWritesOf(id, in, made)
	if w == nil || !w.isMissing() || !c.queue.Settle(id) {
		c.queue.Done(id)
		return
	}
	if c.settling.add(w) && len(w.unknown) > 0 {
		in.reads.Go(w.read)
	}
}

// ownWritesOf returns the writes of a call to the API server of the controller, or nil.
func (c *DynamicController) ownWritesOf(id ObjectIdentifiers, in *run, made *call) *ownWrites {
	if made == nil || c.config.MaxWriteLag < 0 {
		return nil
	}
	all, unknown := made.writes.Take()
	if len(all) == 0 && len(unknown) == 0 {
		return nil
	}
	w := &ownWrites{reg: made.reg, run: in, id: id, limit: time.Now().Add(c.config.MaxWriteLag)}
	for _, write := range all {
		if c.isServer(write.Server) {
			w.made = append(w.made, c.ownWrite(write))
		}
	}
	for _, target := range unknown {
		in := w.findCache(func(s *typewatch.Subscription) bool { return s.View().GroupResource() == target.Resource })
		if in != nil && c.isServer(target.Server) {
			w.unknown = append(w.unknown, unknownWrite{target, in})
		}
	}
	return w
}

func (c *DynamicController) ownWrite(w writes.Write) ownWrite {
	return ownWrite{w, c.pool.HistoryOf(w.Resource.Group)}
}

// isServer reports whether writes to a server are in the caches. Servers that are not known are assumed to be the same.
func (c *DynamicController) isServer(server string) bool {
	return server == "" || c.server == "" || server == c.server
}

// read reads the unknown writes once.
func (w *ownWrites) read() {
	c := w.reg.controller
	ctx, cancel := context.WithDeadline(w.run.base, w.limit)
	defer cancel()
	outcomes := []ownWrite{}
	for _, u := range w.unknown {
		protected := protect.Call(func() {
			if write, err := u.in.Read(ctx, u.Target); err == nil {
				outcomes = append(outcomes, c.ownWrite(write))
			}
		})
		if protected != nil {
			w.reg.log.Error(protected, "A client panicked", keyObject, w.id.NamespacedKey, keyStack, string(protected.Stack))
		}
	}
	w.outcomes.Store(&outcomes)
	c.settling.wake()
}

// isMissing reports whether a cache that the type reads lacks a write. The caches are looked up each time, because a
// secondary can have been added.
func (w *ownWrites) isMissing() bool {
	all := w.made
	if len(w.unknown) > 0 {
		outcomes := w.outcomes.Load()
		if outcomes == nil {
			return true
		}
		all = slices.Concat(all, *outcomes)
	}
	return w.missing.isLacking() || w.findCache(func(s *typewatch.Subscription) bool {
		for _, write := range all {
			m := missing{in: s, write: write}
			if write.Resource == s.View().GroupResource() && m.isLacking() {
				w.missing = m
				return true
			}
		}
		return false
	}) != nil
}

// findCache returns the first cache that the type reads and the function accepts, or nil.
func (w *ownWrites) findCache(accepts func(*typewatch.Subscription) bool) *typewatch.Subscription {
	for _, s := range w.reg.feed.Subscriptions() {
		if accepts(s) {
			return s
		}
	}
	c := w.reg.controller
	c.mu.RLock()
	standalone := c.standalone
	c.mu.RUnlock()
	for _, s := range standalone {
		if accepts(s.sub) {
			return s.sub
		}
	}
	return nil
}

// end allows the queue to hand out the object again.
func (w *ownWrites) end() {
	if !w.over.Swap(true) {
		w.reg.controller.queue.Done(w.id)
	}
}

// check ends the wait if it is over. It reports whether the limit was reached.
func (w *ownWrites) check(now time.Time) (lagged bool) {
	switch {
	case w.over.Load():
	case typewatch.IsClosed(w.reg.stopped), !w.isMissing(): // the end of a subscription causes a check
		w.end()
	case !now.Before(w.limit):
		w.end()
		return true
	}
	return false
}

// countWriteLag counts that an object is reconciled although a cache lacks a write. The first time, it logs which one.
func (r *registration) countWriteLag(w *ownWrites) {
	if r.writeLags.Add(1) > 1 {
		return
	}
	r.log.Info("A cache lacks a write of a handler. The object is reconciled nevertheless. Further cases are only counted",
		keyObject, w.id.NamespacedKey, keyResource, w.lacking().String(), keyLimit, r.controller.config.MaxWriteLag.String())
}

// lacking returns the type of the write that is missing, or of one whose outcome has not been read yet.
func (w *ownWrites) lacking() schema.GroupResource {
	if w.missing.in == nil {
		return w.unknown[0].Resource
	}
	return w.missing.write.Resource
}

// reportWriteLags reports to the metrics, unless Metrics.Forget can have been called.
func (r *registration) reportWriteLags(n int) {
	metrics := r.controller.metrics
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

// settling holds the objects that wait for own writes. A goroutine of the crew checks them after each change of a
// cache. The check of an object whose cache has received nothing takes less than 0.1 microseconds.
type settling struct {
	woken chan struct{} // its capacity is one
	count atomic.Int64  // number of objects that wait

	checks sync.Mutex // held during a check, because the goroutine of a crew can end after that of the next has begun

	mu      sync.Mutex // guards waiting
	waiting []*ownWrites
}

func newSettling() *settling { return &settling{woken: make(chan struct{}, 1)} }

// wake causes a check. It does not block.
func (s *settling) wake() {
	if s.count.Load() == 0 {
		return
	}
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// add adds an object. If its run has ended, add ends the wait and returns false.
func (s *settling) add(w *ownWrites) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.run.hasEnded() {
		w.end()
		return false
	}
	s.waiting = append(s.waiting, w)
	s.count.Add(1)
	s.wake() // something can have arrived before the object was added
	return true
}

// endRun ends the waits of a run that has ended.
func (s *settling) endRun(r *run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.waiting {
		if w.run == r {
			w.end()
		}
	}
	s.removeLocked()
}

// removeLocked removes the objects that wait no more.
func (s *settling) removeLocked() {
	before := len(s.waiting)
	// In a new slice, because a check can be reading the former one.
	kept := slices.DeleteFunc(slices.Clone(s.waiting), func(w *ownWrites) bool { return w.over.Load() })
	s.waiting = kept
	s.count.Add(int64(len(kept) - before))
}

// work checks the waits until stop is closed.
func (s *settling) work(stop <-chan struct{}) {
	limit := time.NewTimer(0)
	defer limit.Stop()
	for {
		select {
		case <-s.woken:
		case <-limit.C:
		case <-stop:
			s.wake() // the goroutine of the next crew, which does not know the limits of this one
			return
		}
		if next, waiting := s.check(time.Now()); waiting {
			limit.Reset(time.Until(next))
		} else {
			limit.Stop()
		}
	}
}

// check checks all waits, and returns the earliest limit of the remaining ones.
func (s *settling) check(now time.Time) (limit time.Time, waiting bool) {
	s.checks.Lock()
	defer s.checks.Unlock()
	s.mu.Lock()
	all := s.waiting
	s.mu.Unlock()
	ended, lags := false, map[*registration]int{}
	for _, w := range all { // without the lock, because workers add others
		if w.check(now) {
			lags[w.reg]++
			w.reg.countWriteLag(w)
		}
		ended = ended || w.over.Load()
	}
	for reg, n := range lags {
		go reg.reportWriteLags(n) // because other objects wait
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ended {
		s.removeLocked()
	}
	if len(s.waiting) == 0 {
		return limit, false
	}
	return s.waiting[0].limit, true
}

// RecordWrites returns a copy of cfg for the clients with which handlers write, in programs without package replica,
// whose fenced configs do the same. Between two calls of a handler for the same object, the caches that its type reads
// then contain the writes of the first call; see [Config].MaxWriteLag. A write belongs to the call whose context, or a
// context derived from it, it was sent with. If [NewForConfig] has created the controller, writes to another host than
// that of its config are not waited for.
func RecordWrites(cfg *rest.Config) *rest.Config {
	recorded := rest.CopyConfig(cfg)
	recorded.Wrap(func(next http.RoundTripper) http.RoundTripper { return writeRecorder{next} })
	return recorded
}

type writeRecorder struct{ next http.RoundTripper }

// WrappedRoundTripper returns the wrapped transport, for client-go.
func (t writeRecorder) WrappedRoundTripper() http.RoundTripper { return t.next }

func (t writeRecorder) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(r)
	switch {
	case writes.From(r.Context()) == nil:
	case err != nil, response.StatusCode >= http.StatusInternalServerError:
		writes.RecordLost(r) // it can have been executed
	case response.StatusCode < http.StatusMultipleChoices:
		response.Body = writes.Observe(r, response.Header, response.Body, func(w writes.Write) {
			writes.Record(r.Context(), w)
		})
	}
	return response, err
}
