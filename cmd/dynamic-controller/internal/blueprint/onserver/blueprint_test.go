package onserver

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/internal/testkit"
)

const text = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: crates}
spec:
  type:
    group: onserver.example.com
    version: v1
    kind: Crate
    shortNames: [crt]
    status: {size: "${self.spec.size}"}
    conditions: [{type: Large, status: self.spec.size > 5, reason: Size}]
    printerColumns: [{name: Size, type: integer, jsonPath: .spec.size}]
    schema:
      properties:
        spec: {type: object, required: [size], properties: {size: {type: integer, minimum: 1}}}
  resources:
    - id: config
      readyWhen: ["config.data.size == '3'"]
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}", labels: {"a/b": "x${self.spec.size}"}}
        data: {size: "${string(self.spec.size)}"}
`

var definitions = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")

// The API server must accept the manifest, the definition of a Blueprint's type, and the children of an instance. The
// objects that it returns are the input for the next step.
func TestBlueprint(t *testing.T) {
	client, err := dynamic.NewForConfig(shared.Cluster(t).Config())
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := blueprint.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	define(t, client, manifest)
	stored := apply(t, client, blueprint.GroupVersionResource, "", object(t, text))
	if policy, _, _ := unstructured.NestedString(stored.Object, "spec", "deletionPolicy"); policy != "Retain" {
		t.Errorf("deletionPolicy defaults to %q", policy)
	}
	b, err := blueprint.FromUnstructured(stored)
	if err != nil {
		t.Fatal(err)
	}
	compiled, err := blueprint.Compile(b, blueprint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	define(t, client, compiled.Definition())
	crates := schema.GroupVersionResource{Group: "onserver.example.com", Version: "v1", Resource: "crates"}
	self := apply(t, client, crates, "default", object(t, `{apiVersion: onserver.example.com/v1, kind: Crate, `+
		`metadata: {name: a}, spec: {size: 3}}`))

	first, err := compiled.Instance(self).Step(t.Context(), nil)
	if err != nil || len(first.Rendered) != 1 || len(first.Problems) > 0 {
		t.Fatalf("a step: %+v, %v", first, err)
	}
	made := first.Rendered[0].Object
	made = apply(t, client, schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, made.GetNamespace(), made)
	second, err := compiled.Instance(self).Step(t.Context(), map[string]*unstructured.Unstructured{"config": made})
	if err != nil || !second.Ready {
		t.Errorf("the next step: %+v, %v", second, err)
	}
}

// Errors from the manifest's own validation explain what to do.
func TestManifest_rejects(t *testing.T) {
	client, err := dynamic.NewForConfig(shared.Cluster(t).Config())
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := blueprint.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	define(t, client, manifest)
	for reason, c := range map[string]struct{ change, to, want string }{
		"a defined type and crd": {"group:", "crd: a.b\n    group:", "set either crd, or group, version, kind and schema"},
		"an invalid id":          {"id: config", "id: con-fig", "should match '^[a-zA-Z][a-zA-Z0-9_]*$'"},
		"an invalid policy": {
			"spec:\n  type:", "spec:\n  deletionPolicy: Maybe\n  type:", `supported values: "Retain", "Delete"`,
		},
		"a platform condition": {"type: Large", "type: Ready", "Ready, Paused and Regressed are reserved"},
		"an invalid condition": {"type: Large", "type: so large", "conditions[0].type: Invalid value"},
		"a duplicate condition": {
			"conditions: [", "conditions: [{type: Large, status: 'true'}, ", `duplicate entries for key [type="Large"]`,
		},
		"a template without a kind": {"        kind: ConfigMap\n", "", "template.kind: Required value"},
		"a template and a reference": {
			"    - id: config\n", "    - id: config\n      externalRef: {apiVersion: v1, kind: ConfigMap, " +
				"metadata: {name: a}}\n",
			"set either template or externalRef",
		},
		"a reference with adopt": {
			"  resources:\n", "  resources:\n    - {id: a, adopt: true, externalRef: {apiVersion: v1, kind: ConfigMap, " +
				"metadata: {name: a}}}\n", "must not be set with externalRef",
		},
		"a reference with forEach": {
			"  resources:\n", "  resources:\n    - {id: a, forEach: [{b: '${[1]}'}], externalRef: {apiVersion: v1, " +
				"kind: ConfigMap, metadata: {name: a}}}\n", "forEach must not be set with externalRef; use a selector",
		},
		"a reference with neither a name nor a selector": {
			"  resources:\n", "  resources:\n    - {id: a, externalRef: {apiVersion: v1, kind: ConfigMap, metadata: {}}}\n",
			"set either name or selector",
		},
	} {
		t.Run(reason, func(t *testing.T) {
			o := object(t, strings.Replace(text, c.change, c.to, 1))
			_, err := client.Resource(blueprint.GroupVersionResource).Apply(t.Context(), o.GetName(), o,
				metav1.ApplyOptions{FieldManager: "test", DryRun: []string{metav1.DryRunAll}})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// define creates a CustomResourceDefinition and waits until it is established.
func define(t *testing.T, client dynamic.Interface, crd *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(crd)
	if err != nil {
		t.Fatal(err)
	}
	delete(content, "status")
	apply(t, client, definitions, "", &unstructured.Unstructured{Object: content})
	testkit.Eventually(t, time.Minute, func() error {
		now, err := client.Resource(definitions).Get(t.Context(), crd.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(now.Object, "status", "conditions") // null at first
		for _, c := range conditions {
			if c := c.(map[string]any); c["type"] == "Established" && c["status"] == "True" {
				return nil
			}
		}
		return fmt.Errorf("%s is not established: %v", crd.Name, conditions)
	})
}

// apply applies an object. It retries while the type is not served yet.
func apply(t *testing.T, client dynamic.Interface, gvr schema.GroupVersionResource, namespace string,
	o *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	var out *unstructured.Unstructured
	testkit.Eventually(t, time.Minute, func() (err error) {
		out, err = client.Resource(gvr).Namespace(namespace).Apply(t.Context(), o.GetName(), o,
			metav1.ApplyOptions{FieldManager: "test", Force: true})
		return err
	})
	return out
}

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	raw, err := yaml.ToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var o unstructured.Unstructured
	if err := yaml.Unmarshal(raw, &o.Object); err != nil {
		t.Fatal(err)
	}
	return &o
}
