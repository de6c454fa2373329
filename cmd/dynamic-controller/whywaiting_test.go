package main

import (
	"errors"
	"strings"
	"testing"
)

// gates waits for an object that does not exist, and for a condition that each object of a collection must meet.
const gates = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: gates.GROUP}
spec:
  type: {group: GROUP, version: v1, kind: Gate, schema: {type: object, properties: {spec: {type: object}}}}
  resources:
    - id: settings
      externalRef: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${self.metadata.name}-settings"}}
    - id: pages
      forEach: [{tag: "${['one', 'two', 'three']}"}]
      readyWhen: ["each.data.tag == 'two'"]
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-${tag}"}
        data: {tag: "${tag}"}
`

// tree shows the state of each object, and why says what to do about a missing existing object.
func TestWhy_EvaluatesWhatAnInstanceWaitsFor(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(gates)
	a.apply("{apiVersion: GROUP/v1, kind: Gate, metadata: {name: g}, spec: {}}")
	a.wait("GROUP/v1", "Gate", "g", is("Ready", "False", "Waiting", "g-settings does not exist", "2 of 3 are not ready"))
	eventually(t, func() error {
		out, _ := a.ask("tree", "gate.GROUP/g")
		states := map[string]string{}
		for line := range strings.Lines(out) {
			if words := strings.Fields(line); len(words) > 3 {
				states[words[2][strings.LastIndex(words[2], "/")+1:]] = words[3]
			}
		}
		if states["g-one"] != "Waiting" || states["g-two"] != "Ready" || states["g-three"] != "Waiting" {
			return errors.New(out)
		}
		return nil
	})
	a.waitWhy("gate.GROUP/g", 1, "Waiting")
	out, _ := a.ask("why", "gate.GROUP/g")
	if !strings.Contains(out, "compare readyWhen of pages in the Blueprint with the objects; create the object in the "+
		"message if it does not exist, or correct the externalRef of settings") {
		t.Errorf("got %s", out)
	}
}
