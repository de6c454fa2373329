package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Conditions writes conditions into status.conditions. It is safe for concurrent use.
//
// It needs patch on the type's status subresource, and get on the type. The type's schema must say of status.conditions
//
//	x-kubernetes-list-type: map
//	x-kubernetes-list-map-keys: [type]
//
// or the list is one value to the API server, and whoever writes last takes it all.
type Conditions struct {
	Client dynamic.Interface
	// FieldManager owns the conditions that are written. It must apply nothing else to the status of these objects.
	FieldManager string
}

// Set makes the conditions those of this field manager: what is new or changed is written, with the object's generation
// as observedGeneration and a lastTransitionTime that moves only with the status; what this manager wrote before and is
// not among them is removed. Those of others stay. When nothing would change there is no write.
//
// The object is the one that was reconciled, from which the conditions follow: observedGeneration is its generation even
// if it has changed since. A condition of a later generation stays as it is. If the object is stale, which the API server
// notices, the conditions are computed anew from the live
// one. Its status and resourceVersion are brought up to date. The error is wrapped: an object that is gone is NotFound.
func (c Conditions) Set(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured, conditions ...metav1.Condition) (changed bool, err error) {
	if err := c.check(conditions); err != nil {
		return false, fmt.Errorf("set conditions of %s: %w", id, err)
	}
	objects := resource(c.Client, id.GVR, id.Namespace())
	err = onConflict(ctx, objects, object, func(current *unstructured.Unstructured) error {
		next, differ, err := c.next(current, object.GetGeneration(), conditions)
		if err != nil {
			return err
		}
		if !differ {
			adoptState(object, current)
			return nil
		}
		status := map[string]any{"conditions": next}
		apply := applyTo(current, map[string]any{"resourceVersion": current.GetResourceVersion()})
		apply.Object["status"] = status
		now, err := objects.ApplyStatus(ctx, object.GetName(), apply, metav1.ApplyOptions{FieldManager: c.FieldManager, Force: true})
		if err != nil {
			return err
		}
		changed = true
		adoptState(object, now)
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("set conditions of %s: %w", id, err)
	}
	return changed, nil
}

func (c Conditions) check(conditions []metav1.Condition) error {
	if c.FieldManager == "" {
		return errors.New("Conditions.FieldManager is empty")
	}
	types := map[string]bool{}
	for _, condition := range conditions {
		if condition.Type == "" || condition.Status == "" || condition.Reason == "" {
			return fmt.Errorf("the condition %+v lacks a type, a status or a reason", condition)
		}
		if types[condition.Type] {
			return fmt.Errorf("the condition %s is given twice", condition.Type)
		}
		types[condition.Type] = true
	}
	return nil
}

// next is what is to be applied, and whether that changes anything.
func (c Conditions) next(current *unstructured.Unstructured, generation int64, wanted []metav1.Condition) (apply []any, differ bool, err error) {
	var status struct {
		Conditions []metav1.Condition `json:"conditions"`
	}
	if content, ok := current.Object["status"].(map[string]any); ok {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &status); err != nil {
			return nil, false, fmt.Errorf("decode what is there: %w", err)
		}
	}
	differ = c.hasOthersThan(current, wanted)
	apply = []any{} // not null, which no schema takes
	for _, condition := range wanted {
		condition.ObservedGeneration = generation
		there := meta.FindStatusCondition(status.Conditions, condition.Type)
		isNewer := there != nil && there.ObservedGeneration > generation // a leader's that came after this one: it stays
		if !isNewer && meta.SetStatusCondition(&status.Conditions, condition) {
			differ = true
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(meta.FindStatusCondition(status.Conditions, condition.Type))
		if err != nil {
			return nil, false, err
		}
		apply = append(apply, content)
	}
	return apply, differ, nil
}

// hasOthersThan tells whether this manager owns a condition that is not wanted any more.
func (c Conditions) hasOthersThan(current *unstructured.Unstructured, wanted []metav1.Condition) bool {
	fields, _ := appliedFields(current, c.FieldManager, "status")
	for key := range fields["f:status"]["f:conditions"] {
		byKeys, ok := strings.CutPrefix(key, "k:")
		if !ok {
			continue
		}
		var keys struct {
			Type string `json:"type"`
		}
		if json.Unmarshal([]byte(byKeys), &keys) == nil && meta.FindStatusCondition(wanted, keys.Type) == nil {
			return true
		}
	}
	return false
}

// adoptState brings the caller's object up to date, as far as that does not pretend that a newer spec was looked at.
func adoptState(object, now *unstructured.Unstructured) {
	if status, ok := now.Object["status"]; ok {
		object.Object["status"] = status
	}
	if object.GetGeneration() == now.GetGeneration() {
		object.SetResourceVersion(now.GetResourceVersion())
		object.SetManagedFields(now.GetManagedFields())
	}
}

// applyTo begins an apply configuration for the object, which is refused if it is another one by now.
func applyTo(object *unstructured.Unstructured, metadata map[string]any) *unstructured.Unstructured {
	all := map[string]any{"name": object.GetName(), "uid": string(object.GetUID())}
	if namespace := object.GetNamespace(); namespace != "" {
		all["namespace"] = namespace
	}
	for field, value := range metadata {
		all[field] = value
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": object.GetAPIVersion(),
		"kind":       object.GetKind(),
		"metadata":   all,
	}}
}
