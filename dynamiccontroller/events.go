package dynamiccontroller

import (
	"context"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/protect"
)

// Object is an object that is passed to a [Predicate] or a [MapFunc]. Its methods are safe for concurrent use, and can
// still be called after the function has returned. The maps, slices and pointers that they return are shared and must
// not be changed.
//
// The methods that return metadata are cheaper than the method Object, which may have to build the object first.
type Object interface {
	// Object returns the object as a lister of the watch returns it: *unstructured.Unstructured with [CacheFull],
	// *metav1.PartialObjectMetadata with [CacheMetadata], or the result of the transform. It must not be changed.
	Object() runtime.Object

	GetNamespace() string
	GetName() string
	GetUID() types.UID
	GetResourceVersion() string
	GetGeneration() int64
	GetCreationTimestamp() metav1.Time
	GetDeletionTimestamp() *metav1.Time
	GetLabels() map[string]string
	GetAnnotations() map[string]string
	GetFinalizers() []string
	GetOwnerReferences() []metav1.OwnerReference
}

// Predicate reports whether a change to an object should be processed. For a new object, oldObj is nil. For a deleted
// object, newObj is nil. See [WithPredicate].
//
// The context is cancelled when the run ends. A predicate can read the listers of the controller, including the lister
// of its own watch, which already shows the new state. It must not call any other method of the controller. A lister of
// another watch can be older or newer than the change.
type Predicate func(ctx context.Context, oldObj, newObj Object) bool

// MapFunc returns keys of objects of the served type. The controller reconciles these objects when the given object of
// a watched type has changed. See [Watches].
//
// Keys have the form of [ObjectIdentifiers].NamespacedKey. A malformed key is ignored, logged, and counted in
// [TypeStatus].MalformedKeys. A MapFunc is called with each object of the initial list. For each change, it is called
// with the state before the change and with the state after it. Calls are never concurrent and must return quickly,
// because all subscribers of the watch wait for them. If a MapFunc panics, the panic is logged and nothing is
// reconciled.
//
// The context is cancelled when the run ends. A MapFunc can read the listers of the controller, including the listers
// of its own watch and of the served type. It must not call any other method of the controller. The lister of another
// watch, such as that of the served type, can be older or newer than the change. Until that watch has synced, its
// lister returns [ErrNotSynced].
type MapFunc func(ctx context.Context, object Object) []string

// storedObject implements Object for an object that a watch stores.
type storedObject struct {
	metadata metav1.Object
	stored   any
	view     typewatch.View
}

// newObject returns the stored object as an Object. If stored is nil, it returns a nil Object.
func newObject(stored any, view typewatch.View) Object {
	if stored == nil {
		return nil
	}
	metadata, err := meta.Accessor(stored)
	if err != nil {
		return nil // not possible: a watch stores only objects that have metadata
	}
	return &storedObject{metadata: metadata, stored: stored, view: view}
}

func (o *storedObject) Object() runtime.Object {
	object, _ := o.view.Project(o.stored).(runtime.Object)
	return object
}

func (o *storedObject) GetNamespace() string               { return o.metadata.GetNamespace() }
func (o *storedObject) GetName() string                    { return o.metadata.GetName() }
func (o *storedObject) GetUID() types.UID                  { return o.metadata.GetUID() }
func (o *storedObject) GetResourceVersion() string         { return o.metadata.GetResourceVersion() }
func (o *storedObject) GetGeneration() int64               { return o.metadata.GetGeneration() }
func (o *storedObject) GetCreationTimestamp() metav1.Time  { return o.metadata.GetCreationTimestamp() }
func (o *storedObject) GetDeletionTimestamp() *metav1.Time { return o.metadata.GetDeletionTimestamp() }
func (o *storedObject) GetLabels() map[string]string       { return o.metadata.GetLabels() }
func (o *storedObject) GetAnnotations() map[string]string  { return o.metadata.GetAnnotations() }
func (o *storedObject) GetFinalizers() []string            { return o.metadata.GetFinalizers() }
func (o *storedObject) GetOwnerReferences() []metav1.OwnerReference {
	return o.metadata.GetOwnerReferences()
}

// accepts reports whether the predicate accepts a change. Without a predicate, every change is accepted and no Object
// is built. If the predicate panics, the change is accepted.
func (o *watchOptions) accepts(
	ctx context.Context, log logr.Logger, view typewatch.View, old, updated any,
) (accepted bool) {
	if o.predicate == nil {
		return true
	}
	if panicked := protect.Call(func() {
		accepted = o.predicate(ctx, newObject(old, view), newObject(updated, view))
	}); panicked != nil {
		log.Error(panicked, "Predicate panicked, processing the change", keyStack, string(panicked.Stack))
		return true
	}
	return accepted
}

