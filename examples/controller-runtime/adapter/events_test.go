package adapter_test

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/examples/controller-runtime/adapter"
)

// stored is an object as the engine passes it to predicates and MapFuncs.
type stored struct {
	metadata
	form runtime.Object
}

type metadata = metav1.Object

func (s stored) Object() runtime.Object { return s.form }

func whole(spec map[string]any) stored {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod", "spec": spec}}
	u.SetNamespace("default")
	u.SetName("first")
	return stored{u, u}
}

func TestMapFunc_ReceivesTypedObjects(t *testing.T) {
	partial := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "first"},
	}
	for name, test := range map[string]struct {
		object dynamiccontroller.Object
		want   []string
	}{
		"a whole object":                   {whole(map[string]any{"nodeName": "a"}), []string{"default/first", "a"}},
		"metadata":                         {stored{partial, partial}, []string{"default/first", ""}},
		"an object that cannot be decoded": {whole(map[string]any{"nodeName": int64(1)}), nil},
	} {
		t.Run(name, func(t *testing.T) {
			toKeys := adapter.MapFunc[corev1.Pod](func(_ context.Context, o client.Object) []reconcile.Request {
				if kind := o.GetObjectKind().GroupVersionKind().Kind; kind != "" && kind != "Pod" {
					t.Errorf("got the kind %s", kind)
				}
				return []reconcile.Request{
					{NamespacedName: client.ObjectKeyFromObject(o)},
					{NamespacedName: types.NamespacedName{Name: o.(*corev1.Pod).Spec.NodeName}},
				}
			})
			if got := toKeys(t.Context(), test.object); !slices.Equal(got, test.want) {
				t.Errorf("got the keys %q, want %q", got, test.want)
			}
		})
	}
}

func TestPredicate_CallsMatchingMethod(t *testing.T) {
	a, b := whole(map[string]any{"nodeName": "a"}), whole(map[string]any{"nodeName": "b"})
	invalid := whole(map[string]any{"nodeName": int64(1)})
	var got []string
	record := func(values ...client.Object) bool {
		for _, v := range values {
			got = append(got, v.(*corev1.Pod).Spec.NodeName)
		}
		return false
	}
	p := adapter.Predicate[corev1.Pod](predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { got = append(got, "create"); return record(e.Object) },
		DeleteFunc: func(e event.DeleteEvent) bool { got = append(got, "delete"); return record(e.Object) },
		UpdateFunc: func(e event.UpdateEvent) bool { got = append(got, "update"); return record(e.ObjectOld, e.ObjectNew) },
	})
	for name, test := range map[string]struct {
		from, to dynamiccontroller.Object
		accepted bool
		want     []string
	}{
		"created": {to: a, want: []string{"create", "a"}},
		"deleted": {from: a, want: []string{"delete", "a"}},
		"updated": {from: a, to: b, want: []string{"update", "a", "b"}},
		"invalid": {from: a, to: invalid, accepted: true},
	} {
		t.Run(name, func(t *testing.T) {
			got = nil
			if accepted := p(t.Context(), test.from, test.to); accepted != test.accepted || !slices.Equal(got, test.want) {
				t.Errorf("got %t and %q, want %t and %q", accepted, got, test.accepted, test.want)
			}
		})
	}
}
