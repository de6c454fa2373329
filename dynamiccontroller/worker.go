package dynamiccontroller

import (
	"context"
	"time"

	"github.com/go-logr/logr"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
)

// work takes items from the queue and reconciles them until the run is over. Handlers' contexts are made of base, which
// ends with the run's but tells another cause.
func (c *DynamicController) work(base context.Context, isOver func() bool) {
	// A worker whose handler outlived its run must not take an item of the next run.
	for !isOver() {
		id, reg, shutdown := c.storage.Next()
		if shutdown {
			return
		}
		if isOver() {
			// Whatever run comes next, and it may have begun: the item is its.
			c.handOn(reg, id)
			c.queue.Done(id)
			return
		}
		c.reconcile(base, reg, id)
	}
}

// handOn leaves to the run that goes on, or else to the next one, a call that was owed and not made.
func (c *DynamicController) handOn(reg *registration, id ObjectIdentifiers) {
	if !reg.group.Add(fairqueue.Live, id) && !c.watchOf(reg).Has(id.NamespacedKey) {
		reg.miss(id.NamespacedKey)
	}
}

// reconcile calls the handler and settles the result.
func (c *DynamicController) reconcile(base context.Context, reg *registration, id ObjectIdentifiers) {
	defer c.queue.Done(id)
	served := reg.served.Load()
	ctx, ok := reg.begin(base, id.NamespacedKey, served.timeout)
	if !ok {
		return
	}
	log := reg.log.WithValues(keyObject, id.NamespacedKey)
	got := goexited
	// Deferred, because a handler can end its goroutine.
	defer func() { reg.end(id.NamespacedKey, c.settle(ctx, log, reg, id, got)) }()
	got = c.call(logr.NewContext(ctx, log), reg, served.handler, id)
}

// settle is the one place where an item is forgotten, retried, delayed or parked. It runs before the item is Done, so
// that its queue operations apply to the registration for which the item was handed out.
func (c *DynamicController) settle(ctx context.Context, log logr.Logger, reg *registration, id ObjectIdentifiers, got result) Outcome {
	outcome, failures := got.outcome, 0
	switch outcome {
	case OutcomeFailure, OutcomePanic:
		failures = reg.failed(id.NamespacedKey)
		if most := c.config.QueueMaxRetries; most >= 0 && failures > most {
			outcome = OutcomeParked
		}
	case OutcomeTerminal:
		failures = reg.failed(id.NamespacedKey)
	case OutcomeInterrupted:
		// As many failures in a row as before.
	default:
		reg.recovered(id.NamespacedKey)
	}

	switch outcome {
	case OutcomeSuccess:
		c.queue.Forget(id)
	case OutcomeGone:
		c.queue.Forget(id)
		if got.byType {
			log.V(1).Info("Reconcile ended, NotFound is attributed to the object because its type is not served", keyError, got.err.Error())
		}
	case OutcomeRequeue:
		switch {
		case c.queue.ShuttingDown():
			c.handOn(reg, id)
		case got.after > 0:
			c.queue.Forget(id)
			c.queue.AddAfter(id, got.after)
		default:
			c.queue.AddRateLimited(id)
		}
	case OutcomeInterrupted:
		if hasEnded(ctx) || c.queue.ShuttingDown() {
			c.handOn(reg, id)
		} else {
			c.queue.AddAfter(id, min(interruptedDelay, c.config.MaxRetryDelay))
		}
		log.V(1).Info("reconcile interrupted", keyError, got.err.Error())
	case OutcomeFailure, OutcomePanic:
		c.queue.AddRateLimited(id)
		logFailure(log, failures, got)
	case OutcomeParked, OutcomeTerminal:
		c.queue.Forget(id)
		reg.park(id.NamespacedKey, failures, got.err)
		log.Error(got.err, "reconcile failed, the object is parked", keyFailures, failures)
	}
	return outcome
}

// interruptedDelay is the wait before a handler that says it was interrupted is called again in the same run. Mostly
// the run ends before.
const interruptedDelay = time.Second

// logFailure logs the first of several failures in a row at V(0), and the others at V(1). A panic is always logged as
// an error.
func logFailure(log logr.Logger, failures int, got result) {
	switch {
	case got.outcome == OutcomePanic:
		log.Error(got.err, "handler panicked, will retry", keyFailures, failures, keyStack, string(got.stack))
	case failures == 1:
		log.Info("reconcile failed, will retry", keyError, got.err.Error())
	default:
		log.V(1).Info("reconcile failed again, will retry", keyFailures, failures, keyError, got.err.Error())
	}
}
