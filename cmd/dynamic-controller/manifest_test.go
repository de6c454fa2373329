package main

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

const manifestName = "blueprints.platform.example.com"

// patchManifest changes the Blueprint CustomResourceDefinition with a JSON patch.
func (a *api) patchManifest(patch string) {
	a.Helper()
	_, err := a.crds.ApiextensionsV1().CustomResourceDefinitions().Patch(a.Context(), manifestName, types.JSONPatchType,
		[]byte(patch), metav1.PatchOptions{})
	if err != nil {
		a.Fatal(err)
	}
}

func hasManifestRevision(crd *unstructured.Unstructured) error {
	if crd.GetAnnotations()["platform.example.com/manifest-revision"] == "" {
		return errors.New("the CustomResourceDefinition has no revision")
	}
	return nil
}

// A newer version has applied the Blueprint CustomResourceDefinition, and an older replica leads.
func TestManifest_NewerRevisionIsKept(t *testing.T) {
	const (
		field      = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/future"
		annotation = "/metadata/annotations/platform.example.com~1manifest-revision"
	)
	a := newAPI(t)
	first := startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	a.wait(typeVersion, typeKind, manifestName, hasManifestRevision)
	first.stop(syscall.SIGTERM)

	a.patchManifest(`[{"op": "add", "path": "` + field + `", "value": {"type": "string"}},
		{"op": "replace", "path": "` + annotation + `", "value": "1000000"}]`)
	second := startServing(t, a.cluster.Kubeconfig())
	second.waitLog(line{Msg: "Newer Blueprint CustomResourceDefinition kept"})
	newer := changed(websites, change{"spec:\n", "spec:\n  future: x\n"},
		change{"${self.spec.text}", "new ${self.spec.text}"})
	eventually(t, func() error { // until the API server has loaded the schema
		object := a.read(newer)
		stored, err := a.client(object).Apply(t.Context(), object.GetName(), object,
			metav1.ApplyOptions{FieldManager: "test", Force: true, DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return err
		}
		return has("x", "spec", "future")(stored)
	})
	a.apply(newer)
	// Ignoring a field that this version does not support could change the meaning of the spec.
	a.waitBlueprint("websites", is("Accepted", "False", "Invalid", `unknown field "future"`, "older version"),
		is("Serving", "True", "generation 1 is served"))
	second.stop(syscall.SIGTERM)

	// A replica that has not seen the first generation reads it from its revision.
	third := startServing(t, a.cluster.Kubeconfig())
	third.waitLog(line{Msg: "Newer Blueprint CustomResourceDefinition kept"})
	a.apply(strings.ReplaceAll(flowers, "roses", "tulips"))
	a.wait("v1", "ConfigMap", "flowers-page", has("tulips", "data", "text"))
	a.waitBlueprint("websites", is("Accepted", "False", `unknown field "future"`))
	third.stop(syscall.SIGTERM)

	// An administrator can remove the annotation, so that the definition is replaced.
	a.patchManifest(`[{"op": "remove", "path": "` + annotation + `"}]`)
	startServing(t, a.cluster.Kubeconfig())
	a.wait(typeVersion, typeKind, manifestName, hasManifestRevision)
	a.apply(changed(websites, change{"${self.spec.text}", "new ${self.spec.text}"}))
	a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True"))
	a.wait("v1", "ConfigMap", "flowers-page", has("new tulips", "data", "text"))
}
