package main

import (
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// shops creates a Service, a Deployment and a ConfigMap for each Shop. The page waits for the Deployment.
const shops = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: shops.GROUP}
spec:
  deletionPolicy: Delete
  type:
    group: GROUP
    version: v1
    kind: Shop
    printerColumns: [{name: Address, type: string, jsonPath: .status.address}]
    status:
      address: ${service.spec.clusterIP}
      url: http://${service.spec.clusterIP}:${service.spec.ports[0].port}
      web: {replicas: "${web.status.availableReplicas}", name: "${web.metadata.name}"}
      note: ${page.metadata.annotations.note}
      keys: ${page.data.map(key, key)}
    conditions:
      - {type: Available, status: web.status.availableReplicas > 0, message: "${string(web.spec.replicas)} wanted"}
    schema: {properties: {spec: {type: object, properties: {text: {type: string}}}}}
  resources:
    - id: service
      template:
        apiVersion: v1
        kind: Service
        metadata: {name: "${self.metadata.name}"}
        spec: {ports: [{port: 80}]}
    - id: web
      template:
        apiVersion: apps/v1
        kind: Deployment
        metadata: {name: "${self.metadata.name}"}
        spec:
          selector: {matchLabels: {app: a}}
          template: {metadata: {labels: {app: a}}, spec: {containers: [{name: a, image: a}]}}
    - id: page
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}"}
        data: {text: "${self.spec.text}", web: "${web.metadata.name}"}
`

const shop = "{apiVersion: GROUP/v1, kind: Shop, metadata: {name: s}, spec: {text: a}}"

// rollOut sets the status that the Deployment controller sets when all replicas are available.
func (a *api) rollOut(name string) {
	a.Helper()
	eventually(a.T, func() error {
		web, err := a.get("apps/v1", "Deployment", name)
		if err != nil {
			return err
		}
		one := int64(1)
		web.Object["status"] = map[string]any{
			"observedGeneration": web.GetGeneration(), "replicas": one, "updatedReplicas": one, "readyReplicas": one,
			"availableReplicas": one,
		}
		_, err = a.client(web).UpdateStatus(a.Context(), web, metav1.UpdateOptions{})
		return err
	})
}

// statusSchema returns the schema of a type's status.
func (a *api) statusSchema(name string) apiextensionsv1.JSONSchemaProps {
	a.Helper()
	crd, err := a.crds.ApiextensionsV1().CustomResourceDefinitions().Get(a.Context(), name+"."+a.group,
		metav1.GetOptions{})
	if err != nil {
		a.Fatal(err)
	}
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"]
}

// typeOfStatus returns the types of the status fields in the served schema of shops.
func (a *api) typeOfStatus(fields ...string) (types []string) {
	a.Helper()
	for _, field := range fields {
		at := a.statusSchema("shops")
		for name := range strings.SplitSeq(field, ".") {
			at = at.Properties[name]
		}
		types = append(types, at.Type)
	}
	return types
}

func TestStatus_IsComputedFromChildren(t *testing.T) {
	a := newAPI(t)
	kubeconfig, proxy := a.proxied()
	first := startServing(t, kubeconfig)
	a.apply(shops)
	a.waitBlueprint("shops", is("Serving", "True"))
	if got, want := a.typeOfStatus("address", "web.replicas", "web.name", "note", "keys"),
		[]string{"string", "integer", "string", "string", "array"}; !slices.Equal(got, want) {
		t.Errorf("got types %q, want %q", got, want)
	}
	a.apply(shop)
	a.wait("GROUP/v1", "Shop", "s", all(
		is("Ready", "False", "Waiting", "web: waiting for its controller to observe the newest generation",
			"page: waiting for web"),
		is("Available", "Unknown", "ValueMissing", "web.status.availableReplicas does not exist"),
		has("s", "status", "web", "name"), has(nil, "status", "web", "replicas"), has(nil, "status", "keys"),
	))
	service, err := a.get("v1", "Service", "s")
	if err != nil {
		t.Fatal(err)
	}
	address, _, _ := unstructured.NestedString(service.Object, "spec", "clusterIP")
	a.rollOut("s")
	ready := all(is("Ready", "True", "all 3 resources are ready"), is("Available", "True", "ConditionMet", "1 wanted"),
		has(address, "status", "address"), has("http://"+address+":80", "status", "url"),
		has(int64(1), "status", "web", "replicas"))
	a.wait("GROUP/v1", "Shop", "s", all(ready, has(nil, "status", "note")))

	a.annotate("v1", "ConfigMap", "s", "note", "fresh")
	a.wait("GROUP/v1", "Shop", "s", all(ready, has("fresh", "status", "note")))
	page, err := a.get("v1", "ConfigMap", "s")
	if err != nil {
		t.Fatal(err)
	}
	page.SetAnnotations(nil)
	if _, err := a.client(page).Update(t.Context(), page, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	a.wait("GROUP/v1", "Shop", "s", all(ready, has(nil, "status", "note")))

	a.waitBlueprint("shops", hasCounts(1, 1, 0))
	first.kill()
	waitUntilQuiet(t, func() int { return writes(proxy) })
	before := len(proxy.Calls())
	startServing(t, kubeconfig).waitLog(line{Msg: "Started leading"})
	waitUntilQuiet(t, func() int { return writes(proxy) })
	for _, c := range proxy.Calls()[before:] {
		if isWrite(c) && c.Name != "blueprints.platform.example.com" {
			t.Errorf("a new process sent the write %+v", c)
		}
	}

	// A change to the Blueprint does not change the generation of the instance.
	changedShops := changed(shops, change{"      note: ${page.metadata.annotations.note}\n", ""},
		change{"type: Available, status: web.status.availableReplicas > 0", "type: Named, status: has(web.metadata.name)"})
	a.apply(changedShops)
	a.waitBlueprint("shops", is("Accepted", "False", "IncompatibleSchema", "properties.note: the field is removed"))
	a.annotate(blueprintVersion, "Blueprint", "shops."+a.group, "platform.example.com/allow-incompatible-schema", "2")
	a.wait("GROUP/v1", "Shop", "s", all(is("Ready", "True"), is("Named", "True"), isAbsent("Available")))
}

// Values whose types are known only at evaluation are the author's responsibility.
func TestStatus_RejectedByTheSchema(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	text := changed(shops, change{"    schema: {properties: {", "    schema: {properties: {status: {type: object, " +
		"properties: {url: {type: string, maxLength: 5}}}, "})
	a.apply(text)
	a.apply(shop)
	a.rollOut("s")
	a.wait("GROUP/v1", "Shop", "s", all(is("Ready", "False", "Invalid", "spec.type.status: ", "status.url: Too long"),
		is("Available", "True"), has(nil, "status", "address")))
	a.wait("v1", "ConfigMap", "s", has("a", "data", "text"))
	a.apply(changed(text, change{"http://${service.spec.clusterIP}:${service.spec.ports[0].port}", "none"}))
	a.wait("GROUP/v1", "Shop", "s", all(is("Ready", "True"), has("none", "status", "url")))
}

func TestStatus_OfAnExistingType(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: shops.GROUP, annotations: {platform.example.com/allowed-blueprint: shops.GROUP}}
spec:
  group: GROUP
  scope: Namespaced
  names: {kind: Shop, plural: shops}
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {status: {}}
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
            status:
              type: object
              properties:
                address: {type: string}
                observedGeneration: {type: integer}
                conditions:
                  type: array
                  items: {type: object, x-kubernetes-preserve-unknown-fields: true}
`)
	const text = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: shops.GROUP}
