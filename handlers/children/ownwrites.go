package children

import (
	"context"
	"maps"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/internal/live"
)

// Latest returns a Reader of the children of a parent. It reads from the cache, but the result is never older than what
// Reconcile has written in this run: a child that the cache lacks, or holds in an older version, is returned as the API
// server returned it after the last write. A child that Reconcile has deleted does not exist, even if the cache still
// holds it. The Reader needs no requests of its own. Use it to compute the desired children from existing ones.
//
// The cache must be the one that the Reconciler reads. Config.Cache and Identity.Cache must not read through a Latest.
// The context of each call must be that of the handler. Children are remembered only if Config.Cache or Identity.Cache
// is set, until the cache contains them, but for at most 30 seconds.
func (r *Reconciler) Latest(parent dynamiccontroller.ObjectIdentifiers, cache handlers.Reader) Latest {
	return Latest{reconciler: r, parent: parent, cache: cache}
}

// Latest reads the children of a parent. It implements [handlers.Reader]. See [Reconciler.Latest].
type Latest struct {
	reconciler *Reconciler
	parent     dynamiccontroller.ObjectIdentifiers
	cache      handlers.Reader
}

// Get returns a child, which the caller can modify.
func (l Latest) Get(
	ctx context.Context, gvr schema.GroupVersionResource, namespace, name string,
) (*unstructured.Unstructured, error) {
	cached, err := l.cache.Get(ctx, gvr, namespace, name)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	now := l.own(ctx).newest(identify(gvr, namespace, name), cached)
	if now == nil && err == nil {
		err = apierrors.NewNotFound(gvr.GroupResource(), name)
	}
	if now != nil {
		err = nil
	}
	return now, err
}

// List returns the objects in the cache that match the selector, and the children that the cache lacks. The caller can
// modify them.
func (l Latest) List(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, selector labels.Selector,
) (objects []*unstructured.Unstructured, err error) {
	cached, err := l.cache.List(ctx, gvr, namespace, selector)
	if err != nil {
		return nil, err
	}
	own, listed := l.own(ctx), map[childID]bool{}
	for _, object := range cached {
		id := live.Identify(gvr, object)
		listed[id] = true
		if now := own.newest(id, object); now != nil && matches(selector, now) {
			objects = append(objects, now)
		}
	}
	for _, id := range own.ids() {
		if listed[id] || id.GVR != gvr || namespace != "" && id.Namespace() != namespace {
			continue
		}
		if now := own.newest(id, nil); now != nil && matches(selector, now) {
			objects = append(objects, now)
		}
	}
	return objects, nil
}

func matches(selector labels.Selector, object metav1.Object) bool {
	return selector == nil || selector.Matches(labels.Set(object.GetLabels()))
}

// Newest returns the child that Get would return if the cache contained the given object. It returns nil if the child
// does not exist. Use it for objects that are read from the cache in another way than with Get and List.
func (l Latest) Newest(
	ctx context.Context, gvr schema.GroupVersionResource, cached *unstructured.Unstructured,
) *unstructured.Unstructured {
	return l.own(ctx).newest(live.Identify(gvr, cached), cached)
}

func (l Latest) own(ctx context.Context) *ownWrites { return &l.reconciler.entryOf(ctx, l.parent).own }

// entryOf returns the entry of a parent in the cache of the run.
func (s *settings) entryOf(ctx context.Context, parent dynamiccontroller.ObjectIdentifiers) *parentEntry {
	return s.memory.caches.For(ctx).forHistory(dynamiccontroller.HistoryOf(ctx)).entry(parent)
}

func identify(gvr schema.GroupVersionResource, namespace, name string) childID {
	object := &metav1.ObjectMeta{Namespace: namespace, Name: name}
	return live.Identify(gvr, object)
}

// ownWrites contains the children of a parent as the API server returned them last, until the cache contains them. It
// is the floor for what a reconcile reads. It is safe for concurrent use.
type ownWrites struct {
	mu       sync.Mutex // guards children
	children map[childID]ownWrite
}

