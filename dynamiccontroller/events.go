package dynamiccontroller

import (
	"context"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/protect"
)

// Object is a cached object that is decoded when it is used. It is passed to a [Predicate] or [MapFunc], and returned
// by listers. Its methods are safe for concurrent use, even after the function has returned. The maps, slices and
// pointers that they return are shared and must not be modified.
//
// The namespace, name, UID and resourceVersion are always decoded. Other metadata is decoded on first use, and the
// whole object on each call to Object.
type Object interface {
	// Object returns the object in the same form as the watch's [Lister]. If decoding fails, it returns only metadata.
	Object() runtime.Object

	GetNamespace() string
	GetName() string
	GetUID() types.UID
	GetResourceVersion() string
	GetGeneration() int64
	GetCreationTimestamp() metav1.Time
	GetDeletionTimestamp() *metav1.Time
	GetDeletionGracePeriodSeconds() *int64
	GetLabels() map[string]string
	GetAnnotations() map[string]string
	GetFinalizers() []string
	GetOwnerReferences() []metav1.OwnerReference
}

// Predicate reports whether a change to an object should be processed. For a new object, oldObj is nil. For a deleted
// object, newObj is nil. See [WithPredicate].
//
// The context is cancelled when the run ends. A predicate may use the controller's listers, including the lister of
// its own watch, which already shows the new state. It must not call any other method of the controller. The cache of
// another watch can be older or newer than the change.
type Predicate func(ctx context.Context, oldObj, newObj Object) bool

// MapFunc is called when an object of a watched type has changed. It returns the keys of the served type's objects to
// reconcile. See [Watches].
//
// Keys are in the format of [ObjectIdentifiers].NamespacedKey. A malformed key is ignored, logged and counted in
// [TypeStatus].MalformedKeys. A MapFunc is called for each object of the initial list. For each change, it is called
// with the old state, if any, and then with the new state, if any. Calls for one watch are never concurrent. They must
// return quickly, because all subscribers to the watch wait for them. If a MapFunc panics, the panic is logged and
// nothing is reconciled.
//
// The context is cancelled when the run ends. A MapFunc may use the controller's listers, including the listers of its
// own watch and of the served type. It must not call any other method of the controller. The cache of another watch,
// such as the watch of the served type, can be older or newer than the change. Until that watch has synced, its lister
// returns [ErrNotSynced].
type MapFunc func(ctx context.Context, object Object) []string

// storedObject implements Object for a record.
type storedObject struct {
	*objects.Record
	view typewatch.View
	once sync.Once
	meta *metav1.ObjectMeta // set by once.Do
}

// newObject returns the record as an Object. If r is nil, it returns a nil Object.
func newObject(r *objects.Record, view typewatch.View) Object {
	if r == nil {
		return nil
	}
	return &storedObject{Record: r, view: view}
}

func (o *storedObject) Object() runtime.Object {
	object, err := o.view.Decode(o.Record)
	if err != nil {
		return &metav1.PartialObjectMetadata{ObjectMeta: *o.ObjectMeta()}
	}
	return object
}

func (o *storedObject) metadata() *metav1.ObjectMeta {
	o.once.Do(func() { o.meta = o.ObjectMeta() })
	return o.meta
}

func (o *storedObject) GetGeneration() int64               { return o.metadata().Generation }
func (o *storedObject) GetCreationTimestamp() metav1.Time  { return o.metadata().CreationTimestamp }
func (o *storedObject) GetDeletionTimestamp() *metav1.Time { return o.metadata().DeletionTimestamp }
func (o *storedObject) GetDeletionGracePeriodSeconds() *int64 {
	return o.metadata().DeletionGracePeriodSeconds
}
func (o *storedObject) GetLabels() map[string]string      { return o.metadata().Labels }
func (o *storedObject) GetAnnotations() map[string]string { return o.metadata().Annotations }
func (o *storedObject) GetFinalizers() []string           { return o.metadata().Finalizers }

// accepts reports whether the predicate, if any, accepts a change. It returns true if the predicate panics.
func (o *watchOptions) accepts(
	ctx context.Context, log logr.Logger, view typewatch.View, c objects.Change,
) (accepted bool) {
	if o.predicate == nil {
		return true
	}
	if panicked := protect.Call(func() {
		accepted = o.predicate(ctx, newObject(c.Old, view), newObject(c.New, view))
	}); panicked != nil {
		log.Error(panicked, "Predicate panicked, change accepted", keyStack, string(panicked.Stack))
		return true
	}
	return accepted
}

