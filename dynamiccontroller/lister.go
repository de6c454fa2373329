package dynamiccontroller

import (
	"errors"
	"fmt"
	"iter"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// ErrNotSynced is returned by a lister whose cache does not hold a complete list.
var ErrNotSynced = errors.New("the cache has not synced")

// ErrOtherShard is returned by a lister of a type whose shard is neither led nor kept warm by this process: Run or
// RunWatches is active for shards, or was last, but not for that of the type. See [WithShard].
var ErrOtherShard = errors.New("the type's shard is neither led nor kept warm by this process")

// ErrNoIndex is returned by [Lister].ByIndex for a name that has not been declared by [WithIndex] or [AddIndex].
var ErrNoIndex = typewatch.ErrNoIndex

// Lister reads the cache of a watch. Objects are cached in encoded form and decoded on each call. The caller owns the
// decoded objects and may modify them.
//
// Objects are *unstructured.Unstructured with [CacheFull] and *metav1.PartialObjectMetadata with [CacheMetadata]. If a
// transform returned an object of another Go type, that object itself is returned and must not be modified.
//
// Get takes a key in the format of [ObjectIdentifiers].NamespacedKey. ByNamespace("").Get returns a cluster-scoped
// object, so ByNamespace(id.Namespace()).Get(id.Name()) works for every object. ByNamespace("").List returns the
// objects of all namespaces. Selectors are applied before objects are decoded. [NewTypedLister], [GetInto] and
// [DecodeInto] decode objects directly into other Go types.
type Lister interface {
	cache.GenericLister
	// All returns an iterator over the objects in a namespace that match the selector. An empty namespace means all
	// namespaces, and a nil selector matches all objects. The loop iterates over a snapshot and decodes one object at
	// a time. An object that cannot be decoded yields an error and does not end the loop.
	All(namespace string, selector labels.Selector) iter.Seq2[runtime.Object, error]
	// Objects returns the objects that All iterates over, without decoding them. Use it if the metadata is sufficient,
	// or decides which objects are decoded.
	Objects(namespace string, selector labels.Selector) ([]Object, error)
	// ByIndex returns the objects of all namespaces for which the function of an index returns the value, without
	// decoding them. [WithIndex] declares the index. The result is as current as the results of the other methods. The
	// first call builds the index. The cost of a later call is linear in the number of results and in the number of
	// objects that have changed since the previous call. ByIndex waits for the function; see [WithIndex]. If no index with
	// this name is declared, the error wraps [ErrNoIndex] and lists the declared ones.
	ByIndex(name, value string) ([]Object, error)
}

// Lister returns a lister that reads the cache of a served type. The lister remains valid after later calls to
// StartServingGVK. If such a call changes the type's watch, the lister reads from the new watch. The lister's methods
// return [ErrNotSynced] while the cache is not synced, [ErrOtherShard] while this process serves and watches no shard
// of the type, and [ErrNotServed] once the type is no longer served. With [CacheKeys], no objects are cached, so Lister
// and the lister's methods return an error. Listers are safe for concurrent use, and may be used by handlers,
// predicates and MapFuncs.
func (c *DynamicController) Lister(gvr schema.GroupVersionResource) (Lister, error) {
	reg, err := c.registry.registrationOf(gvr)
	if err != nil {
		return nil, err
	}
	if keepsNoObjects(reg.feed.Newest().Primary.Watch) && keepsNoObjects(reg.feed.Primary().View().Options()) {
		return nil, errNoObjects(gvr)
	}
	find := func() (typewatch.View, error) {
		reg, err := c.readable(gvr)
		if err != nil {
			return typewatch.View{}, err
		}
		view := reg.feed.Primary().View()
		if keepsNoObjects(view.Options()) && !keepsNoObjects(reg.feed.Newest().Primary.Watch) {
			return view, errNotSynced(gvr) // a swap is pending
		}
		return view, nil
	}
	addIndexes := func(indexes *typewatch.Indexes) (done <-chan struct{}, err error) {
		reg, err := c.registry.registrationOf(gvr)
		switch {
		case err != nil:
			return nil, err
		case keepsNoObjects(reg.feed.Newest().Primary.Watch):
			return nil, errNoObjects(gvr)
		}
		return reg.feed.AddIndexes(indexes), nil
	}
	return lister{gvr: gvr, find: find, addIndexes: addIndexes}, nil
}

// SecondaryLister reads the cache of a watch that was added to a served type with [Owns] or [Watches].
type SecondaryLister interface {
	Lister
	// OwnedBy returns the objects that are owned by the object with the given UID, without decoding them. For a watch
	// created by Owns without EveryOwner, only controller references count. Otherwise, every owner reference counts. The
	// first call builds an index. The cost of later calls is linear in the number of results.
	OwnedBy(owner types.UID) ([]Object, error)
}

// SecondaryLister returns a lister that reads the cache of a watch that StartServingGVK or AddWatches added to a served
// type. The key is the result of [Watch.Key]. The lister behaves like one returned by [DynamicController.Lister]. By
// default, the objects are *metav1.PartialObjectMetadata. If the type is not served, or has no watch with this key, the
// error is [ErrNotServed].
//
// If the watch is replaced, the lister reads from the new watch. The cache is updated before an event of the watch is
// handled, so the handler, predicate and MapFunc read the new state.
func (c *DynamicController) SecondaryLister(gvr schema.GroupVersionResource, key WatchKey) (SecondaryLister, error) {
	find := func() (typewatch.View, error) {
		reg, err := c.readable(gvr)
		if errors.Is(err, ErrOtherShard) {
			return typewatch.View{}, err
		}
		if err == nil {
			if sub := reg.feed.Secondary(key.asFeed()); sub != nil {
				return sub.View(), nil
			}
		}
		return typewatch.View{}, fmt.Errorf("%s of %s: %w", key.name(), nameOf(gvr), ErrNotServed)
	}
	served := func() (*registration, error) {
		reg, err := c.registry.registrationOf(gvr)
		if err != nil || reg.feed.Secondary(key.asFeed()) == nil {
			return nil, fmt.Errorf("%s of %s: %w", key.name(), nameOf(gvr), ErrNotServed)
		}
		return reg, nil
	}
	if _, err := served(); err != nil {
		return nil, err
	}
	addIndexes := func(indexes *typewatch.Indexes) (done <-chan struct{}, err error) {
		reg, err := served()
		if err != nil {
			return nil, err
		}
		return reg.feed.AddSecondaryIndexes(key.asFeed(), indexes), nil
	}
	return secondaryLister{
		lister:         lister{gvr: key.GVR, find: find, addIndexes: addIndexes},
		controllerOnly: key.Owned && !key.EveryOwner,
	}, nil
}

// readable returns the registration of a type, or an error if the type is not served or belongs to another shard.
func (c *DynamicController) readable(gvr schema.GroupVersionResource) (*registration, error) {
	reg, watched, err := c.registry.lookUp(gvr)
	if err == nil && !watched {
		err = fmt.Errorf("read %s from the cache: %w", nameOf(gvr), ErrOtherShard)
	}
	if err != nil {
		return nil, err
	}
	return reg, nil
}

func keepsNoObjects(options typewatch.Options) bool { return options.Projection == objects.Keys }

func errNoObjects(gvr schema.GroupVersionResource) error {
	return fmt.Errorf("read %s from the cache: CacheKeys keeps no objects; use CacheMetadata or CacheFull", nameOf(gvr))
}

func errNotSynced(gvr schema.GroupVersionResource) error {
	return fmt.Errorf("read %s from the cache: %w", nameOf(gvr), ErrNotSynced)
}

// lister looks up its view on each call, because the watch may have been replaced since the last call.
type lister struct {
	gvr  schema.GroupVersionResource
	find func() (typewatch.View, error)
	// addIndexes adds indexes to the options of the watch. The channel is closed when they have been added.
	addIndexes func(*typewatch.Indexes) (done <-chan struct{}, err error)
}

var _ Lister = lister{}

// view returns the current view. It returns an error if the view has not synced, or if its watch stores only keys.
func (l lister) view() (typewatch.View, error) {
	view, err := l.find()
	switch {
	case err != nil:
		return view, err
	case keepsNoObjects(view.Options()):
		return view, errNoObjects(l.gvr)
	case !view.HasSynced():
		return view, errNotSynced(l.gvr)
	}
	return view, nil
}

// matching returns the records that match the selector, in one namespace or in all namespaces.
func (l lister) matching(namespace string, selector labels.Selector) (typewatch.View, []*objects.Record, error) {
	view, err := l.view()
	if err != nil {
		return view, nil, err
	}
	records := view.Store().List(namespace)
	if selector != nil && !selector.Empty() {
		records = slices.DeleteFunc(records, func(r *objects.Record) bool { return !r.Matches(selector) })
	}
	return view, records, nil
}

func (l lister) record(name string) (typewatch.View, *objects.Record, error) {
	view, err := l.view()
	if err != nil {
		return view, nil, err
	}
	key, err := normalizeKey(name)
	if err != nil {
		key = name
	}
	r, known := view.Store().Get(key)
	if !known {
		return view, nil, apierrors.NewNotFound(l.gvr.GroupResource(), name)
	}
	return view, r, nil
}

func (l lister) List(selector labels.Selector) ([]runtime.Object, error) {
	return l.list(metav1.NamespaceAll, selector)
}

func (l lister) list(namespace string, selector labels.Selector) ([]runtime.Object, error) {
	view, records, err := l.matching(namespace, selector)
	if err != nil {
		return nil, err
	}
	return decodeAll(records, view.Decode)
}

func (l lister) All(namespace string, selector labels.Selector) iter.Seq2[runtime.Object, error] {
	return each(l, namespace, selector, typewatch.View.Decode)
}

func (l lister) Objects(namespace string, selector labels.Selector) ([]Object, error) {
	view, records, err := l.matching(namespace, selector)
	if err != nil {
		return nil, err
	}
	return newObjects(records, view), nil
}

func newObjects(records []*objects.Record, view typewatch.View) []Object {
	all := make([]Object, len(records))
	for i, r := range records {
		all[i] = newObject(typewatch.NewObject(r, view))
	}
	return all
}

func (l lister) ByIndex(name, value string) ([]Object, error) {
	view, err := l.view()
	if err != nil {
		return nil, err
	}
	records, err := view.ByIndex(name, value)
	if err != nil {
		return nil, fmt.Errorf("read %s from the cache: %w", nameOf(l.gvr), err)
	}
	return newObjects(records, view), nil
}

func (l lister) Get(name string) (runtime.Object, error) {
	view, r, err := l.record(name)
	if err != nil {
		return nil, err
	}
	return view.Decode(r)
}

func (l lister) ByNamespace(namespace string) cache.GenericNamespaceLister {
	return namespaceLister{lister: l, namespace: namespace}
}

func decodeAll[F, T any](from []F, decode func(F) (T, error)) ([]T, error) {
	decoded := make([]T, 0, len(from))
	for _, encoded := range from {
		object, err := decode(encoded)
		if err != nil {
			return nil, err
		}
		decoded = append(decoded, object)
	}
	return decoded, nil
}

// each returns an iterator that decodes the matching objects of a lister.
func each[T any](
	l lister, namespace string, selector labels.Selector, decode func(typewatch.View, *objects.Record) (T, error),
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		view, records, err := l.matching(namespace, selector)
		if err != nil {
			var none T
			yield(none, err)
			return
		}
		for _, r := range records {
			if !yield(decode(view, r)) {
				return
			}
		}
	}
}