// ownWrite is the latest known version of a child.
type ownWrite struct {
	decide.Version
	object *unstructured.Unstructured // nil if the child was deleted
}

// standing is how a cached object relates to the latest known version.
type standing int

const (
	current standing = iota // the cache contains the latest known version or a newer one
	behind                  // the cache contains an older version
	missing                 // the cache does not contain the child yet, or no longer
	deleted                 // the cache contains a child that this run has deleted
)

// standingOf compares the cache with the latest known version. cached is nil if the cache does not contain the child.
func (w ownWrite) standingOf(cached *unstructured.Unstructured) standing {
	switch {
	case time.Since(w.Written) > decide.MaxLag:
		return current
	case cached == nil && w.object == nil:
		return current
	case cached == nil:
		return missing
	case w.object == nil && w.UID == cached.GetUID():
		if cached.GetDeletionTimestamp() != nil {
			return current
		}
		return deleted
	case !w.IsNewerThan(cached):
		return current
	case w.object == nil:
		return deleted
	}
	return behind
}

// read returns how the cached object relates to the latest known version, which is returned if the cache does not
// contain it. Once the cache contains it, it is dropped.
func (o *ownWrites) read(id childID, cached *unstructured.Unstructured) (standing, *unstructured.Unstructured) {
	o.mu.Lock()
	defer o.mu.Unlock()
	last, has := o.children[id]
	if !has {
		return current, nil
	}
	is := last.standingOf(cached)
	if is == current {
		delete(o.children, id)
		return current, nil
	}
	if last.object == nil {
		return is, nil
	}
	return is, last.object.DeepCopy()
}

// newest returns the latest known version of a child, or nil if the child does not exist.
func (o *ownWrites) newest(id childID, cached *unstructured.Unstructured) *unstructured.Unstructured {
	switch is, last := o.read(id, cached); is {
	case behind, missing:
		return last
	case deleted:
		return nil
	default:
		return cached
	}
}

// record stores a version of a child that the API server has returned, unless a newer one is known. It returns the
// latest known version, or nil if the child has been deleted.
func (o *ownWrites) record(id childID, now *unstructured.Unstructured) *unstructured.Unstructured {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch last, has := o.children[id]; {
	case has && last.standingOf(now) == deleted:
		return nil
	case has && last.standingOf(now) == behind:
		return last.object.DeepCopy()
	case !has || last.ResourceVersion != now.GetResourceVersion():
		o.putLocked(id, ownWrite{Version: decide.VersionOf(now, time.Now()), object: now.DeepCopy()})
	}
	return now
}

// recordDeleted stores that the API server has deleted a child, or has marked it as deleted.
func (o *ownWrites) recordDeleted(id childID, child metav1.Object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if last, has := o.children[id]; has && last.UID != child.GetUID() && last.IsNewerThan(child) {
		return
	}
	o.putLocked(id, ownWrite{Version: decide.VersionOf(child, time.Now())})
}

// recordGone stores that the API server has no object with the name of a child.
func (o *ownWrites) recordGone(id childID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if last, has := o.children[id]; has {
		last.object, last.Written = nil, time.Now()
		o.putLocked(id, last)
	}
}

func (o *ownWrites) putLocked(id childID, write ownWrite) {
	if o.children == nil {
		o.children = map[childID]ownWrite{}
	}
	o.children[id] = write
}

func (o *ownWrites) ids() []childID {
	o.mu.Lock()
	defer o.mu.Unlock()
	ids := make([]childID, 0, len(o.children))
	for id := range maps.Keys(o.children) {
		ids = append(ids, id)
	}
	return ids
}

// expire drops the versions that count no longer. Children that are not desired are not read again.
func (o *ownWrites) expire() {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.children, func(_ childID, w ownWrite) bool { return time.Since(w.Written) > decide.MaxLag })
}
