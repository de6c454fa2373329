package instances

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/platformtest"
)

// A user of another namespace can write an owner reference to an instance, with the annotation of one of its resources.
func TestPresent_IgnoresForgedChildrenOfOtherNamespaces(t *testing.T) {
	k, server := newTestReconciler(t, chain(1))
	self := newFlowers(t, server)
	access, err := k.accessFor(t.Context(), self)
	if err != nil {
		t.Fatal(err)
	}
	for namespace, want := range map[string]bool{flowers.Namespace(): true, "elsewhere": false} {
		forged := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}
		forged.SetNamespace(namespace)
		forged.SetName("forged")
		forged.SetUID("forged")
		forged.SetAnnotations(map[string]string{resourceAnnotation: "a"})
		forged.SetOwnerReferences([]metav1.OwnerReference{{UID: self.GetUID(), Name: self.GetName(),
			Controller: ptr.To(true)}})
		engine := k.engine.(*platformtest.Engine)
		if err := engine.Secondary.Add(forged); err != nil {
			t.Fatal(err)
		}
		if got := len(k.observe(t.Context(), self, access.reader).byID) > 0; got != want {
			t.Errorf("namespace %s: the object counts as a child: %t, want %t", namespace, got, want)
		}
		if err := engine.Secondary.Delete(forged); err != nil {
			t.Fatal(err)
		}
	}
}
