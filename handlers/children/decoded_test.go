package children

import (
	"math"
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// withValue adds the list spec.x with the value to an object.
func withValue(object *unstructured.Unstructured, value any) *unstructured.Unstructured {
	object.Object["spec"] = map[string]any{"x": []any{value}}
	return object
}

// Values that a program writes in Go are converted, wherever they are in the desired children.
func TestReconcile_ConvertsValuesOfOtherTypes(t *testing.T) {
	written := func() *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"name": "a", "labels": map[string]string{"app": "x"}},
			"data":     map[string]string{"key": "x"},
			"spec":     map[string]any{"replicas": 3, "ports": []map[string]any{{"port": int32(80)}}},
		}}
	}
	server := newFakeServer(newWidget())
	r := newReconciler(t, Config{Client: server})
	child := written()
	reconcile := func(desired Desired) {
		t.Helper()
		_, err := r.Reconcile(t.Context(), first, getParent(t, server), desired)
		failUnlessRequeued(t, err)
	}
	reconcile(oneStage(child))
	if !reflect.DeepEqual(child, written()) {
		t.Errorf("the caller's object has been changed: %v", child.Object)
	}
	server.TakeWrites()
	reconcile(oneStage(child))
	reconcile(oneStage(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": "a", "labels": map[string]any{"app": "x"}},
		"data":     map[string]any{"key": "x"},
		"spec":     map[string]any{"replicas": int64(3), "ports": []any{map[string]any{"port": int64(80)}}},
	}}))
	if writes := server.TakeWrites(); len(writes) > 0 {
		t.Errorf("the same child is written again: %q", writes)
	}
	named := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]string{"name": "a"},
	}}
	reconcile(withAbsent(named, child))
	if writes := server.TakeWrites(); len(writes) > 0 {
		t.Errorf("a desired child is taken for an absent one: %q", writes)
	}
	reconcile(withAbsent(named))
	if writes := server.TakeWrites(); len(writes) != 1 || writes[0] != "delete configmaps a" {
		t.Errorf("the absent child is not deleted: %q", writes)
	}
}

func TestReconcile_RefusesValuesThatJSONCannotRepresent(t *testing.T) {
	secret := newObject("v1", "Secret", "", "s")
	secret.Object["data"] = map[string]any{"token": func() {}}
	for name, c := range map[string]struct {
		desired Desired
		want    string
	}{
		"in a stage": {
			oneStage(newConfigMap("b", "x"), withValue(newConfigMap("a", "x"), math.NaN())),
			"stage 0, child 1: ConfigMap a: spec.x[0]: must be a finite number",
		},
		"of an absent object": {
			withAbsent(withValue(newConfigMap("a", "x"), make(chan int))),
			"absent object 0: ConfigMap a: spec.x[0]: must have a type that JSON can represent, but is a chan int",
		},
		"in a Secret, without the key": {
			oneStage(secret), "stage 0, child 0: Secret s: data: must have values that JSON can represent",
		},
		"no object":        {oneStage(nil), "stage 0, child 0: must have an object"},
		"no absent object": {withAbsent(nil), "absent object 0: must have an object"},
	} {
		t.Run(name, func(t *testing.T) {
			server := newFakeServer(newWidget())
			r := newReconciler(t, Config{Client: server})
			result, err := r.Reconcile(t.Context(), first, getParent(t, server), c.desired)
			if err == nil || !strings.HasSuffix(err.Error(), c.want) || result.Failure == nil {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if writes := server.TakeWrites(); len(writes) > 0 {
				t.Errorf("wrote %q", writes)
			}
			parent, now := getParent(t, server), metav1.Now()
			parent.SetDeletionTimestamp(&now)
			if _, err := r.Reconcile(t.Context(), first, parent, c.desired); err != nil {
				t.Errorf("while the parent is being deleted: %v", err)
			}
		})
	}
}
