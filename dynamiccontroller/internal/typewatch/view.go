package typewatch

import (
	"sync/atomic"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

// contents is the part of a watch that is read through views.
type contents struct {
	key    Key
	shared bool // whether other subscriptions can join the watch
	log    logr.Logger
	kindOf func(schema.GroupVersionResource) schema.GroupVersionKind // see Config.KindOf
	store  *objects.Store

	// Written only under the watch's delivery lock.
	listed     atomic.Bool              // whether the store holds a complete list from the current session
	everListed atomic.Bool              // whether the store has ever held a complete list
	changes    atomic.Int64             // number of changes that watch.notify has delivered
	unusable   atomic.Pointer[Unusable] // never nil
}

// View reads a watch's store using a subscription's options. The zero View must not be used. If the subscription moves
// to another watch, an existing View still reads from the old one.
type View struct {
	contents *contents
	options  *Options
	indexes  *viewIndexes
}

// Options returns the subscription's options.
func (v View) Options() Options { return *v.options }

// GroupResource returns the type of the objects.
func (v View) GroupResource() schema.GroupResource { return v.contents.key.GVR.GroupResource() }

// Value returns the value of the subscription's options. It can be replaced by [Subscription.Update].
func (v View) Value() any { return v.options.Value }

// SameForm reports whether objects of both views have the same Go type and the same parts, so that they can be
// compared.
func (v View) SameForm(other View) bool {
	return v.options.Projection == other.options.Projection &&
		(v.contents == other.contents || v.contents.shared && other.contents.shared)
}

// HasSynced reports whether the store holds a complete list from the current session.
func (v View) HasSynced() bool { return v.contents.listed.Load() }

// Store returns the store of the watch. It can hold more of each object than the subscription needs; see [View.Decode].
// The caller must not modify the store.
func (v View) Store() *objects.Store { return v.contents.store }

// Unusable returns the objects that the watch has received but cannot use.
func (v View) Unusable() Unusable { return *v.contents.unusable.Load() }

// Changes returns the number of changes to the objects that the watch has delivered so far, or would have delivered to
// a subscription with an event handler.
func (v View) Changes() int64 { return v.contents.changes.Load() }

// Decode decodes a stored object and reduces it to the subscription's projection.
func (v View) Decode(r *objects.Record) (runtime.Object, error) {
	object, err := r.Decode(v.options.Projection)
	if m, ok := object.(*metav1.PartialObjectMetadata); ok && v.options.Projection == objects.Metadata {
		v.setKind(m)
	}
	return object, err
}

// DecodeInto decodes a stored object, reduced to the subscription's projection, into the value to which into points. If
// that is a PartialObjectMetadata or an Unstructured, it has the same kind as the result of [View.Decode].
func (v View) DecodeInto(r *objects.Record, into any) error {
	err := r.DecodeInto(into, v.options.Projection)
	if err != nil || v.options.Projection != objects.Metadata {
		return err
	}
	switch o := into.(type) {
	case *metav1.PartialObjectMetadata:
		o.SetGroupVersionKind(partialKind)
		v.setKind(o)
	case *unstructured.Unstructured:
		o.SetGroupVersionKind(partialKind)
		v.setKind(o)
	}
	return nil
}

// partialKind is the kind of metadata whose real kind is unknown.
var partialKind = metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata")

// setKind sets the kind of an object that was decoded as metadata, if it is known.
func (v View) setKind(object schema.ObjectKind) {
	if kindOf := v.contents.kindOf; kindOf != nil {
		if kind := kindOf(v.contents.key.GVR); !kind.Empty() {
			object.SetGroupVersionKind(kind)
		}
	}
}
