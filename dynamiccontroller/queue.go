package dynamiccontroller

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/attempts"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/feed"
)

func newQueue() *queue {
	return fairqueue.New[ObjectIdentifiers, schema.GroupVersionResource, string, served](
		func(id ObjectIdentifiers) schema.GroupVersionResource { return id.GVR },
		func(id ObjectIdentifiers) string { return id.NamespacedKey },
		func(gvr schema.GroupVersionResource, key string) ObjectIdentifiers {
			return ObjectIdentifiers{NamespacedKey: key, GVR: gvr}
		},
	)
}

// maxBatch limits the number of keys that are added each time the queue is locked.
const maxBatch = 256

var _ feed.Target = (*registration)(nil)

// Pause implements feed.Target.
func (r *registration) Pause() { r.group.Pause() }

// Resume implements feed.Target.
func (r *registration) Resume() { r.group.Resume() }

// AddExisting implements feed.Target.
func (r *registration) AddExisting(keys []string) { r.addBackground(CauseInitialList, keys) }

// AddAllAfterLoss implements feed.Target.
func (r *registration) AddAllAfterLoss() { r.addBackground(CauseResync, r.allKeys()) }

// AddAllAfterSwap implements feed.Target.
func (r *registration) AddAllAfterSwap() { r.addBackground(CauseReplaced, r.allKeys()) }

// addBackground adds the keys to the background lane. If no run serves the type, the keys are ignored, because the next
// run adds all objects.
func (r *registration) addBackground(kind CauseKind, keys []string) {
	for batch := range slices.Chunk(keys, maxBatch) {
		r.group.Because(because(kind)).Add(fairqueue.Background, batch...)
	}
}

// AddChanged implements feed.Target.
func (r *registration) AddChanged(keys []string) { r.addLive(because(CauseEvent), keys) }

// AddAffected implements feed.Target.
func (r *registration) AddAffected(keys []string, gvr schema.GroupVersionResource, key string) {
	if len(keys) > 0 {
		r.addLive(becauseOf(gvr, key), keys)
	}
}

// AddCallers implements feed.Target.
func (r *registration) AddCallers(keys []string) { r.addLive(because(CauseInitialList), keys) }

// addLive adds the keys to the live lane. If the run has ended, keys that are not in the cache are kept for the next
// run.
func (r *registration) addLive(cause queueCause, keys []string) {
	if len(keys) > 0 && !r.group.Because(cause).Add(fairqueue.Live, keys...) {
		r.keepAbsent(keys...)
	}
}

// Deleted implements feed.Target.
func (r *registration) Deleted(key string, accepted bool) {
	r.attempts.Deleted(key, !accepted, r.group.Has(key))
}

// Normalize implements feed.Target.
func (r *registration) Normalize(key string) (string, error) { return normalizeKey(key) }

// Malformed implements feed.Target.
func (r *registration) Malformed(name, key string, err error) {
	r.ignoreMalformedKey("MapFunc of "+name, key, err)
}

// addAfter adds a key to the live lane after d. If the run has ended, a key that is not in the cache is kept for the
// next run.
func (r *registration) addAfter(kind CauseKind, key string, d time.Duration) {
	if !r.group.Because(because(kind)).AddAfter(key, d) {
		r.keepAbsent(key)
	}
}

// addInterrupted adds a key whose call did not begin, because its run was over, to the live lane after a short delay.
func (r *registration) addInterrupted(key string, kinds CauseKind) {
	r.addAfter(CauseInterrupted|kinds, key, min(interruptedDelay, r.config.MaxRetryDelay))
}

// keepAbsent makes the next run reconcile the keys that are not in the cache. It reconciles all others anyway.
func (r *registration) keepAbsent(keys ...string) {
	store := r.feed.Store()
	for _, key := range keys {
		if !store.Has(key) {
			r.attempts.Keep(key)
			r.addBackground(CauseInterrupted, []string{key}) // accepted if the next run has begun in the meantime
		}
	}
}

// allKeys returns the keys in the cache and the keys that have a record. No key is returned twice. If the caller added
// a key to the queue twice, a worker could reconcile the object in between, and then once more.
func (r *registration) allKeys() []string {
	missing := map[string]struct{}{}
	for _, key := range r.attempts.Keys() {
		missing[key] = struct{}{}
	}
	keys := r.feed.Store().Keys()
	for _, key := range keys {
		delete(missing, key)
	}
	return slices.AppendSeq(keys, maps.Keys(missing))
}

// ignoreMalformedKey counts and logs a malformed key.
func (r *registration) ignoreMalformedKey(source, key string, reason error) {
	r.mu.Lock()
	r.malformedKeys++
	first := r.malformedKeys == 1
	r.mu.Unlock()
	log := r.log
	if !first {
		log = log.V(1)
	}
	log.Info("Malformed key ignored", keySource, source, keyKey, key, keyError, reason.Error())
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
