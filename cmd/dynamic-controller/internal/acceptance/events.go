package acceptance

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/events"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

// recorder records events about Blueprints.
type recorder func(events.Event)

// recordConditions records events for the differences between two versions of a Blueprint's status.
func (r recorder) recordConditions(_ context.Context, before, after *unstructured.Unstructured) {
	record := func(reason events.Reason, format string, args ...any) {
		r(events.Event{Regarding: after, Reason: reason, Note: fmt.Sprintf(format, args...)})
	}
	was, accepted := change(before, after, blueprint.Accepted)
	switch {
	case accepted.Status == metav1.ConditionTrue && events.HasChanged(was, accepted):
		record(events.Accepted, "generation %d is accepted: %s", accepted.ObservedGeneration, accepted.Message)
	case accepted.Status == metav1.ConditionFalse && events.IsNewProblem(was, accepted):
		record(events.Rejected, "%s: %s", accepted.Reason, accepted.Message)
	}
	was, serving := change(before, after, blueprint.Serving)
	generationChanged := servedGeneration(before) != servedGeneration(after)
	if serving.Status == metav1.ConditionTrue && (generationChanged || events.HasChanged(was, serving)) {
		record(events.Served, "%s", serving.Message)
	}
	if serving.Reason == reasonLeftBehind && events.HasChanged(was, serving) {
		record(events.InstancesLeftBehind, "%s", serving.Message)
	}
	was, progressing := change(before, after, blueprint.Progressing)
	isRefused := progressing.Reason == reasonServerRejected // which another event reports
	if progressing.Status == metav1.ConditionFalse && !isRefused && events.HasChanged(was, progressing) {
		record(events.RolloutStopped, "%s: %s", progressing.Reason, progressing.Message)
	}
}

// change returns a condition as it was before and after a write. If the condition does not exist, was is nil and now is
// empty.
func change(before, after *unstructured.Unstructured, conditionType string) (was, now *metav1.Condition) {
	if now = instances.ConditionOf(after, conditionType); now == nil {
		now = &metav1.Condition{}
	}
	return instances.ConditionOf(before, conditionType), now
}

func servedGeneration(b *unstructured.Unstructured) int64 {
	generation, _, _ := unstructured.NestedInt64(b.Object, "status", "served", "generation")
	return generation
}
