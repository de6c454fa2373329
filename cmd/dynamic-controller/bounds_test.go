package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// turns is a Blueprint of which each instance makes so many of another type.
func turns(from, to string, many int) string {
	var resources strings.Builder
	for i := range many {
		fmt.Fprintf(&resources, `
    - id: next%d
      template: {apiVersion: GROUP/v1, kind: %s, metadata: {name: "${self.metadata.name}-%d", annotations: {platform.example.com/allowance: "16384"}}, spec: {}}`, i, to, i)
	}
	if many == 0 {
		resources.WriteString(" []")
	}
	return fmt.Sprintf(`
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: %[1]ss.GROUP}
spec:
  type:
    group: GROUP
    version: v1
    kind: %[1]s
    schema: {type: object, properties: {spec: {type: object}}}
  resources:%[2]s`, from, resources.String())
}

// applyCircle has pings make pongs and pongs pings, so many each. No Blueprint is accepted before there is the type.
func (a *api) applyCircle(many int) {
	a.Helper()
	a.apply(turns("ping", "", 0))
	a.waitBlueprint("pings", is("Serving", "True"))
	a.apply(turns("pong", "ping", many))
	a.waitBlueprint("pongs", is("Accepted", "True"), is("Serving", "True"))
	a.apply(turns("ping", "pong", many))
	a.waitBlueprint("pings", is("Accepted", "True"), is("Serving", "True", "generation 2"))
}

func allowance(of int) func(*unstructured.Unstructured) error {
	return has(fmt.Sprint(of), "metadata", "annotations", "platform.example.com/allowance")
}

func TestBlueprintsThatMakeEachOtherComeToAnEnd(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.applyCircle(1)
	a.apply("{apiVersion: GROUP/v1, kind: ping, metadata: {name: it}, spec: {}}")
	below := func(n int) string { return "it" + strings.Repeat("-0", n) }
	a.wait("GROUP/v1", "pong", below(15), all(allowance(0),
		is("Ready", "False", "Invalid", "1 resources are more than the 0 objects that this instance may become", "in a circle")))
	a.wait("GROUP/v1", "ping", below(14), all(allowance(1), is("Ready", "True")))
	if _, err := a.get("GROUP/v1", "ping", below(16)); !apierrors.IsNotFound(err) {
		t.Errorf("the one below is there: %v", err)
	}
	a.waitBlueprint("pongs", counted(8, 7, 1))
	a.waitBlueprint("pings", counted(8, 8, 0))
}

// Of one instance come 20, and of each of these 20: what is made of those would be 8,000, and so on.
func TestBlueprintsThatMakeManyOfEachOtherComeToAnEndAndHoldUpNoOther(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.applyCircle(20)
	a.apply("{apiVersion: GROUP/v1, kind: ping, metadata: {name: it}, spec: {}}")
	a.wait("GROUP/v1", "pong", "it-0", allowance(409))

	// A Blueprint beside them that comes now is served, and an instance of it.
	began := time.Now()
	a.apply(websites)
	a.waitBlueprint("websites", is("Serving", "True"))
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	took := time.Since(began)
	pings, err := a.client(a.read("{apiVersion: GROUP/v1, kind: ping}")).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("served in %s, when there were %d of 401 pings", took, len(pings.Items))
	if took > 5*time.Second {
		t.Errorf("another Blueprint and its instance took %s", took)
	}

	a.waitBlueprint("pongs", counted(20, 20, 0))
	a.waitBlueprint("pings", counted(401, 1, 400))
	a.wait("GROUP/v1", "ping", "it-19-19", all(allowance(10), is("Ready", "False", "Invalid", "20 resources are more than the 10 objects")))
	if _, err := a.get("GROUP/v1", "pong", "it-19-19-0"); !apierrors.IsNotFound(err) {
		t.Errorf("one below is there: %v", err)
	}
}
