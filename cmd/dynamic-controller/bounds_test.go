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

// expandingBlueprint returns a Blueprint whose instances have many children of the type to.
func expandingBlueprint(from, to string, many int) string {
	var resources strings.Builder
	for i := range many {
		fmt.Fprintf(&resources, `
    - id: next%d
      readyWhen: ["true"]
      template:
        apiVersion: GROUP/v1
        kind: %s
        metadata: {name: "${self.metadata.name}-%d"}
        spec: {}`, i, to, i)
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

// applyCycle applies two Blueprints. Pings have many pongs as children, and pongs have many pings. A Blueprint is not
// accepted before the type of its children exists.
func (a *api) applyCycle(many int) {
	a.Helper()
	a.apply(expandingBlueprint("ping", "", 0))
	a.waitBlueprint("pings", is("Serving", "True"))
	a.apply(expandingBlueprint("pong", "ping", many))
	a.waitBlueprint("pongs", is("Accepted", "True"), is("Serving", "True"))
	a.apply(expandingBlueprint("ping", "pong", many))
	a.waitBlueprint("pings", is("Accepted", "True"), is("Serving", "True", "generation 2"))
}

func allowance(of int) func(*unstructured.Unstructured) error {
	return has(fmt.Sprint(of), "metadata", "annotations", "platform.example.com/allowance")
}

func TestExpansion_CycleOfTypesEnds(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.applyCycle(1)
	a.apply("{apiVersion: GROUP/v1, kind: ping, metadata: {name: it}, spec: {}}")
	below := func(n int) string { return "it" + strings.Repeat("-0", n) }
	a.wait("GROUP/v1", "pong", below(15), all(allowance(0),
		is("Ready", "False", "Invalid", "1 resources exceed the budget of 0 objects of this instance", "in a cycle")))
	a.wait("GROUP/v1", "ping", below(14), all(allowance(1), is("Ready", "True")))
	if _, err := a.get("GROUP/v1", "ping", below(16)); !apierrors.IsNotFound(err) {
		t.Errorf("got an instance below the last one: %v", err)
	}
	a.waitBlueprint("pongs", hasCounts(8, 7, 1))
	a.waitBlueprint("pings", hasCounts(8, 8, 0))
}

// Each instance has 20 children. Without the budget, there would be 400 instances on the second level and 8,000 on the
// third.
func TestExpansion_BranchingCycleDoesNotDelayOtherBlueprints(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.applyCycle(20)
	a.apply("{apiVersion: GROUP/v1, kind: ping, metadata: {name: it}, spec: {}}")
	a.wait("GROUP/v1", "pong", "it-0", allowance(409))

	// Another Blueprint and its instance are served in the meantime.
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
	last := began
	for _, ping := range pings.Items {
		if created := ping.GetCreationTimestamp().Time; created.After(last) {
			last = created
		}
	}
	t.Logf("served in %s while %d of 401 pings existed, the last since %s", took, len(pings.Items), last.Sub(began))
	if last.Sub(began) > 5*time.Second && len(pings.Items) == 401 {
		t.Errorf("another Blueprint and its instance were delayed for %s, until all pings existed", took)
	}

	a.waitBlueprint("pongs", hasCounts(20, 20, 0))
	a.waitBlueprint("pings", hasCounts(401, 1, 400))
	a.wait("GROUP/v1", "ping", "it-19-19",
		all(allowance(10), is("Ready", "False", "Invalid", "20 resources exceed the budget of 10 objects")))
	if _, err := a.get("GROUP/v1", "pong", "it-19-19-0"); !apierrors.IsNotFound(err) {
		t.Errorf("got an instance below the last one: %v", err)
	}
}
