package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/internal/applied"
	"github.com/dynamic-controller/engine/handlers/internal/live"
	"github.com/dynamic-controller/engine/handlers/internal/patch"
)

// ErrNoStatus is returned by [Conditions] if the type of the object has no status subresource.
var ErrNoStatus = errors.New("the type has no status subresource")

// ConditionsConfig configures [Conditions]. Client and FieldManager are required.
type ConditionsConfig struct {
	Client dynamic.Interface
	// FieldManager owns the conditions that are written. Other writers of the status must use different names.
	FieldManager string
	// Changed is called after each write with the object before and after it. The API server accepts a write only if the
	// object still has the resourceVersion of before. No change to a condition is therefore reported twice, even if the
	// cache lags. If the process ends right after a write, the change is not reported. Changed must return quickly and
	// must not modify the objects. Optional.
	Changed func(ctx context.Context, before, after *unstructured.Unstructured)
}

// Conditions writes status.conditions and, in the same request, other fields of the status. It is safe for concurrent
// use. It needs patch on the status subresource of the type, and get on the type.
//
// Conditions set by other managers are never changed. The schema should declare the list with x-kubernetes-list-type
// "map" and the list map key "type", so that other managers can write their conditions in the same way.
//
// Conditions uses a merge patch with the resourceVersion of the object from which the patch was computed. Unlike an
// apply, such a patch succeeds even if the schema has changed and other parts of the object no longer match it.
type Conditions struct{ config ConditionsConfig }

