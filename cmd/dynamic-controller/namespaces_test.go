package main

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Cluster-scoped instances and children, and children in other namespaces, exist before --namespaces is set.
func TestNamespaces_EnabledLater(t *testing.T) {
	a := newAPI(t)
	far := a.addNamespace(a.namespace + "-far")
	unlimited := startServing(t, a.cluster.Kubeconfig())
	a.apply(making("Role", `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole,
        metadata: {name: "${self.metadata.namespace}"}}`))
	a.apply(making("Place", `{apiVersion: v1, kind: ConfigMap, metadata: {name: child, namespace: `+far+`}}`))
	a.apply(strings.Replace(making("ClusterNode", `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole,
        metadata: {name: "`+a.namespace+`-node"}}`, "  deletionPolicy: Delete"),
		"kind: ClusterNode", "kind: ClusterNode\n    scope: Cluster", 1))
	for _, kind := range []string{"Role", "Place", "ClusterNode"} {
		a.apply("{apiVersion: GROUP/v1, kind: " + kind + ", metadata: {name: flowers, finalizers: [example.com/hold]}}")
		key := a.namespace + "/flowers"
		if kind == "ClusterNode" {
			key = "flowers"
		}
		a.wait("GROUP/v1", kind, key, is("Ready", "True"))
	}
	unlimited.kill()
	startServing(t, a.cluster.Kubeconfig(), "--namespaces", a.namespace)
	for _, name := range []string{"roles", "places", "clusternodes"} {
		a.waitBlueprint(name, is("Accepted", "False", "Invalid", "--namespaces"))
	}

	for _, kind := range []string{"Role", "Place"} {
		a.delete("GROUP/v1", kind, a.namespace+"/flowers")
	}
	a.waitGone("rbac.authorization.k8s.io/v1", "ClusterRole", a.namespace)
	a.wait("GROUP/v1", "Place", a.namespace+"/flowers",
		is("Ready", "False", "CleanupForbidden", "namespace "+far+": ", "add the namespace to --namespaces, or release"))
	if _, err := a.get("v1", "ConfigMap", far+"/child"); err != nil {
		t.Error(err)
	}

	a.delete(blueprintVersion, "Blueprint", "clusternodes."+a.group)
	a.waitBlueprint("clusternodes", is("Serving", "False", "Deleting", "blocked by finalizer example.com/hold"))
	// Before the platform has deleted the children, its own finalizer must not be removed.
	a.waitGone("rbac.authorization.k8s.io/v1", "ClusterRole", a.namespace+"-node")
	for _, kind := range []string{"Role", "Place", "ClusterNode"} {
		instance, err := a.get("GROUP/v1", kind, "flowers")
		if err != nil {
			t.Fatal(err)
		}
		patch := []byte(`{"metadata":{"finalizers":null}}`)
		if _, err := a.client(instance).Patch(t.Context(), "flowers", types.MergePatchType, patch,
			metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	a.waitGone("apiextensions.k8s.io/v1", "CustomResourceDefinition", "clusternodes."+a.group)
	a.waitGone("GROUP/v1", "Place", a.namespace+"/flowers")
}