// mapKeys calls the MapFunc for a stored object. It returns nil if the MapFunc panics.
func (o *secondaryOptions) mapKeys(
	ctx context.Context, log logr.Logger, view typewatch.View, stored any,
) (keys []string) {
	if panicked := protect.Call(func() {
		if object := newObject(stored, view); object != nil {
			keys = o.mapFunc(ctx, object)
		}
	}); panicked != nil {
		log.Error(panicked, "MapFunc panicked, nothing enqueued",
			keyWatched, nameOf(o.key.GVR), keyStack, string(panicked.Stack))
		return nil
	}
	return keys
}

// eventHandler returns an event handler that adds changed objects of the served type to the queue. The context is
// passed to predicates.
func (r *registration) eventHandler(ctx context.Context) typewatch.EventHandler {
	primary := r.subscriptions.primary
	return typewatch.EventHandler{
		Known:  func(keys []string) { r.add(fairqueue.Background, keys) },
		Synced: func() { r.subscriptions.delivered(primary) },
		Changed: func(key string, old, now any) {
			options := &r.options.Load().watchOptions
			if options.predicate != nil && !options.accepts(ctx, r.log, primary.View(), old, now) {
				if now == nil {
					r.forgetParked(key) // no later event will unpark it
				}
				return
			}
			if !r.group.Add(fairqueue.Live, r.id(key)) && now == nil {
				r.markPending(key) // the run has ended, and the cache no longer holds the object
			}
		},
	}
}

// eventHandler returns an event handler for the objects of a watched type. For each changed object, it adds the owners,
// or the objects that the MapFunc returns, to the queue. The context is passed to predicates and MapFuncs. After the
// context has been cancelled, the remaining objects of an initial list are ignored, because the next run lists them
// again.
func (sec *secondary) eventHandler(ctx context.Context) typewatch.EventHandler {
	return typewatch.EventHandler{
		Known: func(keys []string) {
			view := sec.sub.View()
			var targets targets
			for _, key := range keys {
				if ctx.Err() != nil {
					return
				}
				if obj, known := view.Get(key); known {
					sec.addTargets(ctx, &targets, view, obj)
				}
			}
			sec.enqueue(fairqueue.Background, targets)
		},
		Synced: func() { sec.reg.subscriptions.delivered(sec.sub) },
		Changed: func(_ string, old, now any) {
			view, options := sec.sub.View(), sec.options.Load()
			if options.predicate != nil && !options.accepts(ctx, sec.reg.log, view, old, now) {
				return
			}
			var targets targets
			sec.addTargets(ctx, &targets, view, old)
			sec.addTargets(ctx, &targets, view, now)
			sec.enqueue(fairqueue.Live, targets)
		},
	}
}

// targets is a set of keys of the served type. Its map is created with the first key, because most changes have no
// targets.
type targets map[string]struct{}

func (t *targets) add(key string) {
	if *t == nil {
		*t = targets{}
	}
	(*t)[key] = struct{}{}
}

func (sec *secondary) enqueue(lane fairqueue.Lane, targets targets) {
	if len(targets) == 0 {
		return
	}
	ids := make([]ObjectIdentifiers, 0, len(targets))
	for key := range targets {
		ids = append(ids, sec.reg.id(key))
	}
	if !sec.reg.group.Add(lane, ids...) {
		for key := range targets {
			sec.reg.markPending(key) // the run has ended
		}
	}
}

// addTargets adds the targets for one state of an object of the watched type: its owners, or the keys that the MapFunc
// returns.
func (sec *secondary) addTargets(ctx context.Context, targets *targets, view typewatch.View, obj any) {
	switch {
	case obj == nil:
	case sec.key.Owned:
		sec.addOwners(targets, obj)
	default:
		sec.addMapped(ctx, targets, view, obj)
	}
}

// addOwners adds those owners of the object that the cache of the served type holds. An owner is of the served type if
// the cache holds an object with its UID.
func (sec *secondary) addOwners(targets *targets, obj any) {
	owners := sec.sub.Owners(obj)
	if len(owners) == 0 {
		return
	}
	primary := sec.reg.subscriptions.primary.View()
	for i := range owners {
		if !owners[i].Controller && !sec.key.EveryOwner {
			continue
		}
		if key, known := primary.FindOwner(&owners[i]); known {
			targets.add(key)
		}
	}
}

// addMapped adds the keys that the MapFunc returns.
func (sec *secondary) addMapped(ctx context.Context, targets *targets, view typewatch.View, obj any) {
	for _, returned := range sec.options.Load().mapKeys(ctx, sec.reg.log, view, obj) {
		key, err := normalizeKey(returned)
		if err != nil {
			sec.reg.ignoreMalformedKey("MapFunc of "+nameOf(sec.key.GVR), returned, err)
			continue
		}
		targets.add(key)
	}
}
