package main

import (
	"strings"
	"testing"
)

// wheels is a Blueprint whose instances are children of other instances.
const wheels = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: wheels.GROUP}
spec:
  type:
    group: GROUP
    version: v1
    kind: Wheel
    schema:
      type: object
      properties:
        spec: {type: object, properties: {spokes: {type: integer}, color: {type: string, enum: [red, black]}}}
  resources: []
`

// Templates and expressions are checked against the schemas of built-in and custom kinds before any instance exists.
func TestTemplates_AreCheckedAgainstSchemas(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(wheels)
	a.waitBlueprint("wheels", is("Serving", "True"))
	service := "spec: {ports: [{port: 80}], selector: {app: \"${self.metadata.name}\"}}"
	page := "data: {text: \"${self.spec.text}\"}"
	wheel := func(spec string) change {
		return change{"apiVersion: v1\n        kind: ConfigMap\n        metadata: {name: " +
			"\"${self.metadata.name}-page\"}\n        " + page,
			"apiVersion: " + a.group + "/v1\n        kind: Wheel\n        metadata: {name: a}\n        spec: " + spec}
	}
	for name, test := range map[string]struct {
		change change
		want   string
	}{
		"number instead of a string": {change{page, "data: {size: 3}"},
			"spec.resources[1].template.data.size: must be a string; put it in quotes"},
		"integer expression instead of a string": {change{page, "data: {text: \"${self.metadata.generation}\"}"},
			"spec.resources[1].template.data.text: ${self.metadata.generation}: must be a string, not an integer"},
		"list instead of a map": {change{page, "data: [a]"},
			"spec.resources[1].template.data: must be a map of strings"},
		"unknown field": {change{page, "dota: {a: b}"},
			"spec.resources[1].template.dota: unknown field in v1 ConfigMap; did you mean data?"},
		"unknown field of the metadata": {change{"metadata: {name: \"${self.metadata.name}-page\"}",
			"metadata: {name: a, lables: {a: b}}"},
			"spec.resources[1].template.metadata.lables: unknown field in v1 ConfigMap; did you mean labels?"},
		"misspelt field of a list item": {change{service, "spec: {ports: [{prot: 80}]}"},
			"spec.resources[2].template.spec.ports[0].prot: unknown field in v1 Service; did you mean port?"},
		"string instead of an integer": {change{service, "spec: {ports: [{port: http}]}"},
			"spec.resources[2].template.spec.ports[0].port: must be an integer, not a string"},
		"value outside of the enum": {change{service, "spec: {type: Cluster, ports: [{port: 80}]}"},
			`spec.resources[2].template.spec.type: must be one of "ClusterIP", "ExternalName"`},
		"condition on an unknown field": {change{"service.spec.clusterIP != ''", "service.spec.clusterIq != ''"},
			"spec.resources[2].readyWhen[0]: ${service.spec.clusterIq != ''}: unknown field \"clusterIq\""},
		"reference to an unknown field": {change{"${service.spec.clusterIP}", "${service.specs.clusterIP}"},
			"spec.resources[0].template.data.address: ${service.specs.clusterIP}: unknown field \"specs\""},
		"unknown field of a custom kind": {wheel("{spoke: 3}"),
			"spec.resources[1].template.spec.spoke: unknown field in GROUP/v1 Wheel; did you mean spokes?"},
		"string instead of an integer in a custom kind": {wheel("{spokes: \"${self.spec.text}\"}"),
			"spec.resources[1].template.spec.spokes: ${self.spec.text}: must be an integer, not a string"},
		"value outside of the enum of a custom kind": {wheel("{color: blue}"),
			`spec.resources[1].template.spec.color: must be one of "red", "black"`},
	} {
		t.Run(name, func(t *testing.T) {
			sub := *a
			sub.T = t
			sub.group = strings.ReplaceAll(name, " ", "-") + "." + a.group
			sub.apply(changed(websites, test.change))
			sub.waitBlueprint("websites", is("Accepted", "False", "Invalid", strings.ReplaceAll(test.want, "GROUP", a.group)),
				is("Serving", "False"))
		})
	}
	// The previous generation is still served until a valid one is accepted.
	a.apply(websites)
	a.waitBlueprint("websites", is("Serving", "True"))
	a.apply(changed(websites, change{page, "data: {size: 3}"}))
	a.waitBlueprint("websites", is("Accepted", "False", "data.size"), is("Serving", "True", "generation 1"))
	a.apply(flowers)
	a.wait("v1", "ConfigMap", "flowers-page", has("roses", "data", "text"))
	a.apply(changed(websites, wheel("{spokes: 3, color: red}")))
	a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True", "generation 3"))
	a.wait("GROUP/v1", "Wheel", "a", has("red", "spec", "color"))
}
