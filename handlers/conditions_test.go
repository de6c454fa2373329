package handlers

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

func TestConditions_InvalidConditionsAreRejected(t *testing.T) {
	server := newFakeServer(newWidget())
	ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "R"}
	for name, invalid := range map[string][]metav1.Condition{
		"no type":                      {{Status: metav1.ConditionTrue, Reason: "R"}},
		"no status":                    {{Type: "Ready", Reason: "R"}},
		"no reason":                    {{Type: "Ready", Status: metav1.ConditionTrue}},
		"a duplicate condition":        {ready, ready},
		"one invalid condition of two": {ready, {Type: "Other"}},
	} {
		if _, err := newConditions(t, server).Set(t.Context(), first, newWidget(), invalid...); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if writes := server.TakeWrites(); len(writes) != 0 {
		t.Errorf("wrote %q", writes)
	}
}

func TestConditions_TransitionTimeChangesOnlyWithStatus(t *testing.T) {
	widget := newWidget()
	server := newFakeServer(widget)
	conditions := newConditions(t, server)
	// set sets the condition and returns its lastTransitionTime.
	set := func(status metav1.ConditionStatus, reason string) any {
		t.Helper()
		condition := metav1.Condition{Type: "Ready", Status: status, Reason: reason}
		if _, err := conditions.Set(t.Context(), first, widget, condition); err != nil {
			t.Fatal(err)
		}
		list, _, _ := unstructured.NestedSlice(widget.Object, "status", "conditions")
		return list[0].(map[string]any)["lastTransitionTime"]
	}
	set(metav1.ConditionTrue, "A")
	old := "2000-01-01T00:00:00Z"
	list, _, _ := unstructured.NestedSlice(widget.Object, "status", "conditions")
	list[0].(map[string]any)["lastTransitionTime"] = old
	if err := unstructured.SetNestedSlice(widget.Object, list, "status", "conditions"); err != nil {
		t.Fatal(err)
	}
	if got := set(metav1.ConditionTrue, "B"); got != old {
		t.Errorf("another reason changed the time to %v", got)
	}
	if got := set(metav1.ConditionFalse, "B"); got == old {
		t.Error("another status did not change the time")
	}
	if writes := server.TakeWrites(); !slices.Equal(writes, slices.Repeat([]string{"patch status of widgets first"}, 3)) {
		t.Errorf("wrote %q", writes)
	}
}

// A program can write the object that it passes, with values of types into which JSON is not decoded.
func TestConditions_AcceptValuesWrittenInGo(t *testing.T) {
	server, object := newFakeServer(newWidget()), newWidget()
	object.Object["status"] = map[string]any{"conditions": []any{map[string]any{
		"type": "Ready", "status": "True", "reason": "R", "message": "", "observedGeneration": 1,
		"lastTransitionTime": "2000-01-01T00:00:00Z",
	}}}
	ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "R"}
	if _, err := newConditions(t, server).Set(t.Context(), first, object, ready); err != nil {
		t.Error(err)
	}
}

// With the new resourceVersion, the caller could overwrite a spec that it has not seen.
func TestConditions_KeepResourceVersionOfOutdatedSpec(t *testing.T) {
	for name, c := range map[string]struct {
		generation int64 // the spec on the server
		want       bool
	}{"the same spec": {1, true}, "a newer spec": {2, false}} {
		t.Run(name, func(t *testing.T) {
			current := newWidget()
			current.SetGeneration(c.generation)
			object := newWidget()
			object.SetResourceVersion("1")
			ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "R"}
			changed, err := newConditions(t, newFakeServer(current)).Set(t.Context(), first, object, ready)
			if err != nil || !changed {
				t.Errorf("changed: %t, error: %v", changed, err)
			}
			if updated := object.GetResourceVersion() != "1"; updated != c.want {
				t.Errorf("got the resourceVersion %s", object.GetResourceVersion())
			}
			if list, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions"); len(list) != 1 {
				t.Errorf("got the conditions %v", list)
			}
		})
	}
}

// statusAfter sets the status of an object on a new server and returns the status and the writes.
func statusAfter(
	t *testing.T, object *unstructured.Unstructured, conditions []metav1.Condition, fields map[string]any,
) (status map[string]any, writes []string) {
	t.Helper()
	server := newFakeServer(object.DeepCopy())
	object = object.DeepCopy()
	changed, err := newConditions(t, server).SetStatus(t.Context(), first, object, conditions, fields)
	writes = server.TakeWrites()
	if err != nil || changed != (len(writes) > 0) {
		t.Errorf("changed: %t, wrote %q, error: %v", changed, writes, err)
	}
	status, _, _ = unstructured.NestedMap(object.Object, "status")
	return status, writes
}

