package bench

import (
	"encoding/json"
	"math"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
)

func TestPayload_HasRequestedSizeOnServer(t *testing.T) {
	const objects, tolerance = 10, 0.02
	cluster := shared.Cluster(t)
	client, err := dynamic.NewForConfig(cluster.Config())
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range payloadSizes {
		managed := withPayload("size", objects, size)
		for _, f := range []fixture{managed, managed.withoutManagedFields()} {
			t.Run(f.String(), func(t *testing.T) {
				t.Parallel() // The API server delays the first POST of a new type.
				if err := f.create(t.Context(), cluster.Config()); err != nil {
					t.Fatal(err)
				}
				list, err := client.Resource(f.types()[0]).List(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if len(list.Items) != objects {
					t.Fatalf("got %d objects, want %d", len(list.Items), objects)
				}
				for _, o := range list.Items {
					checkPayload(t, f, &o, size, tolerance)
				}
			})
		}
	}
}

func checkPayload(t *testing.T, f fixture, o *unstructured.Unstructured, size int, tolerance float64) {
	t.Helper()
	if got := sizeOf(o); math.Abs(float64(got-size)) > tolerance*float64(size) {
		t.Errorf("got size %[2]d of %[1]s, want %[3]d", o.GetName(), got, size)
	}
	fields, err := json.Marshal(o.GetManagedFields())
	if err != nil {
		t.Fatal(err)
	}
	if got := len(o.GetManagedFields()) > 0; got == f.Unmanaged {
		t.Errorf("got managedFields %s of %s, want some: %t", fields, o.GetName(), !f.Unmanaged)
	}
}

func TestFixture_DeletesSurplusObjects(t *testing.T) {
	cluster := shared.Cluster(t)
	client, err := dynamic.NewForConfig(cluster.Config())
	if err != nil {
		t.Fatal(err)
	}
	for _, objects := range []int{3, 7, 2} {
		f := withPayload("surplus", objects, 1000)
		if err := f.create(t.Context(), cluster.Config()); err != nil {
			t.Fatal(err)
		}
		if got, err := countObjects(t.Context(), client, f.types()[0]); got != objects || err != nil {
			t.Errorf("got %d objects, want %d, error %v", got, objects, err)
		}
	}
}