// NewConditions returns Conditions. The error lists all invalid fields of config.
func NewConditions(config ConditionsConfig) (*Conditions, error) {
	var errs []error
	if config.Client == nil {
		errs = append(errs, errors.New("handlers: ConditionsConfig.Client: must not be nil"))
	}
	if config.FieldManager == "" {
		errs = append(errs, errors.New("handlers: ConditionsConfig.FieldManager: must not be empty"))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return &Conditions{config: config}, nil
}

// Set replaces the conditions of this field manager. It writes new and changed conditions. It removes conditions that
// are not passed to Set but that, according to the object's managed fields, the manager wrote earlier. Caches remove
// managed fields by default. If the given object has none, obsolete conditions are not removed until another change is
// written. If nothing changes, Set writes nothing. The lastTransitionTime of a condition changes only with its status.
//
// object is the object that was reconciled. Its generation becomes the observedGeneration of the conditions, even if
// the object has changed since. A condition with a later observedGeneration is not replaced. If the API server reports
// that the object is outdated, Set reads the object and tries again. Set updates the status and the resourceVersion of
// the given object. If the object no longer exists, the error is a NotFound. If its type has no status subresource, the
// error wraps [ErrNoStatus].
func (c *Conditions) Set(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured,
	conditions ...metav1.Condition,
) (changed bool, err error) {
	return c.SetStatus(ctx, id, object, conditions, nil)
}

// SetStatus is like Set but also sets the given fields of the status in the same request. Each value replaces the whole
// field, and nil removes it. Other fields are not changed. If one of the conditions has a later observedGeneration, the
// fields are not set.
func (c *Conditions) SetStatus(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured,
	conditions []metav1.Condition, fields map[string]any,
) (changed bool, err error) {
	if err := validateStatus(conditions, fields); err != nil {
		return false, fmt.Errorf("set conditions of %s: %w", id, err)
	}
	if fields, err = decodeFields(fields); err != nil {
		return false, fmt.Errorf("set the status of %s: %w", id, err)
	}
	objects := live.Resource(c.config.Client, id.GVR, id.Namespace())
	err = patch.RetryOnConflict(ctx, objects, object, func(current *unstructured.Unstructured) error {
		change, err := c.change(current, object.GetGeneration(), conditions, fields)
		if err == nil && len(change) > 0 && ownersAreUnknown(current, conditions) {
			if current, err = patch.Read(ctx, objects, object); err == nil {
				change, err = c.change(current, object.GetGeneration(), conditions, fields)
			}
		}
		if err != nil {
			return err
		}
		if len(change) == 0 {
			updateStatus(object, current)
			return nil
		}
		now, err := patch.Merge(ctx, objects, current, c.config.FieldManager, map[string]any{"status": change}, "status")
		if apierrors.IsNotFound(err) { // also returned if the subresource is missing
			if _, err = patch.Read(ctx, objects, object); err == nil {
				err = ErrNoStatus
			}
		}
		if err != nil {
			return err
		}
		if _, exists, _ := unstructured.NestedSlice(now.Object, "status", "conditions"); !exists && len(conditions) > 0 {
			return errors.New("the schema of the type does not declare status.conditions")
		}
		changed = true
		if c.config.Changed != nil {
			c.config.Changed(ctx, current, now)
		}
		updateStatus(object, now)
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("set conditions of %s: %w", id, err)
	}
	return changed, nil
}

func validateStatus(conditions []metav1.Condition, fields map[string]any) error {
	types := map[string]bool{}
	for _, condition := range conditions {
		if condition.Type == "" || condition.Status == "" || condition.Reason == "" {
			return fmt.Errorf("condition %q: type, status and reason are required", condition.Type)
		}
		if types[condition.Type] {
			return fmt.Errorf("condition %s: must not be set twice", condition.Type)
		}
		types[condition.Type] = true
	}
	if _, has := fields["conditions"]; has {
		return errors.New("the fields must not include conditions")
	}
	return nil
}

// change returns the merge patch for the status, which is empty if nothing changes.
func (c *Conditions) change(
	current *unstructured.Unstructured, generation int64, conditions []metav1.Condition, fields map[string]any,
) (map[string]any, error) {
	status, _ := current.Object["status"].(map[string]any)
	if status == nil {
		status = map[string]any{}
	}
	next := maps.Clone(status)
	list, outdated, err := c.nextConditions(current, generation, conditions)
	if err != nil {
		return nil, err
	}
	if _, exists := status["conditions"]; exists || len(list) > 0 {
		next["conditions"] = list
	}
	for name, value := range fields {
		switch {
		case outdated:
		case value == nil:
			delete(next, name)
		default:
			next[name] = value
		}
	}
	return mergePatch(status, next), nil
}

// decodeFields returns the fields in the form in which JSON decodes them, so that they can be compared with a status.
func decodeFields(fields map[string]any) (decoded map[string]any, err error) {
	content, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	return decoded, utiljson.Unmarshal(content, &decoded)
}

// mergePatch returns the JSON merge patch that changes before to after. A nil value in after means that the field is
// absent. Package jsonmergepatch is not used because it rounds integers beyond 2^53.
func mergePatch(before, after map[string]any) map[string]any {
	changes := map[string]any{}
	for name := range before {
		if _, kept := after[name]; !kept {
			changes[name] = nil
		}
	}
	for name, value := range after {
		old, wasMap := before[name].(map[string]any)
		if next, isMap := value.(map[string]any); wasMap && isMap {
			if nested := mergePatch(old, next); len(nested) > 0 {
				changes[name] = nested
			}
		} else if !reflect.DeepEqual(before[name], value) {
			changes[name] = value
		}
	}
	return changes
}

// nextConditions returns the list of conditions to write, including those of other managers. It does not replace a
// condition that was observed at a later generation. If there is such a condition, a later leader has written the
// status, and outdated is true.
func (c *Conditions) nextConditions(
	current *unstructured.Unstructured, generation int64, conditions []metav1.Condition,
) (next []any, outdated bool, err error) {
	list := conditionsIn(current)
	owned, done := c.ownedTypes(current), sets.New[string]()
	next = []any{}
	add := func(condition metav1.Condition, existing []metav1.Condition) error {
		condition.ObservedGeneration = generation
		// An observedGeneration beyond the object's generation cannot come from a controller.
		if len(existing) > 0 && existing[0].ObservedGeneration > generation &&
			existing[0].ObservedGeneration <= current.GetGeneration() {
			outdated = true
		} else {
			meta.SetStatusCondition(&existing, condition)
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&existing[0])
		next = append(next, content)
		done.Insert(condition.Type)
		return err
	}
	for _, item := range list {
		fields, _ := item.(map[string]any)
		kind, _ := fields["type"].(string)
		condition := meta.FindStatusCondition(conditions, kind)
		switch {
		case done.Has(kind):
		case condition != nil:
			err = errors.Join(err, add(*condition, readCondition(fields)))
		case !owned.Has(kind):
			next = append(next, item)
		}
	}
	for _, condition := range conditions {
		if !done.Has(condition.Type) {
			err = errors.Join(err, add(condition, nil))
		}
	}
	return next, outdated, err
}

// ownersAreUnknown reports whether an object has conditions that are not in conditions, but no managed fields that show
// their owners. Caches remove managed fields by default.
func ownersAreUnknown(current *unstructured.Unstructured, conditions []metav1.Condition) bool {
	list := conditionsIn(current)
	return len(current.GetManagedFields()) == 0 && slices.ContainsFunc(list, func(item any) bool {
		fields, _ := item.(map[string]any)
		kind, _ := fields["type"].(string)
		return meta.FindStatusCondition(conditions, kind) == nil
	})
}

// conditionsIn returns the conditions as they are. Unlike unstructured.NestedSlice, it accepts an object with values of
// other types than those into which JSON is decoded.
func conditionsIn(object *unstructured.Unstructured) []any {
	value, _, _ := unstructured.NestedFieldNoCopy(object.Object, "status", "conditions")
	list, _ := value.([]any)
	return list
}

// readCondition returns a list with the condition, or nil if the fields are not a valid metav1.Condition.
func readCondition(fields map[string]any) []metav1.Condition {
	var condition metav1.Condition
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &condition)
	if err != nil || condition.LastTransitionTime.IsZero() {
		return nil
	}
	return []metav1.Condition{condition}
}

// ownedTypes returns the types of the conditions that only this field manager owns. It returns none if the schema does
// not merge the list by type.
func (c *Conditions) ownedTypes(current *unstructured.Unstructured) sets.Set[string] {
	owned, others := sets.New[string](), sets.New[string]()
	for _, entry := range current.GetManagedFields() {
		fields, err := applied.ParseFields(entry.FieldsV1)
		if err != nil {
			continue
		}
		for key := range fields["f:status"]["f:conditions"] {
			encoded, _ := strings.CutPrefix(key, "k:")
			var keys struct {
				Type string `json:"type"`
			}
			switch err := json.Unmarshal([]byte(encoded), &keys); {
			case err != nil:
			case entry.Manager == c.config.FieldManager:
				owned.Insert(keys.Type)
			default:
				others.Insert(keys.Type)
			}
		}
	}
	return owned.Difference(others)
}

// updateStatus updates the caller's object after a write to its status. If the spec has changed as well, the
// resourceVersion is not updated because the caller has not seen the new spec.
func updateStatus(object, now *unstructured.Unstructured) {
	if status, ok := now.Object["status"]; ok {
		object.Object["status"] = status
	}
	if object.GetGeneration() == now.GetGeneration() {
		object.SetResourceVersion(now.GetResourceVersion())
		object.SetManagedFields(now.GetManagedFields())
	}
}
