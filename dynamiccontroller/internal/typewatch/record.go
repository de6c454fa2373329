package typewatch

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/internal/protect"
)

// record converts a received object to a record and applies the transform. It is called twice for each object in a
// streaming list. The second call returns its argument unchanged. If the transform fails, the object is stored
// unchanged, because a large object is better than a missing one.
func (w *watch) record(obj any) (*objects.Record, error) {
	received, isRecord := obj.(*objects.Record)
	if isRecord && (w.transform == nil || received.IsEncoded()) {
		return received, nil
	}
	if !isRecord {
		decoded, ok := obj.(runtime.Object)
		if !ok {
			return nil, fmt.Errorf("expected an object, got %T", obj)
		}
		var err error
		if received, err = objects.Encode(decoded, w.key.Projection, ""); err != nil || w.transform == nil {
			return received, err
		}
	}
	transformed, err := w.transformed(received.Reduced(w.pool.config.Reduce))
	if err != nil {
		log := w.log.WithValues("object", received.Key())
		if mistake, ok := errors.AsType[*protect.Mistake](err); ok && mistake.Stack != nil {
			log = log.WithValues("stack", string(mistake.Stack))
		}
		log.Error(err, "Transform failed, storing the object unchanged")
		return received.Encoded(), nil
	}
	return transformed, nil
}

func (w *watch) transformed(received *objects.Record) (r *objects.Record, err error) {
	decoded, err := received.Decode(w.key.Projection)
	if err != nil {
		return nil, err
	}
	out, err := w.transform(decoded)
	if err != nil {
		return nil, err
	}
	if panicked := protect.Call(func() {
		r, err = objects.Encode(out.(runtime.Object), w.key.Projection, received.GetResourceVersion())
		if err == nil {
			r.ObjectMeta() // calls an opaque object's methods here, where a panic is recovered
		}
	}); panicked != nil {
		return nil, panicked
	}
	return r, err
}
