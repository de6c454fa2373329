package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

const (
	grades = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: grades.GROUP}
spec:
  type:
    group: GROUP
    version: v1
    kind: Grade
    schema: {properties: {spec: {type: object, properties: {level: {type: integer}, note: {type: string}}}}}
  resources:
    - id: page
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}"}
        data: {level: "${string(self.spec.level)}", note: "${self.spec.note}"}
`
	grade = "{apiVersion: GROUP/v1, kind: Grade, metadata: {name: first}, spec: {level: 7, note: good}}"
)

// gradesWithStringLevel makes level a string. In existing instances, it is an integer.
var gradesWithStringLevel = changed(grades, change{"level: {type: integer}", "level: {type: string}"},
	change{"${string(self.spec.level)}", "${self.spec.level}"})

func (a *api) annotate(apiVersion, kind, name, key, value string) {
	a.Helper()
	obj, err := a.get(apiVersion, kind, name)
	if err == nil {
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, key, value)
		_, err = a.client(obj).Patch(a.Context(), obj.GetName(), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	}
	if err != nil {
		a.Fatal(err)
	}
}

// typeOfLevel returns the type of spec.level in the served schema.
func (a *api) typeOfLevel() string {
	a.Helper()
	crd, err := a.crds.ApiextensionsV1().CustomResourceDefinitions().Get(a.Context(), "grades."+a.group,
		metav1.GetOptions{})
	if err != nil {
		a.Fatal(err)
	}
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["level"].Type
}

func TestSchemaChange_IncompatibleChangeIsRejected(t *testing.T) {
	a := newAPI(t)
	first := startServing(t, a.cluster.Kubeconfig())
	a.apply(grades)
	a.apply(grade)
	a.wait("GROUP/v1", "Grade", "first", is("Ready", "True"))
	a.apply(gradesWithStringLevel)
	rejected := is("Accepted", "False", "IncompatibleSchema",
		"spec.type.schema.properties.spec.properties.level: the type changes from integer to string",
		`platform.example.com/allow-incompatible-schema: "2"`)
	a.waitBlueprint("grades", rejected, is("Serving", "True", "generation 1 is served"))
	a.apply(strings.Replace(grade, "good", "better", 1))
	a.wait("v1", "ConfigMap", "first", has("better", "data", "note"))
	if got := a.typeOfLevel(); got != "integer" {
		t.Errorf("spec.level now has type %s", got)
	}
	// It is also rejected after a restart, and with the annotation for another generation.
	first.kill()
	startServing(t, a.cluster.Kubeconfig())
	a.annotate(blueprintVersion, "Blueprint", "grades."+a.group, "platform.example.com/allow-incompatible-schema", "1")
	a.apply(strings.Replace(grade, "good", "best", 1))
	a.wait("v1", "ConfigMap", "first", has("best", "data", "note"))
	a.waitBlueprint("grades", rejected, is("Serving", "True", "generation 1 is served"))

	a.apply(grades)
	a.waitBlueprint("grades", is("Accepted", "True"), is("Serving", "True", "generation 3 is served"))
	a.apply(changed(grades, change{"note: {type: string}", "note: {type: string}, more: {type: string}"}))
	a.waitBlueprint("grades", is("Accepted", "True"), is("Serving", "True", "generation 4 is served"))
}

// The API server stores some values in a different form than the Blueprint.
func TestDefinition_IsNotUpdatedWithoutAChange(t *testing.T) {
	a := newAPI(t)
	kubeconfig, calls := a.proxied()
	startServing(t, kubeconfig)
	a.apply(changed(grades, change{"level: {type: integer}", "level: {type: integer, maximum: 1.0e+3, enum: [7, 8.0]}, " +
		"more: {type: object, default: {b: 1.0, a: '<'}, required: [], properties: {a: {type: string}, b: {type: number}}}"},
		change{"kind: Grade\n", "kind: Grade\n    shortNames: [grd]\n"}))
	for i, name := range []string{"first", "second", "third"} {
		a.apply(strings.Replace(grade, "first", name, 1))
		a.waitBlueprint("grades", has(int64(i+1), "status", "instances", "ready"))
	}
	for _, c := range calls.Calls() {
		if c.Resource == "customresourcedefinitions" && c.Verb == "update" {
			t.Errorf("the CustomResourceDefinition was updated: %+v", c)
		}
	}
}

// Another client changes the CustomResourceDefinition. The platform reverts the change.
func TestDefinition_DriftIsReverted(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(grades)
	a.waitBlueprint("grades", is("Serving", "True"))
	const added = `[{"op":"add","value":{"type":"string"},` +
		`"path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/drift"}]`
	crds := a.crds.ApiextensionsV1().CustomResourceDefinitions()
	changed, err := crds.Patch(t.Context(), "grades."+a.group, types.JSONPatchType, []byte(added), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		crd, err := crds.Get(t.Context(), changed.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if _, has := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["drift"]; has {
			return errors.New("the change has not been reverted")
		}
		return nil
	})
	a.waitBlueprint("grades", is("Accepted", "True"), is("Serving", "True"))
}

func TestStatus_IsWrittenForObjectsThatViolateTheirSchema(t *testing.T) {
	a := newAPI(t)
	p := startServing(t, a.cluster.Kubeconfig())
	a.apply(grades)
	made := a.apply(grade)
	a.wait("GROUP/v1", "Grade", "first", is("Ready", "True"))
	theirs := a.read(`{apiVersion: GROUP/v1, kind: Grade, metadata: {name: first}, status: {conditions: [
		{type: Theirs, status: "True", reason: R, message: M, lastTransitionTime: "2020-01-01T00:00:00Z"}]}}`)
	if _, err := a.client(made).ApplyStatus(t.Context(), "first", theirs,
		metav1.ApplyOptions{FieldManager: "theirs"}); err != nil {
		t.Fatal(err)
	}
	a.apply(gradesWithStringLevel)
	a.waitBlueprint("grades", is("Accepted", "False", "IncompatibleSchema"))
	a.annotate(blueprintVersion, "Blueprint", "grades."+a.group, "platform.example.com/allow-incompatible-schema", "2")
	a.waitBlueprint("grades", is("Accepted", "True"), is("Serving", "True", "generation 2 is served"))
	if got := a.typeOfLevel(); got != "string" {
		t.Errorf("spec.level has type %s", got)
	}
	eventually(t, func() error { // the API server adopts the new schema after a moment
		_, err := a.client(made).ApplyStatus(t.Context(), "first", theirs, metav1.ApplyOptions{FieldManager: "theirs"})
		if err == nil { // the text of the error depends on the version
			return errors.New("want an error when applying the status of an object that violates its schema")
		}
		return nil
	})
	set := func(spec string) {
		t.Helper()
		if _, err := a.client(made).Patch(t.Context(), "first", types.MergePatchType, []byte(`{"spec":`+spec+`}`),
			metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	set(`{"note":"changed"}`)
	a.wait("GROUP/v1", "Grade", "first", all(is("Ready", "False"), func(obj *unstructured.Unstructured) error {
		if !meta.IsStatusConditionTrue(conditions(obj), "Theirs") {
			return fmt.Errorf("got conditions %v", conditions(obj))
		}
		return nil
	}))
	if strings.Contains(p.output(), "write the status") {
		t.Error("the log reports that a status could not be written")
	}
	set(`{"level":"7"}`)
	a.wait("GROUP/v1", "Grade", "first", is("Ready", "True"))
}
