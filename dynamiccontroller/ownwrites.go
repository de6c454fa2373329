package dynamiccontroller

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/writes"
)

// ownWrites are writes of a handler call that a cache of its type lacks, or those of the calls of a previous leader.
// Until the caches contain them, the queue does not hand out the object of the call.
//
//	handler returns ─▶ Settle ─┬─▶ all caches contain the writes ───┐
//	run begins ──────▶ Hold ───┘    Config.MaxWriteLag has passed ──┼─▶ Done
//	                                the run or the type has ended ──┘
type ownWrites struct {
	reg      *registration
	run      *run
	registry *registry // for the standalone watches
	id       ObjectIdentifiers
	made     []writes.Write
	unknown  []unknownWrite
	// outcomes are the unknown writes that have been read from the API server, nil until then.
	outcomes atomic.Pointer[[]writes.Write]
	over     atomic.Bool

	// The fields below are used only by the goroutine that adds the object, and then by check.
	limit    time.Time
	fromSync bool    // the limit counts from when the type has synced
	missing  missing // checked first
}

// unknownWrite is the target of a request with an unknown outcome, and a cache that a type reads it from.
type unknownWrite struct {
	writes.Target
	in *typewatch.Subscription
}

// missing is a cache that lacks a write.
type missing struct {
	in    *typewatch.Subscription
	write writes.Write
	mark  typewatch.Mark
}

// isLacking reports whether the cache lacks the write.
func (m *missing) isLacking() bool {
	return m.in != nil && m.in.Lacks(m.write, m.write.History, &m.mark)
}

// add adds the writes of a call.
func (w *ownWrites) add(written writes.Call) {
	w.made = append(w.made, written.Writes...)
	for _, target := range written.Unknown {
		in := w.findCache(func(s *typewatch.Subscription) bool { return s.View().GroupResource() == target.Resource })
		if u := (unknownWrite{target, in}); in != nil && !slices.Contains(w.unknown, u) {
			w.unknown = append(w.unknown, u)
		}
	}
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
	for _, s := range w.registry.standaloneWatches() {
		if accepts(s.sub) {
			return s.sub
		}
	}
	return nil
}

// end allows the queue to hand out the object again.
func (w *ownWrites) end() {
	if !w.over.Swap(true) {
		w.reg.queue.Done(w.id)
	}
}

// check ends the wait if it is over. It reports whether the limit was reached.
func (w *ownWrites) check(now time.Time) (lagged bool) {
	switch {
	case w.over.Load():
	case !w.isMissing():
		w.end()
	case w.fromSync: // the first list can take longer than the limit, and no object is reconciled before
		w.fromSync = !w.reg.feed.Primary().View().HasSynced()
		w.limit = now.Add(w.reg.config.MaxWriteLag)
	case now.Before(w.limit):
	default:
		w.end()
		return true
	}
	return false
}

// readUnknown reads the objects of the unknown writes once.
func (w *ownWrites) readUnknown() {
	if w.over.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(w.run.base, w.reg.config.MaxWriteLag)
	defer cancel()
	outcomes := []writes.Write{}
	for _, u := range w.unknown {
		callUserCode(w.reg.log.WithValues(keyObject, w.id.NamespacedKey), "A client panicked", func() {
			if write, err := u.in.Read(ctx, u.Target); err == nil {
				outcomes = append(outcomes, write)
			}
		})
	}
	w.reg.setHistories(outcomes)
	w.outcomes.Store(&outcomes)
}

// lacking returns the type of the write that is missing, or of one whose outcome has not been read yet.
func (w *ownWrites) lacking() schema.GroupResource {
	if w.missing.in == nil {
		return w.unknown[0].Resource
	}
	return w.missing.write.Resource
}