type namespaceLister struct {
	lister
	namespace string
}

var _ cache.GenericNamespaceLister = namespaceLister{}

func (l namespaceLister) List(selector labels.Selector) ([]runtime.Object, error) {
	return l.list(l.namespace, selector)
}

func (l namespaceLister) Get(name string) (runtime.Object, error) {
	if l.namespace == "" {
		return l.lister.Get(name)
	}
	object, err := l.lister.Get(l.namespace + "/" + name)
	if apierrors.IsNotFound(err) {
		return nil, apierrors.NewNotFound(l.gvr.GroupResource(), name)
	}
	return object, err
}

type secondaryLister struct {
	lister
	controllerOnly bool
}

func (l secondaryLister) OwnedBy(owner types.UID) ([]Object, error) {
	view, err := l.view()
	if err != nil {
		return nil, err
	}
	records := view.Store().OwnedBy(owner)
	if l.controllerOnly {
		records = slices.DeleteFunc(records, func(r *objects.Record) bool {
			controller := metav1.GetControllerOf(r)
			return controller == nil || controller.UID != owner
		})
	}
	return newObjects(records, view), nil
}

// TypedLister reads the objects of a lister and decodes them into the Go type T, such as corev1.Pod. The caller owns
// the returned objects. Use [NewTypedLister] to create a TypedLister.
type TypedLister[T any] struct {
	lister lister
	// other is used instead of lister if it is not nil. It is the lister of a test, or one from client-go.
	other cache.GenericLister
}

