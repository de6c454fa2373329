package main

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// stacks creates four ConfigMaps for each Stack. The second refers to the first, the third is retained, and the fourth
// is adopted.
const stacks = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: stacks.GROUP}
spec:
  deletionPolicy: Delete
  type:
    group: GROUP
    version: v1
    kind: Stack
    schema:
      type: object
      properties:
        spec:
          type: object
          properties:
            text: {type: string}
            extra: {type: boolean, default: true}
  resources:
    - id: database
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-database"}
        data: {text: "${self.spec.text}"}
    - id: app
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-app"}
        data: {database: "${database.metadata.name}"}
    - id: volume
      deletionPolicy: Retain
      adopt: true
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-volume"}
        data: {text: "${self.spec.text}"}
    - id: extra
      includeWhen: [self.spec.extra]
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-extra"}
`

const stack = "{apiVersion: GROUP/v1, kind: Stack, metadata: {name: s}, spec: {text: a}}"

func uidIs(want string) func(*unstructured.Unstructured) error {
	return func(object *unstructured.Unstructured) error {
		if got := string(object.GetUID()); got != want {
			return fmt.Errorf("got UID %s, want %s", got, want)
		}
		return nil
	}
}

func TestLifecycle_DeletionReportsBlockers(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(stacks)
	served := a.waitBlueprint("stacks", is("Serving", "True"))
	a.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: s-volume}, data: {mine: b}}")
	a.apply(stack)
	revision, _, _ := unstructured.NestedString(served.Object, "status", "served", "revision")
	a.wait("GROUP/v1", "Stack", "s", all(is("Ready", "True", "all 4 resources are ready"),
		has(revision, "status", "revision")))

	app := a.wait("v1", "ConfigMap", "s-app", has("s-database", "data", "database"))
	for key, want := range map[string]string{
		"app.kubernetes.io/managed-by": "platform.example.com", "platform.example.com/instance-name": "s",
		"platform.example.com/instance-namespace": a.namespace, "platform.example.com/instance-kind": "Stack",
		"platform.example.com/resource-id": "app",
	} {
		if got := app.GetLabels()[key]; got != want {
			t.Errorf("label %s: got %q, want %q", key, got, want)
		}
	}
	// Events for a child without an owner reference also trigger reconciles.
	volume := a.wait("v1", "ConfigMap", "s-volume", all(has("a", "data", "text"), has("b", "data", "mine")))
	a.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: s-volume}, data: {text: c, mine: b}}")
	a.wait("v1", "ConfigMap", "s-volume", has("a", "data", "text"))
	a.apply("{apiVersion: GROUP/v1, kind: Stack, metadata: {name: s}, spec: {text: a, extra: false}}")
	a.waitGone("v1", "ConfigMap", "s-extra")
	a.wait("GROUP/v1", "Stack", "s", is("Ready", "True", "3 of 4 resources are ready; excluded by includeWhen: extra"))

	const held = "{apiVersion: v1, kind: ConfigMap, metadata: {name: s-app, finalizers: [%s]}}"
	a.apply(fmt.Sprintf(held, "example.com/x"))
	a.delete("GROUP/v1", "Stack", "s")
	a.wait("GROUP/v1", "Stack", "s", is("Ready", "False", "Deleting",
		"app: waiting for ConfigMap "+a.namespace+"/s-app to be deleted; blocked by finalizer example.com/x"))
	if database, err := a.get("v1", "ConfigMap", "s-database"); err != nil || database.GetDeletionTimestamp() != nil {
		t.Errorf("got database %v, %v; want it to be deleted after the app", database, err)
	}
	a.apply(fmt.Sprintf(held, ""))
	a.waitGone("GROUP/v1", "Stack", "s")
	a.waitGone("v1", "ConfigMap", "s-database")
	a.apply(stack)
	a.wait("GROUP/v1", "Stack", "s", is("Ready", "True"))
	a.wait("v1", "ConfigMap", "s-volume", uidIs(string(volume.GetUID())))

	a.apply("{apiVersion: GROUP/v1, kind: Stack, metadata: {name: s, finalizers: [example.com/y]}, spec: {text: a}}")
	a.delete(blueprintVersion, "Blueprint", "stacks."+a.group)
	a.waitBlueprint("stacks", is("Serving", "False", "Deleting",
		"waiting for 1 instance to be deleted, for example "+a.namespace+
			"/s; blocked by finalizer example.com/y"))
	a.wait("GROUP/v1", "Stack", "s", is("Ready", "False", "Deleting", "example.com/y"))
	a.apply("{apiVersion: GROUP/v1, kind: Stack, metadata: {name: s, finalizers: []}, spec: {text: a}}")
	a.waitGone(blueprintVersion, "Blueprint", "stacks."+a.group)
	if _, err := a.get("v1", "ConfigMap", "s-volume"); err != nil {
		t.Errorf("got error %v for the retained child", err)
	}
}

func TestLifecycle_Paused(t *testing.T) {
	const annotation = "annotations: {platform.example.com/paused: 'true'}"
	pausedStack := strings.Replace(stack, "name: s", "name: s, "+annotation, 1)
	paused := strings.Replace(stacks, "name: stacks.GROUP", "name: stacks.GROUP, "+annotation, 1)
	a := newAPI(t)
	kubeconfig, proxy := a.proxied()
	startServing(t, kubeconfig)
	a.apply(stacks)
	a.apply(stack)
	a.wait("GROUP/v1", "Stack", "s", is("Ready", "True"))
	change := func(text string) { a.apply(strings.Replace(text, "text: a", "text: b", 1)) }

	change(pausedStack)
	a.wait("GROUP/v1", "Stack", "s", is("Paused", "True", "InstancePaused"))
	waitUntilQuiet(t, func() int { return writes(proxy) })
	a.wait("v1", "ConfigMap", "s-database", has("a", "data", "text"))
	change(stack)
	a.wait("v1", "ConfigMap", "s-database", has("b", "data", "text"))
	a.wait("GROUP/v1", "Stack", "s", all(is("Paused", "False"), is("Ready", "True")))

	a.apply(paused)
	a.waitBlueprint("stacks", is("Paused", "True", "BlueprintPaused"))
	a.apply(stack)
	a.wait("GROUP/v1", "Stack", "s", is("Paused", "True", "BlueprintPaused"))
	a.delete("GROUP/v1", "Stack", "s")
	waitUntilQuiet(t, func() int { return writes(proxy) })
	a.wait("v1", "ConfigMap", "s-database", has("b", "data", "text"))
	a.wait("GROUP/v1", "Stack", "s", is("Paused", "True"))
	a.apply(stacks)
	a.waitBlueprint("stacks", is("Paused", "False"))
	a.waitGone("GROUP/v1", "Stack", "s")
}
