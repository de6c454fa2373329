package blueprint_test

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

const website = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: websites}
spec:
  type:
    group: shop.example.com
    version: v1
    kind: Website
    schema:
      type: object
      properties:
        spec:
          type: object
          required: [size]
          properties:
            size: {type: integer, minimum: 1}
            public: {type: boolean}
  resources:
    - id: route
      includeWhen: ["self.spec.?public.orValue(false)"]
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-route"}
        data: {host: "${service.spec.clusterIP}:80"}
    - id: service
      readyWhen: ["has(service.spec.clusterIP)"]
      template:
        apiVersion: v1
        kind: Service
        metadata: {name: "${self.metadata.name}"}
        spec:
          selector: {app: "${self.metadata.name}"}
          ports: "${lists.range(self.spec.size).map(i, {'name': 'p%d'.format([i]), 'port': 80 + i})}"
`

func ExampleCompile() {
	compiled, err := blueprint.Compile(read(website), blueprint.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("a", blueprint.DefinitionName(read(website)), "becomes", compiled.Kinds())

	instance := compiled.Instance(object(`
apiVersion: shop.example.com/v1
kind: Website
metadata: {name: flowers, namespace: default}
spec: {size: 2, public: true}
`))
	observed := map[string]*unstructured.Unstructured{}
	for range 3 {
		step, err := instance.Step(context.Background(), observed)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("ready:", step.Ready, "waiting:", step.Waiting, "unready:", step.Unready)
		for _, r := range step.Rendered {
			if observed[r.ID] != nil {
				continue
			}
			fmt.Println(" ", r.Object.GetKind(), r.Object.GetNamespace()+"/"+r.Object.GetName(), r.Object.Object["spec"],
				r.Object.Object["data"])
			if r.ID == "service" { // simulate an apply
				_ = unstructured.SetNestedField(r.Object.Object, "10.0.0.7", "spec", "clusterIP")
			}
			observed[r.ID] = r.Object
		}
	}
	// Output:
	// a websites.shop.example.com becomes [/v1, Kind=ConfigMap /v1, Kind=Service]
	// ready: false waiting: [route: waiting for service] unready: [service: does not exist yet]
	//   Service default/flowers map[ports:[map[name:p0 port:80] map[name:p1 port:81]] selector:map[app:flowers]] <nil>
	// ready: false waiting: [] unready: [route: does not exist yet]
	//   ConfigMap default/flowers-route <nil> map[host:10.0.0.7:80]
	// ready: true waiting: [] unready: []
}

// All problems are reported together, each with a path and a reason.
func ExampleProblems() {
	_, err := blueprint.Compile(read(`
metadata: {name: websites}
spec:
  type:
    group: shop.example.com
    version: v1
    kind: Website
    schema: {properties: {spec: {type: object, properties: {size: {type: integer}}}}}
  resources:
    - id: web
      template:
        apiVersion: apps/v1
        kind: Deployment
        metadata: {generateName: web-}
        spec: {replicas: "${self.spec.sise}", paused: "${database.spec.paused}"}
`), blueprint.Options{})
	var problems blueprint.Problems
	errors.As(err, &problems)
	for _, p := range problems {
		fmt.Println(p.Path)
		fmt.Println("  " + p.Reason)
	}
	// Output:
	// spec.resources[0].template.metadata.generateName
	//   must not be set; set metadata.name, for example ${self.metadata.name}-web
	// spec.resources[0].template.spec.paused
	//   unknown name "database"; use self or the id of a resource (line 1, column 1)
	// spec.resources[0].template.spec.replicas
	//   unknown field "sise" (line 1, column 10); did you mean size?
}

func object(text string) *unstructured.Unstructured {
	raw, err := yaml.ToJSON([]byte(text))
	if err != nil {
		panic(err)
	}
	var u map[string]any
	if err := yaml.Unmarshal(raw, &u); err != nil {
		panic(err)
	}
	return &unstructured.Unstructured{Object: u}
}

func read(text string) *blueprint.Blueprint {
	b, err := blueprint.FromUnstructured(object(text))
	if err != nil {
		panic(err)
	}
	return b
}