// NewTypedLister returns a typed lister that reads the same objects as the given lister. Objects of a lister that
// belongs to a DynamicController are decoded directly into T. With [CacheMetadata], only the metadata of T is set.
// Object fields that do not exist in T are ignored. If a value cannot be decoded into its field in T, the methods of
// the typed lister return an error.
//
// Any other lister can be used as well, so that a function with a TypedLister can be tested without a controller, for
// example with cache.NewGenericLister. Its objects are copied by way of JSON. NewTypedLister returns an error if the
// lister is nil.
func NewTypedLister[T any](from cache.GenericLister) (TypedLister[T], error) {
	if from == nil {
		return TypedLister[T]{}, errors.New("create a typed lister: the lister is nil")
	}
	if l, ok := listerOf(from); ok {
		return TypedLister[T]{lister: l}, nil
	}
	return TypedLister[T]{other: from}, nil
}

// Get returns the object with the given key (see [ObjectIdentifiers].NamespacedKey), or a NotFound error.
func (l TypedLister[T]) Get(key string) (*T, error) {
	if l.other != nil {
		object, err := l.other.Get(key)
		if err != nil {
			return nil, err
		}
		return convertTo[T](object)
	}
	view, r, err := l.lister.record(key)
	if err != nil {
		return nil, err
	}
	return decodeAs[T](view, r)
}

