package handlers

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/dynamic-controller/engine/handlers/internal/fakeserver"
)

// Kubernetes' garbage collector deletes the children of a deleted owner. It would not delete a released child.
func TestClaimer_DeletedOwnerNeitherAdoptsNorReleases(t *testing.T) {
	owner, now := newWidget(), metav1.Now()
	owner.SetDeletionTimestamp(&now)
	selector := labels.Set{"app": "first"}
	orphan := fakeserver.NewObject("v1", "ConfigMap", "default", "orphan")
	orphan.SetLabels(selector)
	unselected := fakeserver.NewObject("v1", "ConfigMap", "default", "unselected")
	unselected.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.GroupVersionKind())})
	selected := unselected.DeepCopy()
	selected.SetName("selected")
	selected.SetLabels(selector)
	server := newFakeServer(newWidget(), orphan, unselected, selected) // on the server, the owner is not being deleted
	claimer, err := NewClaimer(ClaimerConfig{
		Client: server, FieldManager: "m", Selector: labels.SelectorFromSet(selector),
	})
	if err != nil {
		t.Fatal(err)
	}
	candidates := []*unstructured.Unstructured{orphan, unselected, selected}
	claimed, err := claimer.Claim(t.Context(), first, owner, configMaps, candidates)
	if err != nil || len(claimed) != 1 || claimed[0] != selected {
		t.Errorf("claimed %v with the error %v", claimed, err)
	}
	if writes := server.TakeWrites(); len(writes) > 0 {
		t.Errorf("wrote %q", writes)
	}
}
