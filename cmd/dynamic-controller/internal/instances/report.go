package instances

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// authorsConditions returns the conditions that spec.type.conditions defines. If they have not been computed, it
// returns the current conditions of the instance. If the spec of the instance has changed, their status is Unknown.
func (r *Reconciler) authorsConditions(
	self *unstructured.Unstructured, computed *blueprint.Report,
) (conditions []metav1.Condition) {
	if computed != nil {
		return computed.Conditions
	}
	for _, c := range r.Spec.Type.Conditions {
		before := ConditionOf(self, c.Type)
		if before == nil {
			continue
		}
		if before.ObservedGeneration != self.GetGeneration() && self.GetDeletionTimestamp() == nil {
			before.Status, before.Reason = metav1.ConditionUnknown, "NotReconciled"
			before.Message = "see the condition " + conditionReady
		}
		conditions = append(conditions, *before)
	}
	return conditions
}

// authorsFields returns the computed fields of spec.type.status, if any. Stale fields, which must be removed, have the
// value nil.
func (r *Reconciler) authorsFields(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured,
	computed *blueprint.Report,
) (map[string]any, error) {
	fields, kept := map[string]any{}, r.Spec.Type.Status
	switch {
	case computed != nil:
		maps.Copy(fields, computed.Fields)
		kept = fields
	case self.GetDeletionTimestamp() != nil:
		return fields, nil
	}
	stale, err := r.staleFields(ctx, id, self, kept)
	for _, name := range stale {
		fields[name] = nil
	}
	return fields, err
}

// reviewInterval is the minimum time between checks of an instance's status for types without status.revision.
const reviewInterval = time.Hour

// staleFields returns the status fields that the platform wrote with another revision and that this revision no longer
// has. Other controllers can also write status fields. Therefore, staleFields reads the field owners from the API
// server when the instance moves to this revision. If the type lacks status.revision, that moment is unknown. Each
// Reconciler then reads the owners once per instance, and again after reviewInterval.
func (r *Reconciler) staleFields(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured, kept map[string]any,
) (stale []string, err error) {
	status, _ := self.Object["status"].(map[string]any)
	isStale := func(name string) bool {
		_, has := kept[name]
		return !has && !slices.Contains(blueprint.PlatformStatus, name)
	}
	before, names := revisionOf(self), slices.Collect(maps.Keys(status))
	switch {
	case !slices.ContainsFunc(names, isStale):
		return nil, nil
	case r.ReportsRevision && (before == "" || before == r.Name):
		return nil, nil
	case !r.ReportsRevision && r.reviews.Wait(id.NamespacedKey, reviewInterval) > 0:
		return nil, nil
	}
	live, err := r.client.Resource(id.GVR).Namespace(id.Namespace()).Get(ctx, id.Name(), metav1.GetOptions{})
	if err != nil {
		r.reviews.Forget(id.NamespacedKey)
		return nil, fmt.Errorf("read the owners of the status of %s: %w", id, err)
	}
	for _, entry := range live.GetManagedFields() {
		var owned struct {
			Status map[string]any `json:"f:status"`
		}
		if entry.Manager != StatusManager || entry.FieldsV1 == nil ||
			json.Unmarshal(entry.FieldsV1.GetRawBytes(), &owned) != nil {
			continue
		}
		for _, name := range names {
			if _, owns := owned.Status["f:"+name]; owns && isStale(name) {
				stale = append(stale, name)
			}
		}
	}
	if len(stale) > 0 {
		r.reviews.Forget(id.NamespacedKey) // retry because the status write can fail
	}
	return stale, nil
}

// invalidStatus returns the Ready condition of an instance whose status is rejected by the API server.
func invalidStatus(err error) metav1.Condition {
	return metav1.Condition{
		Type: conditionReady, Status: metav1.ConditionFalse, Reason: reasonInvalid,
		Message: Truncate("spec.type.status: the API server rejects the values: " + err.Error()),
	}
}
