package platform

import (
	"context"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// statusWriter writes what the platform says of an object, all of it in one request: conditions and other fields.
type statusWriter struct{ client dynamic.Interface }

// wantedStatus is what a status is to say.
type wantedStatus struct {
	generation int64 // that was reconciled
	conditions []metav1.Condition
	// fields are written with the conditions; one that is nil is not to be there.
	fields map[string]any
	// mergesConditions: see statusRules.
	mergesConditions bool
}

// set writes the status if it says something else. The object is the one from which it follows: if that is stale, what is
// there is read, and what is to be written is decided again.
func (w statusWriter) set(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured, want wantedStatus) error {
	var objects dynamic.ResourceInterface = w.client.Resource(id.GVR)
	if namespace := id.Namespace(); namespace != "" {
		objects = w.client.Resource(id.GVR).Namespace(namespace)
	}
	current := object
	err := retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		if current == nil {
			if current, err = objects.Get(ctx, id.Name(), metav1.GetOptions{}); err != nil {
				return err
			}
		}
		if current.GetUID() != object.GetUID() {
			return nil // made anew, which its own call is for
		}
		next := want.next(current)
		if next != nil {
			_, err = objects.ApplyStatus(ctx, id.Name(), next, metav1.ApplyOptions{FieldManager: statusManager, Force: true})
			if cannotBeApplied(err) {
				err = w.patch(ctx, objects, current, next, want)
			}
		}
		current = nil
		return err
	})
	if err != nil {
		return fmt.Errorf("write the status of %s: %w", id, err)
	}
	return nil
}

// next is what to apply, nil if the object says that already.
func (w wantedStatus) next(current *unstructured.Unstructured) *unstructured.Unstructured {
	there, _ := current.Object["status"].(map[string]any)
	status := map[string]any{"observedGeneration": w.generation}
	differ := false
	for name, value := range w.fields {
		if value != nil {
			status[name] = value
		} else if _, has := there[name]; has {
			differ = true
		}
	}
	for name, value := range status {
		differ = differ || !reflect.DeepEqual(value, there[name])
	}
	known, others := conditionsOf(there, w.conditions)
	list := []any{}
	if !w.mergesConditions {
		list = others
	}
	for _, condition := range w.conditions {
		condition.ObservedGeneration = w.generation
		differ = meta.SetStatusCondition(&known, condition) || differ
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(meta.FindStatusCondition(known, condition.Type))
		if err != nil {
			panic(err) // a metav1.Condition can be converted
		}
		list = append(list, content)
	}
	if !differ {
		return nil
	}
	status["conditions"] = list
	next := &unstructured.Unstructured{Object: map[string]any{"status": status}}
	next.SetGroupVersionKind(current.GroupVersionKind())
	next.SetNamespace(current.GetNamespace())
	next.SetName(current.GetName())
	next.SetUID(current.GetUID())
	next.SetResourceVersion(current.GetResourceVersion())
	return next
}

// conditionsOf splits conditions into those of the types that are wanted, as far as they can be read, and others.
func conditionsOf(status map[string]any, wanted []metav1.Condition) (known []metav1.Condition, others []any) {
	list, _ := status["conditions"].([]any)
	for _, item := range list {
		fields, _ := item.(map[string]any)
		kind, _ := fields["type"].(string)
		if meta.FindStatusCondition(wanted, kind) == nil {
			others = append(others, item)
			continue
		}
		var read metav1.Condition
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &read); err == nil && !read.LastTransitionTime.IsZero() {
			known = append(known, read)
		}
	}
	return known, others
}
