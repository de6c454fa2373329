package references

import (
	"sync/atomic"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/internal/protect"
)

// Hooks are functions that a [Tracker] calls when the watch of a type has started or stopped, and for each event. A
// function that is nil is not called. The functions must be safe for concurrent use. They are called without locks, and
// can call [Tracker.Stats]. They must return quickly, because the Tracker waits for them. If one of them panics or
// calls runtime.Goexit, this is logged with the logger of the context of the first handler in the run, and has no other
// effect.
type Hooks struct {
	// WatchStarted is called when a reference has started the watch of a type. Other declarations of references to the
	// type wait until it returns.
	WatchStarted func(gvr schema.GroupVersionResource)
	// WatchStopped is called once after each call to WatchStarted, when the last reference to the type has been removed
	// or the run has ended. Functions of the watch can still be running.
	WatchStopped func(gvr schema.GroupVersionResource)
	// Routed is called for each event that [Stats].Events counts, with the number of objects that are reconciled because
	// of it, which can be 0. The next event of the watch waits until Routed returns.
	Routed func(gvr schema.GroupVersionResource, referrers int)
}

// Stats describes a [Tracker]. The first three fields are current numbers, summed over all runs. The others are
// counters that begin when the Tracker is created.
type Stats struct {
	Referrers  int // objects that refer to at least one object or selector
	References int // declared references; equal references of the same object count once
	Watches    int // watches of referenced types, including those that are being started
	// Events counts the events that the watches have delivered after their sync: an added and a deleted object each count
	// once, and a changed one twice, with its old and its new state.
	Events int64
	// Routed counts the objects to reconcile because of these events. An object counts once for each event that concerns
	// one of its references.
	Routed int64
}

// Stats returns a snapshot. Its cost is linear in the number of objects that have references.
func (t *Tracker) Stats() Stats {
	stats := Stats{Events: t.counts.events.Load(), Routed: t.counts.routed.Load()}
	for _, run := range t.runs.All() {
		run.addTo(&stats)
	}
	return stats
}

// addTo adds the numbers of a run.
func (r *run) addTo(stats *Stats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	stats.Referrers += len(r.index.referrers)
	stats.Watches += len(r.index.kinds)
	for _, from := range r.index.referrers {
		stats.References += len(from.targets)
	}
}

// counts are the counters of a Tracker.
type counts struct{ events, routed atomic.Int64 }

// hooks counts events, and calls the functions of Hooks. Its methods must be called without locks.
type hooks struct {
	functions Hooks
	counts    *counts
	log       logr.Logger // for mistakes in the functions
}

func (h *hooks) started(gvr schema.GroupVersionResource) {
	if h.functions.WatchStarted != nil {
		h.call("WatchStarted", gvr, func() { h.functions.WatchStarted(gvr) })
	}
}

func (h *hooks) stopped(gvr schema.GroupVersionResource) {
	if h.functions.WatchStopped != nil {
		h.call("WatchStopped", gvr, func() { h.functions.WatchStopped(gvr) })
	}
}

func (h *hooks) routed(gvr schema.GroupVersionResource, referrers int) {
	h.counts.events.Add(1)
	h.counts.routed.Add(int64(referrers))
	if h.functions.Routed != nil {
		h.call("Routed", gvr, func() { h.functions.Routed(gvr, referrers) })
	}
}

// call calls a function in a goroutine of its own, so that it can neither prevent the delivery of an event nor end the
// process.
func (h *hooks) call(name string, gvr schema.GroupVersionResource, f func()) {
	if mistake := protect.Isolate(f); mistake != nil {
		h.log.Error(mistake, "Hook panicked", "hook", name, "type", gvr.String(), "stack", string(mistake.Stack))
	}
}