func TestConditions_SetStatusWritesFieldsInTheSameRequest(t *testing.T) {
	ready := []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "R"}}
	widget := newWidget()
	widget.Object["status"] = map[string]any{
		"obsolete": "x", "unrelated": "x", "instances": map[string]any{"total": int64(1), "failed": int64(1)},
	}
	fields := map[string]any{
		"obsolete": nil, "missing": nil, "observedGeneration": int64(1), "instances": map[string]any{"total": int64(2)},
	}
	status, writes := statusAfter(t, widget, ready, fields)
	if !slices.Equal(writes, []string{"patch status of widgets first"}) {
		t.Errorf("wrote %q", writes)
	}
	widget.Object["status"] = runtime.DeepCopyJSON(status)
	delete(status, "conditions")
	want := map[string]any{
		"unrelated": "x", "observedGeneration": int64(1), "instances": map[string]any{"total": int64(2)},
	}
	if !reflect.DeepEqual(status, want) {
		t.Errorf("got %v, want %v", status, want)
	}
	if _, writes := statusAfter(t, widget, ready, fields); len(writes) > 0 {
		t.Errorf("wrote %q without a change", writes)
	}
	fields["observedGeneration"] = int64(2)
	if status, _ := statusAfter(t, widget, ready, fields); status["observedGeneration"] != int64(2) {
		t.Errorf("a field was not changed: %v", status)
	}
}

func TestConditions_SetStatusIsIdempotentForAllValues(t *testing.T) {
	for name, value := range map[string]any{
		"a null in a new map": map[string]any{"a": nil}, "a nil slice": []string(nil), "a nil map": map[string]any(nil),
		"strings": []string{"a"}, "a map of integers": map[string]int{"a": 1}, "a float": 1.0,
		"an empty map": map[string]any{}, "a large integer": int64(1<<53 + 1),
	} {
		t.Run(name, func(t *testing.T) {
			widget := newWidget()
			widget.Object["status"] = map[string]any{"field": map[string]any{"old": "x"}, "number": int64(1<<53 + 3)}
			fields := map[string]any{"field": value}
			for i := range 2 {
				status, writes := statusAfter(t, widget, nil, fields)
				if len(writes) != 1-i {
					t.Errorf("call %d wrote %q", i, writes)
				}
				if large, isInt := value.(int64); isInt && status["field"] != large || status["number"] != int64(1<<53+3) {
					t.Errorf("got %v", status)
				}
				widget.Object["status"] = runtime.DeepCopyJSON(status)
			}
		})
	}
}

// Caches remove managed fields by default. The owners of the other conditions must then be read from the API server.
func TestConditions_RemoveObsoleteConditionsWithoutManagedFields(t *testing.T) {
	widget := newWidget()
	server := newFakeServer(widget.DeepCopy())
	conditions := newConditions(t, server)
	live := widget.DeepCopy()
	live.SetManagedFields([]metav1.ManagedFieldsEntry{{
		Manager: "m", Operation: metav1.ManagedFieldsOperationUpdate, Subresource: "status", APIVersion: "example.com/v1",
		FieldsType: "FieldsV1",
		FieldsV1:   metav1.NewFieldsV1(`{"f:status":{"f:conditions":{"k:{\"type\":\"Mine\"}":{}}}}`),
	}})
	live.Object["status"] = map[string]any{"conditions": []any{
		map[string]any{"type": "Theirs", "status": "True"}, map[string]any{"type": "Mine", "status": "True"},
	}}
	server.PrependReactor("get", "widgets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, live.DeepCopy(), nil
	})
	widget.Object["status"] = runtime.DeepCopyJSON(live.Object["status"].(map[string]any))
	ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "R"}
	if _, err := conditions.Set(t.Context(), first, widget, ready); err != nil {
		t.Fatal(err)
	}
	list, _, _ := unstructured.NestedSlice(widget.Object, "status", "conditions")
	if len(list) != 2 || list[0].(map[string]any)["type"] != "Theirs" {
		t.Errorf("got %v", list)
	}
}

func TestConditions_KeepConditionsOfOtherManagers(t *testing.T) {
	managed := func(manager, conditions string) metav1.ManagedFieldsEntry {
		fields := `{"f:status":{"f:conditions":` + conditions + `}}`
		return metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, Subresource: "status",
			APIVersion: "example.com/v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
		}
	}
	const mine, both = `{"k:{\"type\":\"Mine\"}":{}}`, `{"k:{\"type\":\"Mine\"}":{},"k:{\"type\":\"Theirs\"}":{}}`
	const manager = "m"
	for name, c := range map[string]struct {
		managed []metav1.ManagedFieldsEntry
		want    []any
	}{
		"the list is merged by type": {[]metav1.ManagedFieldsEntry{managed(manager, mine)}, []any{"Theirs", "Ready"}},
		"a condition has two managers": {
			[]metav1.ManagedFieldsEntry{managed(manager, both), managed("x", mine)}, []any{"Mine", "Ready"},
		},
		"the list is atomic": {
			[]metav1.ManagedFieldsEntry{managed(manager, `{}`)}, []any{"Theirs", "Mine", "Ready"},
		},
		"no managed fields": {nil, []any{"Theirs", "Mine", "Ready"}},
	} {
		t.Run(name, func(t *testing.T) {
			widget := newWidget()
			widget.SetManagedFields(c.managed)
			widget.Object["status"] = map[string]any{"conditions": []any{
				map[string]any{"type": "Theirs", "anything": "x"}, map[string]any{"type": "Mine", "status": "True"},
			}}
			ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "R"}
			status, _ := statusAfter(t, widget, []metav1.Condition{ready}, nil)
			var types []any
			for _, condition := range status["conditions"].([]any) {
				types = append(types, condition.(map[string]any)["type"])
			}
			if !slices.Equal(types, c.want) {
				t.Errorf("got %v, want %v", types, c.want)
			}
		})
	}
}

