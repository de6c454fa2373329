package dynamiccontroller

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/feed"
)

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
