package typewatch

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/internal/protect"
)

// record returns the record of a received object. An object of a namespace that was not requested is unusable, because
// no list of the reflector's namespace would remove it from the store.
func (r *reflector) record(obj any) *objects.Record {
	item := r.watch.record(obj)
	if r.namespace != "" && item.GetNamespace() != r.namespace && item.Unusable() == nil {
		return objects.Unusable(item, fmt.Errorf("metadata.namespace is %.64q, but objects of %q were requested",
			item.GetNamespace(), r.namespace))
	}
	return item
}

// record converts a received object to a record and applies the transform. If the transform fails, the object is stored
// unchanged, because a large object is better than a missing one. The record of an object that cannot be used is
// unusable.
func (w *watch) record(obj any) *objects.Record {
	received, isRecord := obj.(*objects.Record)
	if isRecord && (w.transform == nil || received.IsEncoded()) {
		return received
	}
	if !isRecord {
		decoded, ok := obj.(runtime.Object)
		if !ok {
			return objects.Unusable(obj, fmt.Errorf("expected an object, got %T", obj))
		}
		var err error
		if received, err = objects.Encode(decoded, w.key.Projection, ""); err != nil {
			return objects.Unusable(obj, err)
		}
		if w.transform == nil {
			return received
		}
	}
	transformed, err := w.transformed(received.Reduced(w.reducer()))
	if err != nil {
		log := w.log.WithValues("object", received.Key())
		if mistake, ok := errors.AsType[*protect.Mistake](err); ok && mistake.Stack != nil {
			log = log.WithValues("stack", string(mistake.Stack))
		}
		log.Error(err, "Transform failed, storing the object unchanged")
		return received.Encoded()
	}
	return transformed
}

// reducer returns the function that makes objects smaller before the transform, or nil. If it panics, the object is not
// made smaller.
func (w *watch) reducer() func(object []byte) []byte {
	reduce := w.env.config.Reduce
	if reduce == nil {
		return nil
	}
	return func(object []byte) (reduced []byte) {
		if mistake := w.guard.Call(func() { reduced = reduce(object) }); mistake != nil {
			w.log.Error(mistake, "Reduce function panicked, decoding the whole object", "stack", string(mistake.Stack))
			return object
		}
		return reduced
	}
}

// transformed returns the record of the transformed object. If the transform, or a method of an object that it has
// returned, calls runtime.Goexit for the first time, the request fails, and the object is listed again.
func (w *watch) transformed(received *objects.Record) (r *objects.Record, err error) {
	mistake := w.guard.Call(func() { r, err = w.transformedUnguarded(received) })
	if mistake != nil {
		return nil, mistake
	}
	return r, err
}

func (w *watch) transformedUnguarded(received *objects.Record) (r *objects.Record, err error) {
	decoded, err := received.Decode(w.key.Projection)
	if err != nil {
		return nil, err
	}
	out, err := w.transform(decoded)
	if err != nil {
		return nil, err
	}
	r, err = objects.Encode(out.(runtime.Object), w.key.Projection, received.GetResourceVersion())
	if err != nil {
		return nil, err
	}
	if r.Key() != received.Key() {
		return nil, fmt.Errorf("the transform changed the object's namespace or name to %q", r.Key())
	}
	r.ObjectMeta() // calls an opaque object's methods here, where a panic is recovered
	return r, nil
}
