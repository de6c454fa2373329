package main

import (
	"strings"
	"testing"
)

// wheels are instances of another Blueprint's type, as children.
const wheels = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: wheels.GROUP}
spec:
  type:
    group: GROUP
    version: v1
    kind: Wheel
    schema: {type: object, properties: {spec: {type: object, properties: {spokes: {type: integer}, color: {type: string, enum: [red, black]}}}}}
  resources: []
`

// A template is held against the schema of its kind before there is an instance, whether that is Kubernetes' own or has a
// CustomResourceDefinition, and so are expressions on what becomes of it.
func TestMistakesInTemplatesAreExplained(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(wheels)
	a.waitBlueprint("wheels", is("Serving", "True"))
	service := "spec: {ports: [{port: 80}], selector: {app: \"${self.metadata.name}\"}}"
	page := "data: {text: \"${self.spec.text}\"}"
	wheel := func(spec string) change {
		return change{"apiVersion: v1\n        kind: ConfigMap\n        metadata: {name: \"${self.metadata.name}-page\"}\n        " + page,
			"apiVersion: " + a.group + "/v1\n        kind: Wheel\n        metadata: {name: a}\n        spec: " + spec}
	}
	for name, test := range map[string]struct {
		change change
		want   string
	}{
		"a number in a configmap":   {change{page, "data: {size: 3}"}, "spec.resources[1].template.data.size: has to be a string: put it in quotes"},
		"an integer in a configmap": {change{page, "data: {text: \"${self.metadata.generation}\"}"}, "spec.resources[1].template.data.text: ${self.metadata.generation}: is of type int, and has to be a string"},
		"a list for a map":          {change{page, "data: [a]"}, "spec.resources[1].template.data: has to be a map of strings"},
		"an unknown field":          {change{page, "dota: {a: b}"}, "spec.resources[1].template.dota: a ConfigMap of v1 has no such field: did you mean data?"},
		"an unknown label field":    {change{"metadata: {name: \"${self.metadata.name}-page\"}", "metadata: {name: a, lables: {a: b}}"}, "spec.resources[1].template.metadata.lables: a ConfigMap of v1 has no such field: did you mean labels?"},
		"a misspelt field":          {change{service, "spec: {ports: [{prot: 80}]}"}, "spec.resources[2].template.spec.ports[0].prot: a Service of v1 has no such field: did you mean port?"},
		"a word for a number":       {change{service, "spec: {ports: [{port: http}]}"}, "spec.resources[2].template.spec.ports[0].port: has to be an integer, not a string"},
		"none of those listed":      {change{service, "spec: {type: Cluster, ports: [{port: 80}]}"}, `spec.resources[2].template.spec.type: has to be one of "ClusterIP", "ExternalName"`},
		"a condition on no field":   {change{"service.spec.clusterIP != ''", "service.spec.clusterIq != ''"}, "spec.resources[2].readyWhen[0]: ${service.spec.clusterIq != ''}: undefined field 'clusterIq'"},
		"a reference to no field":   {change{"${service.spec.clusterIP}", "${service.specs.clusterIP}"}, "spec.resources[0].template.data.address: ${service.specs.clusterIP}: undefined field 'specs'"},
		"an unknown wheel field":    {wheel("{spoke: 3}"), "spec.resources[1].template.spec.spoke: a Wheel of GROUP/v1 has no such field: did you mean spokes?"},
		"a word for a wheel number": {wheel("{spokes: \"${self.spec.text}\"}"), "spec.resources[1].template.spec.spokes: ${self.spec.text}: is of type string, and has to be an integer"},
		"no color of a wheel":       {wheel("{color: blue}"), `spec.resources[1].template.spec.color: has to be one of "red", "black"`},
	} {
		t.Run(name, func(t *testing.T) {
			sub := *a
			sub.T = t
			sub.group = strings.ReplaceAll(name, " ", "-") + "." + a.group
			sub.apply(changed(websites, test.change))
			sub.waitBlueprint("websites", is("Accepted", "False", "Invalid", strings.ReplaceAll(test.want, "GROUP", a.group)), is("Serving", "False"))
		})
	}
	// What ran before keeps running, and what is right is served.
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
