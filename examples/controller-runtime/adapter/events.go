package adapter

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// object is implemented by pointers to the Go types of objects, such as *corev1.Pod.
type object[T any] interface {
	*T
	client.Object
}

// MapFunc converts a function written for handler.EnqueueRequestsFromMapFunc for use with [dynamiccontroller.Watches].
// The function receives a *T, for example a *corev1.Pod for MapFunc[corev1.Pod]. As in controller-runtime, it is called
// with the old and the new state of a changed object.
//
// By default, [dynamiccontroller.Watches] caches only metadata, and other fields of the object are then empty. A
// function that reads them requires WithCache(CacheFull). An object that cannot be decoded is logged and ignored.
func MapFunc[T any, P object[T]](f handler.MapFunc) dynamiccontroller.MapFunc {
	return func(ctx context.Context, from dynamiccontroller.Object) []string {
		into := P(new(T))
		if err := decode(from.Object(), into); err != nil {
			log.FromContext(ctx).Error(err, "Object not decoded, nothing enqueued", "object", nameOf(from))
			return nil
		}
		var keys []string
		for _, request := range f(ctx, into) {
			keys = append(keys, cache.ObjectName(request.NamespacedName).String())
		}
		return keys
	}
}

// Predicate converts a controller-runtime predicate for use with [dynamiccontroller.WithPredicate]. The predicate
// receives values of the type *T. Its Generic method is never called. As described for [MapFunc], the cache mode
// determines which fields are set. If an object cannot be decoded, the error is logged and the change is processed.
//
// Unlike controller-runtime, the engine does not call predicates for objects from initial lists, nor on a promotion.
func Predicate[T any, P object[T]](p predicate.Predicate) dynamiccontroller.Predicate {
	return func(ctx context.Context, from, to dynamiccontroller.Object) bool {
		oldObject, newObject := P(new(T)), P(new(T))
		for _, o := range []struct {
			from dynamiccontroller.Object
			into client.Object
		}{{from, oldObject}, {to, newObject}} {
			if o.from == nil {
				continue
			}
			if err := decode(o.from.Object(), o.into); err != nil {
				log.FromContext(ctx).Error(err, "Object not decoded, processing the change", "object", nameOf(o.from))
				return true
			}
		}
		switch {
		case from == nil:
			return p.Create(event.CreateEvent{Object: newObject})
		case to == nil:
			return p.Delete(event.DeleteEvent{Object: oldObject})
		default:
			return p.Update(event.UpdateEvent{ObjectOld: oldObject, ObjectNew: newObject})
		}
	}
}

func nameOf(o dynamiccontroller.Object) string {
	return cache.NewObjectName(o.GetNamespace(), o.GetName()).String()
}

// decode stores the content of a cached object in the given object, which must be a zero value.
func decode(from runtime.Object, into client.Object) error {
	data, err := json.Marshal(from)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return err
	}
	if _, partial := from.(*metav1.PartialObjectMetadata); partial {
		into.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{}) // clear the GVK of PartialObjectMetadata
	}
	return nil
}
