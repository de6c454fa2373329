package platform

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestNextStatus(t *testing.T) {
	const before, now = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
	ready := func(status string, generation int64, since string) map[string]any {
		return map[string]any{
			"type": "Ready", "status": status, "observedGeneration": generation,
			"lastTransitionTime": since, "reason": readyReason, "message": readyMessage,
		}
	}
	status := func(generation int64, conditions ...any) map[string]any {
		return map[string]any{"observedGeneration": generation, "conditions": conditions}
	}
	others := map[string]any{"type": "Healthy", "status": "Unknown", "extra": "field"}

	for name, test := range map[string]struct {
		status map[string]any // of an object of generation 2
		merges bool
		want   map[string]any // nil for nothing
	}{
		"of an object without status is all new": {
			nil, true,
			status(2, ready("True", 2, now)),
		},
		"of an object that is up to date is nothing": {
			status(2, ready("True", 2, before), others), true,
			nil,
		},
		"of a changed object has the new generation and the old time": {
			status(1, ready("True", 1, before)), true,
			status(2, ready("True", 2, before)),
		},
		"of an object that was not ready has a new time": {
			status(2, ready("False", 2, before)), true,
			status(2, ready("True", 2, now)),
		},
		"mends a condition that somebody broke": {
			status(2, map[string]any{"type": "Ready", "status": "True", "observedGeneration": "two"}), true,
			status(2, ready("True", 2, now)),
		},
		"mends a condition without a time": {
			status(2, map[string]any{"type": "Ready", "status": "True"}), true,
			status(2, ready("True", 2, now)),
		},
		"mends a generation that somebody broke": {
			status(7, ready("True", 2, before)), true,
			status(2, ready("True", 2, before)),
		},
		"leaves the conditions of others alone where each has its owner": {
			status(1, others, ready("True", 1, before)), true,
			status(2, ready("True", 2, before)),
		},
		"has the conditions of others where the list has one owner": {
			status(1, ready("True", 1, before), others), false,
			status(2, others, ready("True", 2, before)),
		},
	} {
		t.Run(name, func(t *testing.T) {
			obj := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "example.com/v1", "kind": "Widget",
				"metadata": map[string]any{
					"namespace": "team", "name": "one", "uid": "u1", "generation": int64(2), "labels": map[string]any{"a": "b"},
				},
			}}
			if test.status != nil {
				obj.Object["status"] = test.status
			}
			given := obj.DeepCopy()
			at, err := time.Parse(time.RFC3339, now)
			if err != nil {
				t.Fatal(err)
			}

			got := nextStatus(obj, test.merges, at)

			if diff := cmp.Diff(given, obj); diff != "" {
				t.Errorf("changed what the cache holds: %s", diff)
			}
			if test.want == nil {
				if got != nil {
					t.Fatalf("got %v, want nothing", got)
				}
				return
			}
			want := map[string]any{
				"apiVersion": "example.com/v1", "kind": "Widget",
				"metadata": map[string]any{"namespace": "team", "name": "one", "uid": "u1"},
				"status":   test.want,
			}
			if diff := cmp.Diff(want, got.Object); diff != "" {
				t.Errorf("want -, got +: %s", diff)
			}
		})
	}
}

func TestAnObjectIsKeptWithoutItsSpec(t *testing.T) {
	obj := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": "one", "managedFields": []any{}},
		"spec":     map[string]any{"size": int64(1)},
		"data":     "more",
		"status":   map[string]any{"observedGeneration": int64(1)},
	}}
	got, err := keepStatus(obj)
	if err != nil {
		t.Fatal(err)
	}
	want := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": "one"},
		"status":   map[string]any{"observedGeneration": int64(1)},
	}}
	if diff := cmp.Diff(any(want), got); diff != "" {
		t.Errorf("want -, got +: %s", diff)
	}
}
