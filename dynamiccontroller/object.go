package dynamiccontroller

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/feed"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// Object is a cached object that is decoded when it is used. It is passed to a [Predicate] or [MapFunc], and returned
// by listers. Its methods are safe for concurrent use, even after the function has returned. The maps, slices and
// pointers that they return are shared and must not be modified.
//
// The namespace, name, UID and resourceVersion are always decoded. Other metadata is decoded on first use, and the
// whole object on each call to Object.
type Object interface {
	// Object returns the object in the same form as the watch's [Lister]. If decoding fails, it returns only metadata.
	// [DecodeInto] decodes the object into another Go type.
	Object() runtime.Object
	// The methods of metav1.Object return the metadata. Its setters panic, because the cache shares the object.
	metav1.Object
}

// Predicate reports whether a change to an object should be processed. For a new object, oldObj is nil. For a deleted
// object, newObj is nil. See [WithPredicate].
//
// A predicate is called shortly after the change. If more than 1024 changes wait, because predicates or MapFuncs of the
// type are slow or hang, changes to the same object are combined: the predicate is called once, with the first old
// state and the latest new state, and it is not called for an object that has been created and deleted in the meantime.
// All objects of the served type are then reconciled once, because the predicate might have accepted a change to or
// from a state that was dropped.
//
// After a replacement of the watch, oldObj is nil if the old state has the form of the previous options: another cache
// mode or transform. A deletion is passed to the previous predicate if the object's last state has that form.
//
// The context is cancelled when the run ends. A predicate may use the controller's listers, including the lister of
// its own watch, which already shows the new state or a later one. It must not call any other method of the controller.
// The cache of another watch can be older or newer than the change.
type Predicate func(ctx context.Context, oldObj, newObj Object) bool

// MapFunc is called when an object of a watched type has changed. It returns the keys of the served type's objects to
// reconcile. See [Watches].
//
// Keys are in the format of [ObjectIdentifiers].NamespacedKey. A malformed key is ignored, logged and counted in
// [TypeStatus].MalformedKeys. A MapFunc is called for each object of the initial list. For each change, it is called
// with the old state, if any, and then with the new state, if any. An old state in the form of previous options is
// passed to the MapFunc of these options.
//
// Several changes to an object can be combined, as for a [Predicate]. The MapFunc is then not called with the states in
// between. If one of them is lost, all objects of the served type are reconciled once:
//
//   - With [CacheMetadata], a state in between is lost if its metadata differs from that of the states with which the
//     MapFunc is called. The fields managedFields, resourceVersion and generation do not count, so a MapFunc must not
//     depend on them.
//   - With [CacheFull], a predicate or a transform, each state in between is lost.
//   - Each state that was followed by a call to [DynamicController.AddWatches] with another Watch value for the same
//     key is lost. Handlers should therefore create their Watch values once.
//
// Calls for one watch of a type are never concurrent. Until a MapFunc returns, its watch causes no other reconciles.
// Other types are not affected. [TypeStatus].RunningFunction reports a MapFunc or predicate that hangs. If a MapFunc
// panics, the panic is logged and nothing is reconciled.
//
// The context is cancelled when the run ends. A MapFunc may use the controller's listers, including the listers of its
// own watch and of the served type. It must not call any other method of the controller. The cache of another watch,
// such as the watch of the served type, can be older or newer than the change. Until that watch has synced, its lister
// returns [ErrNotSynced].
type MapFunc func(ctx context.Context, object Object) []string

// ChangeOf takes the context of a [MapFunc] or [MapAnyFunc] and returns the states of the object before and after the
// change because of which the function is called. It is called with each of them. For a new object, oldObj is nil. For
// a deleted object, newObj is nil. If the watch has been replaced in between, a state in the form of the other options
// is nil as well. If the function is called with an existing object, when a run or a watch begins, and for contexts of
// other functions, ok is false.
func ChangeOf(ctx context.Context) (oldObj, newObj Object, ok bool) {
	c := feed.ChangeFrom(ctx)
	if c == nil {
		return nil, nil, false
	}
	return newObject(c.Old), newObject(c.New), true
}

// cachedObject is an alias, because the type storedObject has a method with the name Object.
type cachedObject = typewatch.Object

// storedObject implements Object.
type storedObject struct{ *cachedObject }

// newObject returns a nil Object if o is nil.
func newObject(o *typewatch.Object) Object {
	if o == nil {
		return nil
	}
	return storedObject{o}
}

func (o storedObject) Object() runtime.Object {
	object, err := o.Decode()
	if err != nil {
		return &metav1.PartialObjectMetadata{ObjectMeta: *o.Meta()}
	}
	return object
}
