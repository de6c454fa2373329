package dynamiccontroller

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/shards"
	"github.com/dynamic-controller/engine/internal/writes"
)

// run is one call to Run: the context of its handlers, and their calls. Several runs can exist if they serve different
// shards. A run ends when its calls have returned, or after Config.ShutdownTimeout. It does not stop the queue or the
// workers, which other runs use. The registry has the registrations that a run serves.
type run struct {
	core  *core
	scope shards.Shard
	crew  *crew
	// lifetime is the context that RunContext returns. It is cancelled when the run has ended, and its handlers have
	// returned.
	lifetime context.Context
	finish   context.CancelFunc
	// base is the parent of all handler contexts. It is cancelled with ErrRunEnded.
	base   context.Context
	cancel context.CancelCauseFunc
	// isOver reports whether Run's context has been cancelled. It checks that context directly, because a context with its
	// own deadline check, such as one from package replica, can expire before its children are cancelled.
	isOver func() bool
	// ending is set, under the lock of the registry, before the registrations are detached, so that no others are attached
	// afterwards.
	ending  atomic.Bool
	ledger  *writes.Ledger // of calls before the run, and in it
	reading chan struct{}  // has room for the reads that can run at once
	meter   meter

	mu       sync.Mutex       // guards the fields below
	calls    map[*worker]bool // workers that are calling a handler, and whether they have been replaced
	ended    bool             // no more calls begin
	draining *drain           // not nil if no more calls begin until the run is resumed
	reads    sync.WaitGroup   // of objects whose state is unknown after a call; none begins after ended was set
	done     chan struct{}    // closed when the run has ended and all calls have returned
}

// drain is the time during which a run is draining; see DrainShard.
type drain struct {
	idle    chan struct{} // closed when no call is running any more
	resumed chan struct{} // closed when the run is resumed
	ended   chan struct{} // closed when the run ends, although calls can be running
}

// runKey is the context key for the run that calls a handler.
type runKey struct{}

// RunContext takes a handler's context and returns the context of the run that called the handler. All handler calls of
// a run share this context, and each run has its own. It is cancelled after the run has ended and all of the run's
// handlers have returned. RunContext also accepts the context of a run, and any context derived from it. For all other
// contexts, it returns [context.Background].
//
// State that must not outlive a run, such as data that is valid only for one leadership term, can be kept in a map
// whose key is the context of the run. [context.AfterFunc] can then remove it.
func RunContext(ctx context.Context) context.Context {
	if r, ok := ctx.Value(runKey{}).(*run); ok {
		return r.lifetime
	}
	return context.Background()
}

// HistoryOf takes a handler's context and returns the number of the history to which resourceVersions belong. The
// number is zero until the engine notices that the versions of a type went back, which means that etcd was restored
// from a backup. It grows with each restore. Versions from different histories cannot be compared. State that compares
// them, such as a cache of written objects, must be dropped when the number grows. The engine lists the types again. If
// the server of a group does not store its versions, the number grows whenever that server restarts.
//
// For contexts that are not derived from a handler's context, HistoryOf returns zero.
func HistoryOf(ctx context.Context) int64 {
	if r, ok := ctx.Value(runKey{}).(*run); ok {
		return r.core.pool.History()
	}
	return 0
}

// beginCall reports whether a worker can call a handler. If it returns true, endCall must be called afterwards.
func (r *run) beginCall(w *worker) bool {
	if r.isOver() {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || r.draining != nil {
		return false
	}
	r.calls[w] = false
	return true
}

// endCall reports whether the worker has been replaced.
func (r *run) endCall(w *worker) (replaced bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	replaced = r.calls[w]
	delete(r.calls, w)
	r.reportIdleLocked()
	if r.ended && len(r.calls) == 0 {
		close(r.done)
	}
	return replaced
}

// read calls f in a goroutine, unless the run has ended. At most Config.Workers reads run at once.
func (r *run) read(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	r.reads.Go(func() {
		r.reading <- struct{}{}
		defer func() { <-r.reading }()
		f()
	})
}

// hasEnded reports whether endCalls has been called.
func (r *run) hasEnded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// endCalls prevents further calls. The returned channel is closed when all calls have returned.
func (r *run) endCalls() (returned <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	if len(r.calls) == 0 {
		close(r.done)
	}
	return r.done
}

// replaceWorkers starts another worker for each one that is still calling a handler of the run. The replaced workers
// exit when their calls return.
func (r *run) replaceWorkers() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w, replaced := range r.calls {
		if !replaced {
			r.calls[w] = true
			r.crew.replaceWorker()
		}
	}
}

// drain prevents further calls until resume is called.
func (r *run) drain() *drain {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining == nil {
		r.draining = &drain{idle: make(chan struct{}), resumed: make(chan struct{}), ended: make(chan struct{})}
		r.reportIdleLocked()
	}
	return r.draining
}

// resume ends a drain, if the run is draining.
func (r *run) resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining != nil {
		close(r.draining.resumed)
		r.draining = nil
	}
}

// endDrain reports to a drain that the run ends.
func (r *run) endDrain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining != nil && !typewatch.IsClosed(r.draining.ended) {
		close(r.draining.ended)
	}
}

// reportIdleLocked reports to a drain that no call is running.
func (r *run) reportIdleLocked() {
	if r.draining != nil && len(r.calls) == 0 && !typewatch.IsClosed(r.draining.idle) {
		close(r.draining.idle)
	}
}