spec:
  type: {crd: shops.GROUP, status: {addressed: "${service.spec.clusterIP}"}}
  resources:
    - id: service
      template: {apiVersion: v1, kind: Service, metadata: {name: s}, spec: {clusterIP: None, ports: [{port: 80}]}}
`
	a.apply(text)
	a.waitBlueprint("shops", is("Accepted", "False", "Invalid",
		"spec.type.status.addressed: unknown field; did you mean address?"))
	a.apply(changed(text, change{"addressed:", "address:"}))
	a.apply(shop)
	a.wait("GROUP/v1", "Shop", "s", all(is("Ready", "True"), has("None", "status", "address")))
}

// A faulty status stops a rollout. Instances that have not moved keep the fields of their revision.
func TestStatus_IsRolledOut(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	text := changed(websites,
		change{"    schema:\n", "    status: {address: \"${service.spec.clusterIP}\"}\n    schema:\n"})
	a.apply(text)
	names := a.fleet(4)
	a.waitBlueprint("websites", is("Progressing", "True", "RolloutComplete"))
	a.apply(changed(text, change{"status: {", "status: {number: \"${int(page.data.text)}\", "}))
	faulty := a.servedName(2)
	a.waitBlueprint("websites", is("Progressing", "False", "RolloutStopped", "1 of 4 instances are updated", "(Invalid)"))
	moved := a.moved(names, faulty)
	if len(moved) != 1 {
		t.Fatalf("got instances %q with the faulty revision", moved)
	}
	for _, name := range names {
		if name == moved[0] {
			a.wait("GROUP/v1", "Website", name, is("Ready", "False", "Invalid", "spec.type.status.number: "))
			continue
		}
		// A reconcile with the older revision does not write the new field.
		a.apply(page(name, "text: weeds"))
		a.wait("v1", "ConfigMap", name+"-page", has("roses", "data", "text"))
		a.wait("GROUP/v1", "Website", name, all(is("Ready", "True"), has(nil, "status", "number")))
	}
	if fields := a.statusSchema("websites").Properties; fields["number"].Type != "integer" ||
		fields["address"].Type != "string" {
		t.Errorf("got schema %+v", fields)
	}
}
