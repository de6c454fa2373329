package dynamiccontroller

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/attempts"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
)

// queue is the workqueue shared by all types, and group is the part of the queue that belongs to one registration.
type (
	queue = fairqueue.Queue[ObjectIdentifiers, schema.GroupVersionResource, string, served]
	group = fairqueue.Group[ObjectIdentifiers, schema.GroupVersionResource, string, served]
)

// served is a registration and the run that serves it. The queue returns it together with each item. A worker can still
// hold an item when the run ends and the next one begins. The run of the item shows that the item is outdated.
type served struct {
	reg *registration
	run *run // nil until the first run
}

func newQueue() *queue {
	return fairqueue.New[ObjectIdentifiers, schema.GroupVersionResource, string, served](
		func(id ObjectIdentifiers) schema.GroupVersionResource { return id.GVR },
		func(id ObjectIdentifiers) string { return id.NamespacedKey },
		func(gvr schema.GroupVersionResource, key string) ObjectIdentifiers {
			return ObjectIdentifiers{NamespacedKey: key, GVR: gvr}
		},
	)
}

// queueOptions returns the options of the queue.
func (r *registration) queueOptions(o *serveOptions) fairqueue.Options[ObjectIdentifiers, string] {
	options := fairqueue.Options[ObjectIdentifiers, string]{
		Weight: o.weight, Concurrency: o.concurrency, FlowConcurrency: o.perFlow, KeepDelays: o.keepRequeues,
		Limiter: r.limiterOf(o),
	}
	if o.flowOf != nil {
		options.FlowsOf = func(keys []string) []string { return r.flowsOf(o.flowOf, keys) }
	}
	return options
}

// flowsOf returns the flows of objects. The flow is "" if flowOf panics.
func (r *registration) flowsOf(flowOf func(ObjectIdentifiers) string, keys []string) []string {
	flows := make([]string, len(keys))
	for i := 0; i < len(keys); i++ {
		callUserCode(r.log, "Flow function panicked", func() {
			for ; i < len(keys); i++ {
				flows[i] = flowOf(ObjectIdentifiers{NamespacedKey: keys[i], GVR: r.gvr})
			}
		})
	}
	return flows
}

// limiterOf returns the rate limiter set in the options, or the default one.
func (r *registration) limiterOf(o *serveOptions) limiter {
	if o.limiter == nil {
		return defaultLimiter{r.backoff, r.attempts}
	}
	return checkedLimiter{limiter: o.limiter, reg: r}
}

// defaultLimiter is the default rate limiter of a registration; see Config.MinRetryDelay and WithRateLimiter.
type defaultLimiter struct {
	backoff  *attempts.Backoff
	attempts *attempts.Table
}

func (l defaultLimiter) When(id ObjectIdentifiers) time.Duration {
	return l.backoff.Delay(id.NamespacedKey)
}

// NumRequeues returns the number of consecutive failures or requeues that count toward the backoff.
func (l defaultLimiter) NumRequeues(id ObjectIdentifiers) int {
	return l.attempts.Count(id.NamespacedKey)
}

// Forget does nothing, because the attempts are recorded by the registration.
func (l defaultLimiter) Forget(ObjectIdentifiers) {}

// checkedLimiter wraps a custom rate limiter. It recovers from panics and replaces non-positive delays.
type checkedLimiter struct {
	limiter
	reg *registration
}

func (l checkedLimiter) When(id ObjectIdentifiers) (delay time.Duration) {
	config := &l.reg.config
	if !callUserCode(l.reg.log, "Rate limiter panicked", func() { delay = l.limiter.When(id) }) {
		return config.MaxRetryDelay
	}
	if delay <= 0 {
		return config.MinRetryDelay
	}
	return delay
}

func (l checkedLimiter) Forget(id ObjectIdentifiers) {
	callUserCode(l.reg.log, "Rate limiter panicked", func() { l.limiter.Forget(id) })
}
