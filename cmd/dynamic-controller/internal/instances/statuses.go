package instances

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// statusLag is how long the cache is assumed to lack a status that the platform has written. Afterwards, the cached
// status counts: etcd may have been restored from a backup.
const statusLag = 30 * time.Second

// writtenStatuses holds the last status that the platform has written to each instance, until the cache contains it.
// Whether an instance is less healthy than before, and which revision it has, is therefore never decided from a status
// that is older than the platform's own.
type writtenStatuses struct {
	mu        sync.Mutex // guards instances
	instances map[string]writtenStatus
}

type writtenStatus struct {
	uid             types.UID
	generation      int64
	resourceVersion string
	status          any
	written         time.Time
}

// isNewerThan reports whether a cached instance lacks the status.
func (w writtenStatus) isNewerThan(cached metav1.Object) bool {
	if w.uid != cached.GetUID() || time.Since(w.written) > statusLag {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(w.resourceVersion, cached.GetResourceVersion())
	return err == nil && order > 0
}

// record stores the status of an instance as the API server has returned it after a write.
func (w *writtenStatuses) record(now *unstructured.Unstructured) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.instances == nil {
		w.instances = map[string]writtenStatus{}
	}
	w.instances[cache.MetaObjectToName(now).String()] = writtenStatus{
		uid: now.GetUID(), generation: now.GetGeneration(), resourceVersion: now.GetResourceVersion(),
		status: runtime.DeepCopyJSONValue(now.Object["status"]), written: time.Now(),
	}
}

// restore replaces the status of a cached instance if the platform has written a newer one. The resourceVersion stays:
// the rest of the instance is as old as before. restore reports whether the spec is older than the one that the status
// was written for.
func (w *writtenStatuses) restore(cached *unstructured.Unstructured) (isBehind bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := cache.MetaObjectToName(cached).String()
	last, has := w.instances[key]
	switch {
	case !has:
	case last.isNewerThan(cached):
		cached.Object["status"] = runtime.DeepCopyJSONValue(last.status)
		return last.generation > cached.GetGeneration()
	default:
		delete(w.instances, key)
	}
	return false
}

// forget drops the status of an instance that no longer exists.
func (w *writtenStatuses) forget(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.instances, key)
}

// statusWritten is called after each write of the platform to the status of an instance.
func (r *Reconciler) statusWritten(ctx context.Context, before, now *unstructured.Unstructured) {
	r.statuses.record(now)
	r.recordCondition(ctx, before, now)
}
