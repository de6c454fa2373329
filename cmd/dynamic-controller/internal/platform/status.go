package platform

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	readyType    = "Ready"
	readyReason  = "Reconciled"
	readyMessage = "The object was seen and its status is up to date."
)

// nextStatus returns what to apply so that obj's status says that its generation was reconciled, or nil if it says so
// already. Conditions of others are in it only if the list has to be written as a whole.
func nextStatus(obj *unstructured.Unstructured, mergesConditions bool, now time.Time) *unstructured.Unstructured {
	generation := obj.GetGeneration()
	ready, others := conditionsOf(obj)
	conditions := []metav1.Condition{}
	if ready != nil {
		conditions = append(conditions, *ready)
	}
	changed := meta.SetStatusCondition(&conditions, metav1.Condition{
		Type:               readyType,
		Status:             metav1.ConditionTrue,
		ObservedGeneration: generation,
		LastTransitionTime: metav1.NewTime(now),
		Reason:             readyReason,
		Message:            readyMessage,
	})
	observed, _, _ := unstructured.NestedInt64(obj.Object, "status", "observedGeneration")
	if !changed && observed == generation {
		return nil
	}

	written, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&conditions[0])
	if err != nil {
		panic(err) // a metav1.Condition can be converted
	}
	list := []any{written}
	if !mergesConditions {
		list = append(others, written)
	}
	next := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{
		"observedGeneration": generation,
		"conditions":         list,
	}}}
	next.SetGroupVersionKind(obj.GroupVersionKind())
	next.SetNamespace(obj.GetNamespace())
	next.SetName(obj.GetName())
	// What has been deleted and made again meanwhile is another object, with a status of its own.
	next.SetUID(obj.GetUID())
	return next
}

// conditionsOf splits an object's conditions into the platform's own, if it is there and can be read, and the others.
func conditionsOf(obj *unstructured.Unstructured) (ready *metav1.Condition, others []any) {
	list, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	for _, item := range list {
		fields, _ := item.(map[string]any)
		if fields["type"] != readyType {
			others = append(others, item)
			continue
		}
		read := &metav1.Condition{}
		err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, read)
		if err == nil && !read.LastTransitionTime.IsZero() {
			ready = read
		}
	}
	return ready, others
}

// keepStatus is a cache's transform: it keeps of an object what nextStatus reads.
func keepStatus(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	u.SetManagedFields(nil)
	for field := range u.Object {
		switch field {
		case "apiVersion", "kind", "metadata", "status":
		default:
			delete(u.Object, field)
		}
	}
	return u, nil
}
