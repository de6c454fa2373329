package main

import "testing"

// The results of kro's functions are accepted by the API server and do not change between reconciles.
func TestExpressions_KroFunctions(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(making("Configured", `{apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${self.metadata.name}-${random.seededString(6, self.spec.a)}",
          labels: "${{'app': 'a', 'tier': 'b'}.merge({'tier': self.spec.a})}"},
        data: {text: "${json.marshal({'deep': {'x': 1}}.deepMerge({'deep': self.spec}))}",
          hash: "${'%x'.format([hash.sha256(self.spec.a)])}", omitted: "${omit()}",
          list: "${lists.insertAtIndex(['b'], 0, self.spec.b).join('-')}"}}
    - id: copy
      template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${self.metadata.name}-copy"},
        data: {text: "${json.unmarshal(child.data.text).deep.a}"}}`))
	a.waitBlueprint("configureds", is("Serving", "True"))
	a.apply("{apiVersion: GROUP/v1, kind: Configured, metadata: {name: first}, spec: {a: seed, b: a}}")
	a.wait("GROUP/v1", "Configured", "first", is("Ready", "True"))
	for field, want := range map[string]string{
		"text": `{"deep":{"a":"seed","b":"a","x":1}}`, "list": "a-b",
		"hash": "19b25856e1c150ca834cffc8b59b23adbd0ec0389e58eb22b3b64768098d002b",
	} {
		a.wait("v1", "ConfigMap", "first-qakd42", has(want, "data", field))
	}
	a.wait("v1", "ConfigMap", "first-qakd42", has("seed", "metadata", "labels", "tier"))
	a.wait("v1", "ConfigMap", "first-qakd42", has(nil, "data", "omitted"))
	a.wait("v1", "ConfigMap", "first-copy", has("seed", "data", "text"))
}
