package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// A revision beyond the history limit is kept while instances have children of its kinds, even after a restart.
func TestInventory_ChildrenOfRevisionsBeyondTheLimitArePruned(t *testing.T) {
	a := newAPI(t)
	p := startServing(t, a.cluster.Kubeconfig())
	limited := strings.Replace(websites, "spec:\n", "spec:\n  revisionHistoryLimit: 0\n", 1)
	first := changed(limited, change{"${self.spec.text}", "nothing"})
	a.apply(first)
	a.apply(strings.ReplaceAll(flowers, "text: roses", "public: false"))
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))

	// Nothing is pruned yet, because the page now requires a text that the instance does not have.
	second := limited[:strings.Index(limited, "    - id: service")]
	a.apply(strings.ReplaceAll(second, "${service.spec.clusterIP}:80", "none"))
	a.waitBlueprint("websites", is("Serving", "True", "generation 2 is served"))
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "False", "Invalid"))
	a.waitRevisions("websites", 1, 2) // only the first one has the Service
	p.kill()
	startServing(t, a.cluster.Kubeconfig())
	if _, err := a.get("v1", "Service", "flowers"); err != nil {
		t.Fatal(err)
	}
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	a.waitGone("v1", "Service", "flowers")
}

// All children are deleted with their instance, even while the Blueprint is rejected or being deleted.
func TestInventory_ChildrenOfEarlierRevisionsAreDeleted(t *testing.T) {
	a := newAPI(t)
	p := startServing(t, a.cluster.Kubeconfig())
	far := a.addNamespace(a.namespace + "-far")
	crossNamespace := changed(deleting, change{"metadata: {name: \"${self.metadata.name}-page\"}",
		"metadata: {name: \"${self.metadata.name}-page\", namespace: " + far + "}"})
	a.apply(crossNamespace)
	for _, name := range []string{"flowers", "trees"} {
		a.apply(strings.ReplaceAll(flowers, "flowers", name))
		a.wait("GROUP/v1", "Website", name, is("Ready", "True"))
	}
	// Neither the rejected generation nor the new process has created such children.
	p.kill()
	head, _, _ := strings.Cut(deleting, "resources:")
	a.apply(head + `resources: [{id: a, template: {apiVersion: example.com/v1, kind: Missing, metadata: {name: a}}}]`)
	startServing(t, a.cluster.Kubeconfig())
	a.waitBlueprint("websites", is("Accepted", "False"))
	a.delete("GROUP/v1", "Website", "trees")
	a.waitGone("GROUP/v1", "Website", "trees")
	a.waitGone("v1", "ConfigMap", far+"/trees-page")
	a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
	a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)
	a.waitGone("v1", "ConfigMap", far+"/flowers-page")
}

func TestAttack_ManipulatedInventorySendsNoRequests(t *testing.T) {
	a := newAPI(t)
	kubeconfig, calls := a.proxied()
	startServing(t, kubeconfig)
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))

	entries := []string{"Secret=v1/secrets:0", "Namespace=v1/namespaces:0"}
	for i := range 7500 {
		entries = append(entries, fmt.Sprintf("K%d.x.io=v1/k%d:0", i, i))
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"finalizers":  []string{"platform.example.com/children"},
		"annotations": map[string]string{"platform.example.com/inventory": strings.Join(entries, ",")},
	}})
	if err != nil {
		t.Fatal(err)
	}
	gvr := schema.GroupVersionResource{Group: a.group, Version: "v1", Resource: "websites"}
	tenant := a.tenant().dynamic.Resource(gvr).Namespace(a.namespace)
	waitUntilQuiet(t, func() int { return writes(calls) })
	before := len(calls.Calls())
	if _, err := tenant.Patch(t.Context(), "flowers", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		change := fmt.Sprintf(`{"spec":{"text":"number %d"}}`, i)
		if _, err := tenant.Patch(t.Context(), "flowers", types.MergePatchType, []byte(change),
			metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		a.wait("v1", "ConfigMap", "flowers-page", has(fmt.Sprintf("number %d", i), "data", "text"))
	}
	if err := tenant.Delete(t.Context(), "flowers", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	a.waitGone("GROUP/v1", "Website", "flowers")
	a.apply(strings.ReplaceAll(flowers, "flowers", "trees"))
	a.wait("GROUP/v1", "Website", "trees", is("Ready", "True"))
	lists := map[string]int{}
	for _, c := range calls.Calls()[before:] {
		if c.Verb == "list" {
			lists[c.Resource]++
		}
		if strings.HasSuffix(c.Group, "x.io") || c.Resource == "namespaces" || c.Resource == "secrets" {
			t.Fatalf("a manipulated inventory caused the request %+v", c)
		}
	}
	t.Logf("lists: %v", lists)
	if n := lists["configmaps"] + lists["services"]; n > 20 {
		t.Errorf("5 updates and a deletion caused %d lists of children", n)
	}
}

// For a tenant, the platform deletes only objects that the tenant's Blueprint has created.
func TestAttack_ManipulatedInventoryDeletesNothing(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	instance := a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	label, record := markOf(instance)
	a.apply(fmt.Sprintf(`{apiVersion: v1, kind: Secret, metadata: {
		name: theirs, namespace: kube-public, labels: {platform.example.com/parent: %s},
		annotations: {platform.example.com/self: kube-public/theirs, platform.example.com/parent: '%s'}}}`, label, record))
	t.Cleanup(func() { a.delete("v1", "Secret", "kube-public/theirs") })
	a.apply(`{apiVersion: GROUP/v1, kind: Website, metadata: {name: flowers, finalizers: [platform.example.com/children],
		annotations: {platform.example.com/inventory: "Secret=v1/secrets:0"}}, spec: {text: tulips}}`)
	a.wait("v1", "ConfigMap", "flowers-page", has("tulips", "data", "text"))
	a.delete("GROUP/v1", "Website", "flowers")
	a.waitGone("GROUP/v1", "Website", "flowers")
	a.wait("v1", "Secret", "kube-public/theirs", func(*unstructured.Unstructured) error { return nil })
}
