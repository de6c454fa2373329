package main

import (
	"errors"
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
