package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

type typedWidget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              typedSpec `json:"spec"`
}

type typedSpec struct {
	Size     string                          `json:"size"`
	Replicas int32                           `json:"replicas"`
	Limits   map[string]apiresource.Quantity `json:"limits"`
	Stages   []typedStage                    `json:"stages"`
	Any      any                             `json:"any"`
	Union    *typedUnion                     `json:"union"`
}

type typedStage struct {
	Name string `json:"name"`
}

// typedUnion can be decoded only if its type field has a known value.
type typedUnion map[string]any

func (u *typedUnion) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, (*map[string]any)(u)); err != nil {
		return err
	}
	if kind, ok := (*u)["type"]; !ok {
		return errors.New("type: required")
	} else if kind != "known" {
		return fmt.Errorf("type: %v is not supported", kind)
	}
	return nil
}

func newTypedWidget(spec map[string]any) *unstructured.Unstructured {
	widget := newWidget()
	widget.Object["spec"] = spec
	return widget
}

func TestTyped_DecodesTheObject(t *testing.T) {
	widget := newTypedWidget(map[string]any{
		"size": "big", "replicas": int64(3), "unknown": true, "Size": "the names of fields are case-sensitive",
		"limits": map[string]any{"cpu": "100m"}, "stages": []any{map[string]any{"name": "one"}},
	})
	failed := errors.New("failed")
	err := Typed(func(_ context.Context, id identifiers, typed *typedWidget, object *unstructured.Unstructured) error {
		if id != first || object != widget {
			t.Errorf("got %s and the object %v", id, object)
		}
		if typed.Kind != "Widget" || typed.Name != "first" || typed.Spec.Size != "big" || typed.Spec.Replicas != 3 {
			t.Errorf("got %+v", typed)
		}
		if cpu := typed.Spec.Limits["cpu"]; cpu.MilliValue() != 100 || typed.Spec.Stages[0].Name != "one" {
			t.Errorf("got %+v", typed.Spec)
		}
		return failed
	})(t.Context(), first, widget)
	if err != failed {
		t.Errorf("got the error %v, want that of the handler", err)
	}
}

func TestTyped_ErrorNamesObjectAndField(t *testing.T) {
	const prefix = "terminal: decode widgets.v1.example.com default/first: "
	stages := []any{map[string]any{"name": "one"}, map[string]any{"name": int64(2)}}
	for name, test := range map[string]struct {
		spec map[string]any
		want string
	}{
		"a field of another type": {map[string]any{"size": int64(1)}, "spec.size: got number, want string"},
		"a number that overflows": {
			map[string]any{"replicas": int64(1 << 32)}, "spec.replicas: got number 4294967296, want int32",
		},
		"an item of a list": {map[string]any{"stages": stages}, "spec.stages[1].name: got number, want string"},
		"a list instead of an object": {
			map[string]any{"limits": []any{}}, "spec.limits: got array, want map[string]resource.Quantity",
		},
		"two rejected fields": {
			map[string]any{"size": true, "replicas": "x"}, "spec.replicas: got string, want int32",
		},
		"an error from a custom decoder": {
			map[string]any{"limits": map[string]any{"cpu": "x"}}, "spec.limits.cpu: " + apiresource.ErrFormatWrong.Error(),
		},
		"an error from a union": {
			map[string]any{"union": map[string]any{"a": "b", "type": "x"}}, "spec.union.type: type: x is not supported",
		},
		"an error from a union next to a rejected field": {
			map[string]any{"size": true, "union": map[string]any{}}, "spec.union: type: required",
		},
		"a value that is not from JSON": {map[string]any{"any": func() {}}, "spec.any: json: unsupported type: func()"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Typed(func(context.Context, identifiers, *typedWidget, *unstructured.Unstructured) error {
				t.Error("the handler was called")
				return nil
			})(t.Context(), first, newTypedWidget(test.spec))
			if err == nil || err.Error() != prefix+test.want {
				t.Errorf("got the error  %v\nwant %s", err, prefix+test.want)
			}
		})
	}
}

func TestTyped_ValueAndObjectShareNoMemory(t *testing.T) {
	widget := newTypedWidget(map[string]any{"any": map[string]any{"a": "b"}})
	want := runtime.DeepCopyJSON(widget.Object)
	err := Typed(func(_ context.Context, _ identifiers, typed *typedWidget, _ *unstructured.Unstructured) error {
		typed.Spec.Any.(map[string]any)["a"] = "changed"
		return nil
	})(t.Context(), first, widget)
	if got, _, _ := unstructured.NestedString(widget.Object, "spec", "any", "a"); err != nil || got != "b" {
		t.Errorf("got %v and the error %v, want %v", widget.Object, err, want)
	}
}

// TestTyped_ComposesWithFinalizer also shows that an object that cannot be decoded keeps its finalizer and that its
// untyped cleanup still runs.
func TestTyped_ComposesWithFinalizer(t *testing.T) {
	server := newFakeServer(newTypedWidget(map[string]any{"size": int64(1)}))
	var calls []string
	cleanup := func(context.Context, identifiers, *unstructured.Unstructured) error {
		calls = append(calls, "cleanup")
		return nil
	}
	reconcile := func(_ context.Context, _ identifiers, typed *typedWidget, _ *unstructured.Unstructured) error {
		calls = append(calls, "reconcile "+typed.Spec.Size)
		return nil
	}
	handler := Object(Live(server), Finalizer(FinalizerConfig{
		Client: server, Name: "example.com/cleanup", Reconcile: Typed(reconcile), Cleanup: cleanup,
	}), nil)
	if err := handler(t.Context(), first); err == nil || len(calls) != 0 {
		t.Errorf("got the error %v after the calls %q", err, calls)
	}
	for _, size := range []any{"big", int64(1)} {
		widget := server.Get(first)
		widget.Object["spec"] = map[string]any{"size": size}
		server.Add(widget)
		if size != "big" {
			server.Delete(first)
		}
		if err := handler(t.Context(), first); err != nil {
			t.Error(err)
		}
	}
	if want := []string{"reconcile big", "cleanup"}; !slices.Equal(calls, want) {
		t.Errorf("got the calls %q, want %q", calls, want)
	}
}

// TestTyped_IsSafeForConcurrentUse is meaningful only with the race detector.
func TestTyped_IsSafeForConcurrentUse(t *testing.T) {
	handler := Typed(func(_ context.Context, _ identifiers, typed *typedWidget, _ *unstructured.Unstructured) error {
		maps.Copy(typed.Labels, map[string]string{"a": "b"})
		return dynamiccontroller.RequeueAfter(0)
	})
	done := make(chan error)
	for range 8 {
		go func() {
			widget := newWidget()
			widget.SetLabels(map[string]string{"a": "a"})
			done <- handler(t.Context(), first, widget)
		}()
	}
	for range 8 {
		if _, requeue := dynamiccontroller.RequeueDelay(<-done); !requeue {
			t.Error("the handler's error was not returned")
		}
	}
}
