package platform

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
)

// A user of another namespace can write an owner reference to an instance, with the annotation of one of its resources.
func TestPresent_IgnoresForgedChildrenOfOtherNamespaces(t *testing.T) {
	k, server := bringing(t, chain(1))
	self := newFlowers(t, server)
	for namespace, want := range map[string]bool{flowers.Namespace(): true, "elsewhere": false} {
		forged := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}
		forged.SetNamespace(namespace)
		forged.SetName("forged")
		forged.SetUID("forged")
		forged.SetAnnotations(map[string]string{resourceKey: "a"})
		forged.SetOwnerReferences([]metav1.OwnerReference{{UID: self.GetUID(), Name: self.GetName(), Controller: ptr.To(true)}})
		engine := k.engine.(*fakeEngine)
		if err := engine.secondary.Add(forged); err != nil {
			t.Fatal(err)
		}
		if got := len(k.present(t.Context(), self).byID) > 0; got != want {
			t.Errorf("namespace %s: the object counts as a child: %t, want %t", namespace, got, want)
		}
		if err := engine.secondary.Delete(forged); err != nil {
			t.Fatal(err)
		}
	}
}
