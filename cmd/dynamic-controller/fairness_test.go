package main

import (
	"fmt"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// One instance in a quiet namespace does not wait for the many instances of another namespace when the platform starts.
func TestFairness_NamespacesTakeTurns(t *testing.T) {
	const busy, workers = 40, 2
	a := newAPI(t)
	quiet := a.addNamespace(a.namespace + "-quiet")
	p := startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	a.waitBlueprint("websites", is("Serving", "True"))
	p.kill()
	for i := range busy {
		a.apply(fmt.Sprintf("{apiVersion: GROUP/v1, kind: Website, metadata: {name: busy-%d}, spec: {text: a}}", i))
	}
	a.apply(fmt.Sprintf("{apiVersion: GROUP/v1, kind: Website, metadata: {name: b, namespace: %s}, spec: {text: b}}",
		quiet))
	startServing(t, a.cluster.Kubeconfig(), "--workers", strconv.Itoa(workers))
	for i := range busy {
		a.wait("v1", "ConfigMap", fmt.Sprintf("busy-%d-page", i), exists)
	}
	version := func(object metav1.Object) int {
		n, err := strconv.Atoi(object.GetResourceVersion())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	created := version(a.wait("v1", "ConfigMap", quiet+"/b-page", exists))
	earlier := 0
	for i := range busy {
		if version(a.wait("v1", "ConfigMap", fmt.Sprintf("busy-%d-page", i), exists)) < created {
			earlier++
		}
	}
	if earlier > 4*workers {
		t.Errorf("%d of %d instances of the busy namespace preceded that of the quiet one", earlier, busy)
	}
}
