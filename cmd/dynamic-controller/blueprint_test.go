package main

import (
	"testing"
	"time"
)

// websites creates two ConfigMaps and a Service for each Website. The route waits until the Service has an address.
const websites = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: websites.GROUP}
spec:
  type:
    group: GROUP
    version: v1
    kind: Website
    schema:
      type: object
      properties:
        spec:
          type: object
          properties:
            text: {type: string}
            public: {type: boolean}
  resources:
    - id: route
      includeWhen: ["self.spec.?public.orValue(true)"]
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-route"}
        data: {address: "${service.spec.clusterIP}:80"}
    - id: page
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-page"}
        data: {text: "${self.spec.text}"}
    - id: service
      readyWhen: ["service.spec.clusterIP != ''"]
      template:
        apiVersion: v1
        kind: Service
        metadata: {name: "${self.metadata.name}"}
        spec: {ports: [{port: 80}], selector: {app: "${self.metadata.name}"}}
`

const flowers = `
apiVersion: GROUP/v1
kind: Website
metadata: {name: flowers}
spec: {text: roses}
`

func TestBlueprint_IsServed(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	began := time.Now()
	a.wait("platform.example.com/v1alpha1", "Blueprint", "websites."+a.group,
		all(is("Accepted", "True"), is("TypeEstablished", "True"), is("Serving", "True")))
	t.Logf("from applied to Serving: %s", time.Since(began))
	a.apply(flowers)
	began = time.Now()
	a.wait("GROUP/v1", "Website", "flowers",
		all(is("Ready", "True", "all 3 resources"), has(int64(1), "status", "observedGeneration")))
	t.Logf("from instance applied to Ready: %s", time.Since(began))
	a.wait("v1", "ConfigMap", "flowers-page", has("roses", "data", "text"))
	a.wait("platform.example.com/v1alpha1", "Blueprint", "websites."+a.group, hasCounts(1, 1, 0))
}