// mapKeys calls the MapFunc for a stored object. It returns nil if the MapFunc panics.
func (o *secondaryOptions) mapKeys(
	ctx context.Context, log logr.Logger, view typewatch.View, r *objects.Record,
) (keys []string) {
	if panicked := protect.Call(func() {
		keys = o.mapFunc(ctx, newObject(r, view))
	}); panicked != nil {
		log.Error(panicked, "MapFunc panicked, nothing enqueued",
			keyWatched, nameOf(o.key.GVR), keyStack, string(panicked.Stack))
		return nil
	}
	return keys
}

// eventHandler returns an event handler that queues changed objects of the served type. Predicates receive ctx.
func (r *registration) eventHandler(ctx context.Context) typewatch.EventHandler {
	primary := r.subscriptions.primary
	return typewatch.EventHandler{
		Known:  func(keys []string) { r.addBackground(keys) },
		Synced: func() { r.subscriptions.delivered(primary) },
		Changed: func(c objects.Change) {
			options := &r.options.Load().watchOptions
			accepted := options.accepts(ctx, r.log, primary.View(), c)
			if c.New == nil {
				r.recordDeletion(c.Key, !accepted)
			}
			if !accepted {
				return
			}
			if !r.group.Add(fairqueue.Live, c.Key) && c.New == nil {
				r.markPending(c.Key) // the run has ended, and the cache no longer holds the object
			}
		},
	}
}

// eventHandler returns an event handler for the objects of a watched type. It queues the owners of each changed
// object, or the objects that the MapFunc returns. The context is passed to predicates and MapFuncs. Once the context
// is cancelled, the rest of an initial list is ignored, because the next run delivers all objects again.
func (sec *secondary) eventHandler(ctx context.Context) typewatch.EventHandler {
	return typewatch.EventHandler{
		Known: func(keys []string) {
			view := sec.sub.View()
			var targets []string
			for _, key := range keys {
				if ctx.Err() != nil {
					return
				}
				if r, known := view.Store().Get(key); known {
					targets = sec.addTargets(ctx, targets, view, r)
				}
				if len(targets) >= maxBatch { // the MapFunc can return many keys for each object
					sec.enqueue(fairqueue.Background, targets)
					targets = nil
				}
			}
			sec.enqueue(fairqueue.Background, targets)
		},
		Synced: func() { sec.reg.subscriptions.delivered(sec.sub) },
		Changed: func(c objects.Change) {
			view, options := sec.sub.View(), sec.options.Load()
			if options.predicate != nil && !options.accepts(ctx, sec.reg.log, view, c) {
				return
			}
			targets := sec.addTargets(ctx, nil, view, c.Old)
			sec.enqueue(fairqueue.Live, sec.addTargets(ctx, targets, view, c.New))
		},
	}
}

// enqueue adds keys to the queue. It reorders keys.
func (sec *secondary) enqueue(lane fairqueue.Lane, keys []string) {
	slices.Sort(keys)
	keys = slices.Compact(keys)
	if len(keys) == 0 || sec.reg.group.Add(lane, keys...) {
		return
	}
	for _, key := range keys {
		sec.reg.markPending(key) // the run has ended
	}
}

// addTargets appends the keys of the watched object's owners, or the keys that the MapFunc returns for the object.
func (sec *secondary) addTargets(ctx context.Context, keys []string, view typewatch.View, r *objects.Record) []string {
	if r == nil {
		return keys
	}
	if sec.key.Owned {
		return sec.addOwners(keys, r)
	}
	return sec.addMapped(ctx, keys, view, r)
}

// addOwners appends the object's owners that are in the served type's cache. Owners are identified by UID.
func (sec *secondary) addOwners(keys []string, r *objects.Record) []string {
	owners := sec.sub.Owners(r)
	if len(owners) == 0 {
		return keys
	}
	served := sec.reg.subscriptions.primary.View().Store()
	for i := range owners {
		if !owners[i].Controller && !sec.key.EveryOwner {
			continue
		}
		if key, known := served.FindOwner(&owners[i]); known {
			keys = append(keys, key)
		}
	}
	return keys
}

func (sec *secondary) addMapped(ctx context.Context, keys []string, view typewatch.View, r *objects.Record) []string {
	for _, returned := range sec.options.Load().mapKeys(ctx, sec.reg.log, view, r) {
		key, err := normalizeKey(returned)
		if err != nil {
			sec.reg.ignoreMalformedKey("MapFunc of "+nameOf(sec.key.GVR), returned, err)
			continue
		}
		keys = append(keys, key)
	}
	return keys
}