// List returns the objects in a namespace that match the selector. An empty namespace means all namespaces, and a nil
// selector matches all objects.
func (l TypedLister[T]) List(namespace string, selector labels.Selector) ([]*T, error) {
	if l.other != nil {
		all, err := l.listOther(namespace, selector)
		if err != nil {
			return nil, err
		}
		return decodeAll(all, convertTo[T])
	}
	view, records, err := l.lister.matching(namespace, selector)
	if err != nil {
		return nil, err
	}
	return decodeAll(records, func(r *objects.Record) (*T, error) { return decodeAs[T](view, r) })
}

// All returns an iterator over the objects that List returns. The iterator decodes one object at a time; see [Lister].
func (l TypedLister[T]) All(namespace string, selector labels.Selector) iter.Seq2[*T, error] {
	if l.other == nil {
		return each(l.lister, namespace, selector, decodeAs[T])
	}
	return func(yield func(*T, error) bool) {
		all, err := l.listOther(namespace, selector)
		if err != nil {
			yield(nil, err)
			return
		}
		for _, object := range all {
			if !yield(convertTo[T](object)) {
				return
			}
		}
	}
}

// listOther returns objects of a lister that does not belong to a DynamicController.
func (l TypedLister[T]) listOther(namespace string, selector labels.Selector) ([]runtime.Object, error) {
	if selector == nil {
		selector = labels.Everything()
	}
	if namespace == metav1.NamespaceAll {
		return l.other.List(selector)
	}
	return l.other.ByNamespace(namespace).List(selector)
}

func decodeAs[T any](view typewatch.View, r *objects.Record) (*T, error) {
	into := new(T)
	if err := view.DecodeInto(r, into); err != nil {
		return nil, fmt.Errorf("decode as %T: %w", into, err)
	}
	return into, nil
}

func convertTo[T any](object runtime.Object) (*T, error) {
	into := new(T)
	if err := convert(object, into); err != nil {
		return nil, err
	}
	return into, nil
}
