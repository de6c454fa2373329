package main

import (
	"context"
	"fmt"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/platform"
	"github.com/dynamic-controller/engine/test/cluster"
)

// group is that of all types that the tests define.
const group = "cmd.test.example.com"

// api is the API server as an administrator uses it.
type api struct {
	*testing.T
	cluster *cluster.Cluster
	dynamic dynamic.Interface
	crds    clientset.Interface
	kube    kubernetes.Interface
}

func newAPI(t *testing.T) *api {
	t.Helper()
	c := shared.Cluster(t)
	dynamicClient, err1 := dynamic.NewForConfig(c.Config())
	crds, err2 := clientset.NewForConfig(c.Config())
	kube, err3 := kubernetes.NewForConfig(c.Config())
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return &api{T: t, cluster: c, dynamic: dynamicClient, crds: crds, kube: kube}
}

// definedType is a type that the tests define, with objects in the default namespace.
type definedType struct {
	*api
	plural, kind string
	version      string // in which the test reads and writes
}

// define defines the type until the test ends, and returns once it is established. By default it has the version v1,
// the platform's label and all that the platform needs.
func (a *api) define(plural, kind string, changes ...func(*apiextensionsv1.CustomResourceDefinition)) *definedType {
	a.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group, Labels: map[string]string{platform.Label: "true"}},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group:    group,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: kind},
			Scope:    apiextensionsv1.NamespaceScoped,
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{testVersion("v1")},
		},
	}
	crd.Spec.Versions[0].Storage = true
	for _, change := range changes {
		change(crd)
	}
	if _, err := a.crds.ApiextensionsV1().CustomResourceDefinitions().Create(a.Context(), crd, metav1.CreateOptions{}); err != nil {
		a.Fatal(err)
	}
	d := &definedType{api: a, plural: plural, kind: kind, version: "v1"}
	a.Cleanup(func() { d.undefine(context.WithoutCancel(a.Context())) })
	eventually(a.T, func() error {
		got, err := a.crds.ApiextensionsV1().CustomResourceDefinitions().Get(a.Context(), crd.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(got.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
			return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
		}) {
			return fmt.Errorf("%s is not established: %+v", crd.Name, got.Status.Conditions)
		}
		return nil
	})
	return d
}

// undefine deletes the definition, if it is there, and returns when it is gone.
func (d *definedType) undefine(ctx context.Context) {
	d.Helper()
	crds := d.crds.ApiextensionsV1().CustomResourceDefinitions()
	if err := crds.Delete(ctx, d.plural+"."+group, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		d.Error(err)
	}
	eventually(d.T, func() error {
		_, err := crds.Get(ctx, d.plural+"."+group, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the definition of %s is still there: %w", d.plural, err)
	})
}

// redefine changes the definition.
func (d *definedType) redefine(change func(*apiextensionsv1.CustomResourceDefinition)) {
	d.Helper()
	crds := d.crds.ApiextensionsV1().CustomResourceDefinitions()
	eventually(d.T, func() error { // the API server writes its status meanwhile
		crd, err := crds.Get(d.Context(), d.plural+"."+group, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(crd)
		_, err = crds.Update(d.Context(), crd, metav1.UpdateOptions{})
		return err
	})
}

func (d *definedType) gvr(version string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: d.plural}
}

func (d *definedType) client() dynamic.ResourceInterface {
	return d.dynamic.Resource(d.gvr(d.version)).Namespace(metav1.NamespaceDefault)
}

// write applies the object, which bumps its generation if the size is another, and returns it.
func (d *definedType) write(name string, size int) *unstructured.Unstructured {
	d.Helper()
	obj := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"size": int64(size)}}}
	obj.SetGroupVersionKind(d.gvr(d.version).GroupVersion().WithKind(d.kind))
	obj.SetName(name)
	var got *unstructured.Unstructured
	eventually(d.T, func() (err error) { // a type is not found for some milliseconds after it was established
		got, err = d.client().Apply(d.Context(), name, obj, metav1.ApplyOptions{FieldManager: "test", Force: true})
		return err
	})
	return got
}

func (d *definedType) get(name string) *unstructured.Unstructured {
	d.Helper()
	obj, err := d.client().Get(d.Context(), name, metav1.GetOptions{})
	if err != nil {
		d.Fatal(err)
	}
	return obj
}

// waitReady returns once the object's status says that its present generation was reconciled.
func (d *definedType) waitReady(name string) *unstructured.Unstructured {
	d.Helper()
	var obj *unstructured.Unstructured
	eventually(d.T, func() error {
		obj = d.get(name)
		if !isReady(obj) {
			return fmt.Errorf("%s %s is at generation %d, and its status is %v", d.kind, name, obj.GetGeneration(), obj.Object["status"])
		}
		return nil
	})
	return obj
}

func isReady(obj *unstructured.Unstructured) bool {
	observed, _, _ := unstructured.NestedInt64(obj.Object, "status", "observedGeneration")
	conditions, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	for _, c := range conditions {
		c, _ := c.(map[string]any)
		if c["type"] == "Ready" && c["status"] == "True" && c["observedGeneration"] == obj.GetGeneration() {
			return observed == obj.GetGeneration()
		}
	}
	return false
}

// testVersion is a served version with all that the platform needs.
func testVersion(name string) apiextensionsv1.CustomResourceDefinitionVersion {
	type props = map[string]apiextensionsv1.JSONSchemaProps
	condition := props{"observedGeneration": {Type: "integer"}}
	for _, field := range []string{"type", "status", "lastTransitionTime", "reason", "message"} {
		condition[field] = apiextensionsv1.JSONSchemaProps{Type: "string"}
	}
	listType := "map"
	return apiextensionsv1.CustomResourceDefinitionVersion{
		Name:         name,
		Served:       true,
		Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
			Type: "object",
			Properties: props{
				"spec": {Type: "object", Properties: props{"size": {Type: "integer"}}},
				"status": {Type: "object", Properties: props{
					"observedGeneration": {Type: "integer"},
					"conditions": {
						Type: "array", XListType: &listType, XListMapKeys: []string{"type"},
						Items: &apiextensionsv1.JSONSchemaPropsOrArray{
							Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: condition, Required: []string{"type"}},
						},
					},
				}},
			},
		}},
	}
}
