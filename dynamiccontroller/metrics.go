package dynamiccontroller

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Metrics receives the controller's metrics. Its methods must be safe for concurrent use and return quickly. Other
// statistics are available from [DynamicController.Status]. Package metrics implements Metrics for Prometheus.
//
// An implementation must embed [NoMetrics], so that it remains valid when methods are added to the interface.
type Metrics interface {
	// Reconciled is called after each call to a handler.
	Reconciled(done Reconcile)
	// Synced is called each time the list of a type's watch is complete, after the watch has started or after its cache
	// has been out of date. It is called for watches of served, owned and watched types, and once for a watch that is
	// shared. Forget is not called for types that are only owned or watched. Synced is called in a goroutine of its own,
	// possibly after Forget, and after Run and RunWatches have returned.
	Synced(done Sync)
	// WriteLagged is called each time an object is reconciled again although a cache lacks a write of its last reconcile,
	// because Config.MaxWriteLag has passed. It is called in a goroutine of its own.
	WriteLagged(gvr schema.GroupVersionResource)
	// Forget is called when a type is no longer served. No calls to Reconciled or WriteLagged follow until it is served
	// again.
	Forget(gvr schema.GroupVersionResource)

	embedsNoMetrics()
}

// NoMetrics implements [Metrics] with methods that do nothing.
type NoMetrics struct{}

var _ Metrics = NoMetrics{}

// Reconciled implements [Metrics].
func (NoMetrics) Reconciled(Reconcile) {}

// Synced implements [Metrics].
func (NoMetrics) Synced(Sync) {}

// WriteLagged implements [Metrics].
func (NoMetrics) WriteLagged(schema.GroupVersionResource) {}

// Forget implements [Metrics].
func (NoMetrics) Forget(schema.GroupVersionResource) {}
func (NoMetrics) embedsNoMetrics()                   {}

// Sync is a completed sync of a watch.
type Sync struct {
	GVR  schema.GroupVersionResource // the watched type
	Took time.Duration               // from the start of the watch, or from the end of its last synced state
}

// Reconcile is a completed call to a handler.
type Reconcile struct {
	GVR     schema.GroupVersionResource
	Outcome Outcome
	Cause   Cause         // why the handler was called
	Queued  time.Duration // how long the object waited in the queue, excluding the delay of a retry or RequeueAfter
	Took    time.Duration // the duration of the call
	// Err is nil if the handler returned nil. Otherwise, it has the text of the handler's error or panic. It does not wrap
	// the error, whose methods could panic.
	Err error
}

// Outcome is the result of a handler call. It is also used as a metric label.
type Outcome string

const (
	OutcomeSuccess     Outcome = "success"
	OutcomeRequeue     Outcome = "requeue"     // the handler returned RequeueAfter
	OutcomeGone        Outcome = "gone"        // the object or its type is gone, or its namespace is terminating
	OutcomeInterrupted Outcome = "interrupted" // the run ended, serving stopped, or the error is an Interrupted error
	OutcomeFailure     Outcome = "failure"     // the object will be retried
	OutcomePanic       Outcome = "panic"       // the object will be retried
	OutcomeParked      Outcome = "parked"      // parked after too many consecutive failures
	OutcomeTerminal    Outcome = "terminal"    // parked because the handler returned Terminal
)
