package acceptance

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/events"
)

func TestEvents_FollowTheConditionsOfABlueprint(t *testing.T) {
	var got []string
	r := recorder(func(e events.Event) { got = append(got, string(e.Reason)+": "+e.Note) })
	accepted := trueCondition(blueprint.Accepted, reasonCompiled, "each instance creates up to 1 object")
	rejected := falseCondition(blueprint.Accepted, reasonInvalid, "spec.resources[0]: unknown field")
	unknown := rejected
	unknown.Status = metav1.ConditionUnknown
	syncing := falseCondition(blueprint.Serving, reasonSyncing, "reading the instances")
	serving := trueCondition(blueprint.Serving, reasonServing, "generation N is served")
	rolling := trueCondition(blueprint.Progressing, reasonRollingOut, "1 of 2 instances are updated")
	stopped := falseCondition(blueprint.Progressing, reasonRolloutStopped, "1 of 2 instances are updated")
	more := falseCondition(blueprint.Progressing, reasonRolloutStopped, "2 of 2 instances are updated")
	before := &unstructured.Unstructured{Object: map[string]any{}}
	for _, step := range []struct {
		name               string
		generation, served int64
		conditions         []metav1.Condition
		want               []string
	}{
		{"rejected", 1, 0, []metav1.Condition{rejected}, []string{"Rejected: Invalid: spec.resources[0]: unknown field"}},
		{"rejected again", 1, 0, []metav1.Condition{rejected}, nil},
		{"unknown", 1, 0, []metav1.Condition{unknown}, nil},
		{"accepted", 2, 0, []metav1.Condition{accepted, syncing},
			[]string{"Accepted: generation 2 is accepted: each instance creates up to 1 object"}},
		{"served", 2, 2, []metav1.Condition{accepted, serving}, []string{"Served: generation N is served"}},
		{"nothing new", 2, 2, []metav1.Condition{accepted, serving}, nil},
		{"a change", 3, 2, []metav1.Condition{accepted, serving, rolling}, nil},
		{"new generation served", 3, 3, []metav1.Condition{accepted, serving, rolling},
			[]string{"Served: generation N is served"}},
		{"stopped", 3, 3, []metav1.Condition{accepted, serving, stopped},
			[]string{"RolloutStopped: RolloutStopped: 1 of 2 instances are updated"}},
		{"still stopped", 3, 3, []metav1.Condition{accepted, serving, more}, nil},
		{"paused", 3, 3, []metav1.Condition{accepted, serving}, nil},
	} {
		after := &unstructured.Unstructured{Object: map[string]any{}}
		var list []any
		for _, c := range step.conditions {
			c.ObservedGeneration = step.generation
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&c)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, content)
		}
		after.Object["status"] = map[string]any{
			"conditions": list, "served": map[string]any{"generation": step.served},
		}
		got = nil
		r.recordConditions(t.Context(), before, after)
		if !slices.Equal(got, step.want) {
			t.Errorf("%s: got %q, want %q", step.name, got, step.want)
		}
		before = after
	}
}

func TestEvents_AreRecordedForWrittenStatuses(t *testing.T) {
	c := newCluster(t, withFields(1, "one"))
	var got []string
	c.config.Record = func(e events.Event) {
		if e.Regarding.GetName() != "websites" || e.Regarding.GetKind() != "Blueprint" {
			t.Errorf("got an event about %s %s", e.Regarding.GetKind(), e.Regarding.GetName())
		}
		got = append(got, string(e.Reason))
	}
	c.use(nil, nil)
	if err := c.Serve(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.reconcile()
	if len(got) == 0 || got[0] != string(events.Accepted) || slices.Contains(got[1:], string(events.Accepted)) {
		t.Errorf("got events %q, want one Accepted event", got)
	}
}
