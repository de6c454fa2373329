package dynamiccontroller

import (
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// MapFunc returns the keys of the objects of a served type that are reconciled when an object of another type changes.
// Keys have the form of [ObjectIdentifiers].NamespacedKey. A malformed key is ignored, and reported in the log and in
// [TypeStatus].MalformedKeys. A MapFunc is called with the object's state before and after each change. It must not change
// the object, must return soon and must not call the controller. If it panics, nothing is reconciled.
type MapFunc func(object runtime.Object) []string

// Owns watches another type beside the served one, and reconciles an object when something happens to an object that it
// owns: one whose controller reference has its UID, or with [EveryOwner] any of its owner references. When a change takes
// an object from one owner to another, both are reconciled, and so is the owner of what was deleted while the watch was
// down. An owner that the cache does not hold is not called for: it is when it appears. The type's initial list
// reconciles the owners in it with the priority of an initial list.
//
// The watch is shared with whoever else needs the same objects, at the greatest depth that any of them asks for; one with
// a transform is not shared. By default all objects are watched and their metadata kept. The options may be
// [WithNamespace], [WithLabelSelector], [WithCache] with [CacheFull] for what looks at more than metadata,
// [WithTransform], which must leave owner references alone, [WithPredicate] to ignore changes, which otherwise all count,
// and EveryOwner.
//
// A type that cannot be watched, because it does not exist for instance, holds nothing up: [TypeStatus] tells, and when it
// can be the owners in its list are reconciled.
func Owns(child schema.GroupVersionResource, opts ...ServeOption) ServeOption {
	return func(s *served) { s.addSecondary(secondaryKey{gvr: child, owns: true}, nil, opts) }
}

// Watches watches another type beside the served one, and reconciles those objects that mapFunc names for an object to
// which something happens, whether the cache holds them or not. Else it is like [Owns].
func Watches(gvr schema.GroupVersionResource, mapFunc MapFunc, opts ...ServeOption) ServeOption {
	return func(s *served) { s.addSecondary(secondaryKey{gvr: gvr}, mapFunc, opts) }
}

// EveryOwner is an option of [Owns]: each of an object's owner references counts, not only its controller's.
func EveryOwner() ServeOption {
	return func(s *served) { s.everyOwner = true }
}

// secondaryKey tells the types that are watched beside one apart.
type secondaryKey struct {
	gvr        schema.GroupVersionResource
	namespace  string
	selector   string
	owns       bool
	everyOwner bool
}

// option names it in errors.
func (k secondaryKey) option() string {
	if k.owns {
		return "Owns(" + nameOf(k.gvr) + ")"
	}
	return "Watches(" + nameOf(k.gvr) + ")"
}

// secondaryOptions are what one Owns or Watches asks for. They are never changed.
type secondaryOptions struct {
	watchOptions
	key     secondaryKey
	mapFunc MapFunc
}

func (s *served) addSecondary(key secondaryKey, mapFunc MapFunc, opts []ServeOption) {
	inner := &served{watchOptions: watchOptions{cache: CacheMetadata}}
	for _, opt := range opts {
		opt(inner)
	}
	for _, err := range inner.errs {
		s.refuse("%s: %w", key.option(), err)
	}
	if inner.saysHow() || len(inner.secondaries) > 0 {
		s.refuse("%s: an option says more than what is watched", key.option())
	}
	if inner.everyOwner && !key.owns {
		s.refuse("%s: EveryOwner is an option of Owns", key.option())
	}
	inner.settle(key.gvr)
	key.namespace, key.selector, key.everyOwner = inner.spec.Namespace, inner.spec.Selector, inner.everyOwner
	s.secondaries = append(s.secondaries, &secondaryOptions{watchOptions: inner.watchOptions, key: key, mapFunc: mapFunc})
}

// check says what is wrong with the options for one that is to be watched.
func (o *secondaryOptions) check(c *DynamicController, s *served) {
	if o.key.gvr.Version == "" || o.key.gvr.Resource == "" {
		s.refuse("%s: the GVR %+v lacks a version or a resource", o.key.option(), o.key.gvr)
	}
	if !o.key.owns && o.mapFunc == nil {
		s.refuse("%s: the MapFunc is nil", o.key.option())
	}
	if o.cache == CacheKeys {
		s.refuse("%s: WithCache(CacheKeys) keeps no owners", o.key.option())
	}
	if err := o.watchOptions.check(c); err != nil {
		s.refuse("%s: %w", o.key.option(), err)
	}
}

// secondary is a type that is watched beside a registration's own.
type secondary struct {
	key  secondaryKey
	reg  *registration
	need *typewatch.Need
	// options are the newest: a swap that needs no other watch replaces them.
	options atomic.Pointer[secondaryOptions]
}
