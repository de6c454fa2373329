package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const typeVersion, typeKind = "apiextensions.k8s.io/v1", "CustomResourceDefinition"

// A CustomResourceDefinition is deleted while no replica is running. Its instances have the platform's finalizer, and
// the Blueprint is kept, or deleted as well.
func TestDeletion_OfTheTypeWhileNoReplicaRuns(t *testing.T) {
	a := newAPI(t)
	p := startServing(t, a.cluster.Kubeconfig())
	kept := changed(stacks, change{"deletionPolicy: Delete", "deletionPolicy: Retain"})
	retained := changed(kept, change{"stacks.GROUP", "plates.GROUP"}, change{"kind: Stack", "kind: Plate"})
	deleted := changed(stacks, change{"stacks.GROUP", "cups.GROUP"}, change{"kind: Stack", "kind: Cup"})
	a.apply(kept)
	a.apply(retained)
	a.apply(deleted)
	kinds := map[string]string{"Stack": "stacks.", "Plate": "plates.", "Cup": "cups."}
	for kind := range kinds {
		a.apply(changed(stack, change{"kind: Stack", "kind: " + kind}, change{"name: s", "name: " + strings.ToLower(kind)}))
	}
	uids := map[string]string{}
	for kind := range kinds {
		a.wait("GROUP/v1", kind, strings.ToLower(kind), is("Ready", "True"))
		uids[kind] = string(a.wait(typeVersion, typeKind, kinds[kind]+a.group, exists).GetUID())
	}
	p.kill()
	a.delete(blueprintVersion, "Blueprint", "plates."+a.group)
	a.delete(blueprintVersion, "Blueprint", "cups."+a.group)
	for kind := range kinds {
		a.delete(typeVersion, typeKind, kinds[kind]+a.group)
		a.wait("GROUP/v1", kind, strings.ToLower(kind), isBeingDeleted)
	}
	startServing(t, a.cluster.Kubeconfig())
	a.waitGone(blueprintVersion, "Blueprint", "plates."+a.group)
	a.waitGone(blueprintVersion, "Blueprint", "cups."+a.group)
	a.waitGone(typeVersion, typeKind, "plates."+a.group)
	a.waitGone(typeVersion, typeKind, "cups."+a.group)
	// The type of the remaining Blueprint is created again.
	a.wait(typeVersion, typeKind, "stacks."+a.group, func(crd *unstructured.Unstructured) error {
		return not(uidIs(uids["Stack"]))(crd)
	})
	a.waitBlueprint("stacks", is("Serving", "True"))
	a.apply(changed(stack, change{"name: s", "name: stack"}))
	a.wait("GROUP/v1", "Stack", "stack", is("Ready", "True"))
}

// crews have children that depend on each other, and a child that Kubernetes does not delete with its parent.
const crews = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: crews.GROUP}
spec:
  type:
    group: GROUP
    version: v1
    kind: Crew
    schema: {properties: {spec: {type: object}}}
  resources:
    - id: key
      template: {apiVersion: v1, kind: Secret, metadata: {name: "${self.metadata.name}-key"}, stringData: {a: b}}
    - id: ship
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-ship"}
        data: {key: "${key.metadata.name}"}
    - id: role
      template:
        apiVersion: rbac.authorization.k8s.io/v1
        kind: ClusterRole
        metadata: {name: "${self.metadata.namespace}-${self.metadata.name}"}
`

// crew starts a platform, and creates two instances of a Blueprint with the deletion policy Retain. A child of the
// first one has a finalizer. The instance and then the Blueprint are deleted.
func (a *api) crew() (p *process) {
	a.Helper()
	p = startServing(a.T, a.cluster.Kubeconfig())
	a.apply(crews)
	for _, name := range []string{"left", "kept"} {
		a.apply("{apiVersion: GROUP/v1, kind: Crew, metadata: {name: " + name + "}, spec: {}}")
		a.wait("GROUP/v1", "Crew", name, is("Ready", "True"))
	}
	a.apply(fmt.Sprintf(heldShip, "example.com/hold"))
	a.delete("GROUP/v1", "Crew", "left")
	a.delete(blueprintVersion, "Blueprint", "crews."+a.group)
	return p
}

const heldShip = "{apiVersion: v1, kind: ConfigMap, metadata: {name: left-ship, finalizers: [%s]}}"

// checkCrew waits until the Blueprint and the deleted instance are gone. The other instance must be kept without the
// platform's finalizer.
func (a *api) checkCrew() {
	a.Helper()
	a.waitGone(blueprintVersion, "Blueprint", "crews."+a.group)
	a.waitGone("GROUP/v1", "Crew", "left")
	if kept, err := a.get("GROUP/v1", "Crew", "kept"); err != nil || len(kept.GetFinalizers()) > 0 {
		a.Errorf("got instance %v, %v", kept, err)
	}
	for kind, name := range map[string]string{"ConfigMap": "kept-ship", "Secret": "kept-key"} {
		if _, err := a.get("v1", kind, name); err != nil {
			a.Error(err)
		}
	}
	if _, err := a.get("rbac.authorization.k8s.io/v1", "ClusterRole", a.namespace+"-kept"); err != nil {
		a.Error(err)
	}
}

// An instance is being deleted when its Blueprint is deleted, and another process continues.
func TestDeletion_RetainCompletesTheDeletionsOfInstances(t *testing.T) {
	a := newAPI(t)
	p := a.crew()
	waits := func() {
		t.Helper()
		a.waitBlueprint("crews", is("Serving", "False", "Deleting", "the requested deletion of 1 instance",
			a.namespace+"/left; its Ready condition"))
		a.wait("GROUP/v1", "Crew", "left", is("Ready", "False", "Deleting", "left-ship", "example.com/hold"))
		if key, err := a.get("v1", "Secret", "left-key"); err != nil || key.GetDeletionTimestamp() != nil {
			t.Errorf("got Secret %v, %v; want it to be deleted after the ConfigMap", key, err)
		}
		if kept, err := a.get("GROUP/v1", "Crew", "kept"); err != nil || len(kept.GetFinalizers()) == 0 {
			t.Errorf("got instance %v, %v, want it to have the finalizer", kept, err)
		}
	}
	waits()
	p.kill()
	startServing(t, a.cluster.Kubeconfig())
	waits()
	a.apply(fmt.Sprintf(heldShip, ""))
	a.checkCrew()
	a.waitGone("v1", "Secret", "left-key")
	a.waitGone("rbac.authorization.k8s.io/v1", "ClusterRole", a.namespace+"-left")
}

// If a deletion cannot be completed, the platform's finalizer can be removed by hand.
func TestDeletion_RetainContinuesWithoutAStuckInstance(t *testing.T) {
	a := newAPI(t)
	a.crew()
	a.waitBlueprint("crews", is("Serving", "False", "Deleting", a.namespace+"/left"))
	a.change(a.wait("GROUP/v1", "Crew", "left", isBeingDeleted), `{"metadata":{"finalizers":null}}`)
	a.checkCrew()
	a.apply(fmt.Sprintf(heldShip, ""))
}

func isBeingDeleted(object *unstructured.Unstructured) error {
	if object.GetDeletionTimestamp() == nil {
		return errors.New("the object is not being deleted")
	}
	return nil
}

func not(check func(*unstructured.Unstructured) error) func(*unstructured.Unstructured) error {
	return func(object *unstructured.Unstructured) error {
		if check(object) == nil {
			return errors.New("the object has not changed")
		}
		return nil
	}
}