// Anyone who can write the status can set an observedGeneration that the object has not reached.
func TestConditions_ReplaceConditionsOfFutureGenerations(t *testing.T) {
	for observed, want := range map[int64]string{2: "True", 3: "False"} {
		widget := newWidget()
		widget.SetGeneration(2)
		widget.Object["status"] = map[string]any{"field": "old", "conditions": []any{map[string]any{
			"type": "Ready", "status": "True", "reason": "R", "message": "", "observedGeneration": observed,
			"lastTransitionTime": "2000-01-01T00:00:00Z",
		}}}
		ready := []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Reason: "R"}}
		fields := map[string]any{"field": "new"}
		change, err := newConditions(t, newFakeServer()).change(widget, 1, ready, fields)
		if err != nil || (len(change) > 0) != (want == "False") {
			t.Errorf("observed generation %d: got the patch %s, %v", observed, change, err)
		}
	}
}

// The schema can have changed since an invalid condition was written.
func TestConditions_InvalidCurrentConditionsAreReplaced(t *testing.T) {
	for name, invalid := range map[string]any{
		"not a list": "x", "not objects": []any{"x"}, "no time": []any{map[string]any{"type": "Ready", "status": "True"}},
		"wrong type": []any{map[string]any{"type": "Ready", "status": int64(1)}},
		"twice":      []any{map[string]any{"type": "Ready"}, map[string]any{"type": "Ready"}},
	} {
		widget := newWidget()
		widget.Object["status"] = map[string]any{"conditions": invalid}
		ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "R"}
		status, _ := statusAfter(t, widget, []metav1.Condition{ready}, nil)
		list, _ := status["conditions"].([]any)
		last, _ := list[len(list)-1].(map[string]any)
		if last["reason"] != "R" || last["lastTransitionTime"] == nil || name == "twice" && len(list) != 1 {
			t.Errorf("%s: got %v", name, list)
		}
	}
}

// The API server returns the same error for a missing subresource as for a missing object.
func TestConditions_MissingStatusSubresource(t *testing.T) {
	widget := newWidget()
	for name, c := range map[string]struct {
		objects  []*unstructured.Unstructured
		noStatus bool
	}{"the object exists": {[]*unstructured.Unstructured{widget}, true}, "the object does not exist": {nil, false}} {
		server := newFakeServer(c.objects...)
		server.PrependReactor("patch", "widgets", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewNotFound(widgets.GroupResource(), widget.GetName())
		})
		ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "R"}
		_, err := newConditions(t, server).Set(t.Context(), first, newWidget(), ready)
		if errors.Is(err, ErrNoStatus) != c.noStatus || apierrors.IsNotFound(err) == c.noStatus {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// If the cache lags, Changed must receive the replaced status instead of the cached one.
func TestConditions_ChangedReceivesReplacedStatus(t *testing.T) {
	server := newFakeServer(newWidget())
	var reported []string
	conditions, err := NewConditions(ConditionsConfig{
		Client: server, FieldManager: "m",
		Changed: func(_ context.Context, before, after *unstructured.Unstructured) {
			_, had, _ := unstructured.NestedSlice(before.Object, "status", "conditions")
			list, _, _ := unstructured.NestedSlice(after.Object, "status", "conditions")
			reported = append(reported, fmt.Sprint(had, " ", list[0].(map[string]any)["reason"]))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	widget := newWidget()
	set := func(object *unstructured.Unstructured, reason string) {
		t.Helper()
		ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: reason}
		if _, err := conditions.Set(t.Context(), first, object, ready); err != nil {
			t.Fatal(err)
		}
	}
	set(widget, "A")
	set(widget, "A")
	set(widget, "B")
	conflicts := 1
	server.PrependReactor("patch", "widgets", func(clienttesting.Action) (bool, runtime.Object, error) {
		conflicts--
		return conflicts >= 0, nil, apierrors.NewConflict(widgets.GroupResource(), "first", errors.New("test"))
	})
	ready := []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "B"}}
	outdated := newWidget() // as in a lagging cache
	if _, err := conditions.SetStatus(t.Context(), first, outdated, ready, map[string]any{"a": "b"}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"false A", "true B", "true B"}; !slices.Equal(reported, want) {
		t.Errorf("got %q, want %q", reported, want)
	}
}
