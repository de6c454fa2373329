package dynamiccontroller

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Outcome is how a reconcile ended, as a metric's label.
type Outcome string

// All outcomes of a reconcile.
const (
	OutcomeSuccess     Outcome = "success"
	OutcomeRequeue     Outcome = "requeue"     // RequeueAfter
	OutcomeGone        Outcome = "gone"        // the object or its type is gone, or its namespace is terminating
	OutcomeInterrupted Outcome = "interrupted" // an error after its context ended with Run, or one that says so itself
	OutcomeFailure     Outcome = "failure"     // will be retried
	OutcomePanic       Outcome = "panic"       // will be retried
	OutcomeParked      Outcome = "parked"      // too many failures in a row
	OutcomeTerminal    Outcome = "terminal"    // parked at once
)

// Metrics is told what the controller does. Its methods are called concurrently and must return soon. What can be
// counted at leisure is in [DynamicController.Status]. Package metrics has an implementation for Prometheus.
type Metrics interface {
	// Reconciled is called after each call of a handler.
	Reconciled(gvr schema.GroupVersionResource, outcome Outcome, took time.Duration)
	// Forget is called when a type is no longer served. No call for it follows, until it is served again.
	Forget(gvr schema.GroupVersionResource)
}

type noMetrics struct{}

func (noMetrics) Reconciled(schema.GroupVersionResource, Outcome, time.Duration) {}
func (noMetrics) Forget(schema.GroupVersionResource)                             {}
