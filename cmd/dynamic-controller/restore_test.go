package main

import (
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// ledgers is a Blueprint with a ConfigMap and a Secret.
const ledgers = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: ledgers.GROUP}
spec:
  type:
    group: GROUP
    version: v1
    kind: Ledger
    schema: {properties: {spec: {type: object, properties: {text: {type: string}}}}}
  resources:
    - id: settings
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}"}
        data: {text: "${self.spec.text}"}
    - id: key
      template:
        apiVersion: v1
        kind: Secret
        metadata: {name: "${self.metadata.name}"}
        stringData: {text: "${self.spec.text}"}
`

// A namespace is deleted, and a tool for backups restores its objects without owner references and with new UIDs. The
// children are conflicts until they are confirmed with the UID of the namespace. Afterwards, the instance is Ready, its
// children follow its spec, and they are deleted with it.
func TestRestore_ConfirmedChildrenBelongToTheirInstance(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(ledgers)
	space := a.addNamespace(a.namespace + "-shop")
	ledger := func(text string) string {
		return fmt.Sprintf("{apiVersion: GROUP/v1, kind: Ledger, metadata: {name: s, namespace: %s}, spec: {text: %s}}",
			space, text)
	}
	a.apply(ledger("old"))
	name := space + "/s"
	a.wait("GROUP/v1", "Ledger", name, is("Ready", "True"))
	var backups []*unstructured.Unstructured
	for _, id := range [][2]string{{"v1", "Secret"}, {"v1", "ConfigMap"}, {"GROUP/v1", "Ledger"}} {
		object, err := a.get(id[0], id[1], name)
		if err != nil {
			t.Fatal(err)
		}
		metadata := object.Object["metadata"].(map[string]any)
		object.Object["metadata"] = map[string]any{
			"name": "s", "namespace": space, "labels": metadata["labels"], "annotations": metadata["annotations"],
		}
		delete(object.Object, "status")
		backups = append(backups, object)
	}
	spaces := a.kube.CoreV1().Namespaces()
	if err := spaces.Delete(t.Context(), space, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if _, err := spaces.Get(t.Context(), space, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the namespace exists: %w", err)
		}
		return nil
	})
	a.addNamespace(space)
	for _, object := range backups {
		if _, err := a.client(object).Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	instance := a.wait("GROUP/v1", "Ledger", name, is("Ready", "False", "Conflict", "settings: ", "key: ",
		"platform.example.com/restored=", "if the parent has been restored from a backup"))
	namespace, err := spaces.Get(t.Context(), space, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"ConfigMap", "Secret"} {
		a.annotate("v1", kind, name, "platform.example.com/restored", string(namespace.UID))
	}
	a.wait("GROUP/v1", "Ledger", name, is("Ready", "True"))
	a.apply(ledger("new"))
	a.wait("v1", "ConfigMap", name, all(has("new", "data", "text"), func(object *unstructured.Unstructured) error {
		if !metav1.IsControlledBy(object, instance) || object.GetAnnotations()["platform.example.com/restored"] != "" {
			return fmt.Errorf("the metadata is %v", object.Object["metadata"])
		}
		return nil
	}))
	a.delete("GROUP/v1", "Ledger", name)
	for _, kind := range []string{"ConfigMap", "Secret"} {
		a.waitGone("v1", kind, name)
	}
}
