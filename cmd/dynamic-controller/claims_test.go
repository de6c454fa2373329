package main

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// withNamedType returns the Blueprint websites with spec.type.crd instead of its own type.
func withNamedType(name string) string {
	start, end := strings.Index(websites, "    group:"), strings.Index(websites, "  resources:")
	return changed(websites[:start]+"    crd: websites.GROUP\n"+websites[end:],
		change{"name: websites.GROUP", "name: " + name + ".GROUP"})
}

// existingCRD is a CustomResourceDefinition that the platform did not create.
const existingCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: websites.GROUP}
spec:
  group: GROUP
  scope: Namespaced
  names: {kind: Website, plural: websites}
  versions:
    - name: v1
      served: true
      storage: true
      STATUS
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec: {type: object, properties: {text: {type: string}, public: {type: boolean}}}
            status: {type: object, x-kubernetes-preserve-unknown-fields: true}
`

var existingCRDWithStatus = strings.Replace(existingCRD, "STATUS", "subresources: {status: {}}", 1)

// setConsent annotates the CustomResourceDefinition of the websites. The value null removes the annotation.
func (a *api) setConsent(value string) {
	a.Helper()
	patch := `{"metadata":{"annotations":{"platform.example.com/allowed-blueprint":` + value + `}}}`
	if _, err := a.crds.ApiextensionsV1().CustomResourceDefinitions().Patch(a.Context(), "websites."+a.group,
		types.MergePatchType,
		[]byte(patch), metav1.PatchOptions{}); err != nil {
		a.Fatal(err)
	}
}

func TestAttack_UnacceptedBlueprintDoesNotBlockAType(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	author := a.author()
	author.apply(changed(websites, change{"name: websites.GROUP", "name: invalid.GROUP"},
		change{"${self.spec.text}", "${self.spec.txt}"}))
	author.apply(withNamedType("waiting"))
	a.waitBlueprint("invalid", is("Accepted", "False"))
	a.waitBlueprint("waiting", is("TypeEstablished", "False"))

	a.apply(websites)
	a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True"))
	a.apply(flowers)
	a.wait("v1", "ConfigMap", "flowers-page", has("roses", "data", "text"))

	// An older Blueprint does not get the type when it becomes valid later.
	author.apply(changed(websites, change{"name: websites.GROUP", "name: invalid.GROUP"},
		change{"${self.spec.text}", "stolen"}))
	a.waitBlueprint("invalid", is("Accepted", "False", "TypeClaimed", "websites."+a.group))
	a.waitBlueprint("waiting", is("Accepted", "False", "TypeClaimed", "websites."+a.group))
	a.apply(strings.ReplaceAll(flowers, "roses", "tulips"))
	a.wait("v1", "ConfigMap", "flowers-page", has("tulips", "data", "text"))

	// The older Blueprint does not get the type while the newest generation of the served one is rejected, either.
	a.apply(strings.ReplaceAll(websites, "${self.spec.text}", "${self.spec.txt}"))
	a.waitBlueprint("websites", is("Accepted", "False", "unknown field \"txt\""),
		is("Serving", "True", "generation 1 is served"))
	a.waitBlueprint("invalid", is("Accepted", "False", "TypeClaimed"), is("Serving", "False"))
}

func TestAttack_ExistingTypeRequiresConsent(t *testing.T) {
	a := newAPI(t)
	kubeconfig, calls := a.proxied()
	startServing(t, kubeconfig)
	a.apply(existingCRDWithStatus)
	a.apply(flowers)
	author := a.author()
	author.apply(changed(withNamedType("thieves"), change{"spec:\n", "spec:\n  deletionPolicy: Delete\n"}))
	a.waitBlueprint("thieves", is("Accepted", "False", "ConsentMissing",
		"kubectl annotate crd websites."+a.group+" platform.example.com/allowed-blueprint=thieves."+a.group),
		is("Serving", "False"))
	author.delete(blueprintVersion, "Blueprint", "thieves."+a.group)
	a.waitGone(blueprintVersion, "Blueprint", "thieves."+a.group)
	if instance, err := a.get("GROUP/v1", "Website", "flowers"); err != nil || instance.GetDeletionTimestamp() != nil ||
		len(instance.GetFinalizers()) > 0 {
		t.Errorf("got instance %v, %v", instance, err)
	}
	for _, c := range calls.Calls() {
		if c.Group == a.group {
			t.Errorf("the platform sent the request %+v", c)
		}
	}
	// The author's older Blueprints do not prevent the owner from choosing another one.
	author.apply(withNamedType("thieves"))
	author.apply(changed(websites, change{"name: websites.GROUP", "name: makers.GROUP"}))
	a.waitBlueprint("thieves", is("Accepted", "False", "ConsentMissing"))
	a.waitBlueprint("makers", is("Accepted", "False", "TypeNotOwned"))
	a.setConsent(`"websites.` + a.group + `"`)
	a.apply(withNamedType("websites"))
	a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True"))
	a.wait("v1", "ConfigMap", "flowers-page", has("roses", "data", "text"))
	a.waitBlueprint("thieves", is("Accepted", "False", "TypeClaimed"))
	a.waitBlueprint("makers", is("Accepted", "False", "TypeClaimed"))
}

func TestConsent_WithdrawalStopsAllWrites(t *testing.T) {
	a := newAPI(t)
	p := startServing(t, a.cluster.Kubeconfig())
	a.apply(existingCRDWithStatus)
	a.setConsent(`"websites.` + a.group + `"`)
	far := a.addNamespace(a.namespace + "-far")
	a.apply(changed(withNamedType("websites"), change{"spec:\n", "spec:\n  deletionPolicy: Delete\n"},
		change{"metadata: {name: \"${self.metadata.name}-page\"}",
			"metadata: {name: \"${self.metadata.name}-page\", namespace: " + far + "}"}))
	for _, name := range []string{"flowers", "trees"} {
		a.apply(strings.ReplaceAll(flowers, "flowers", name))
		a.wait("GROUP/v1", "Website", name, is("Ready", "True"))
	}
	for _, value := range []string{`null`, `"others.` + a.group + `"`} {
		a.setConsent(value)
		a.waitBlueprint("websites", is("Accepted", "False", "ConsentMissing"),
			is("Serving", "False", "only deletions are processed"))
		before, err := a.get("v1", "ConfigMap", far+"/flowers-page")
		if err != nil {
			t.Fatal(err)
		}
		a.apply(strings.ReplaceAll(flowers, "roses", "tulips"))
		p.kill()
		p = startServing(t, a.cluster.Kubeconfig())
		if value == `null` {
			// Children without an owner reference are deleted together with their instance.
			a.delete("GROUP/v1", "Website", "trees")
			a.waitGone("GROUP/v1", "Website", "trees")
			a.waitGone("v1", "ConfigMap", far+"/trees-page")
		}
		if now, err := a.get("v1", "ConfigMap", far+"/flowers-page"); err != nil ||
			now.GetResourceVersion() != before.GetResourceVersion() {
			t.Errorf("got child %v, %v after consent was withdrawn", now, err)
		}
	}
	// The deletion policy is ignored for a type without consent.
	a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
	a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)
	instance, err := a.get("GROUP/v1", "Website", "flowers")
	if err != nil || instance.GetDeletionTimestamp() != nil || len(instance.GetFinalizers()) > 0 {
		t.Errorf("got instance %v, %v", instance, err)
	}
}

func TestRetainedType_IsReservedForTheNameOfItsBlueprint(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
	a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)

	author := a.author()
	author.apply(changed(websites, change{"name: websites.GROUP", "name: makers.GROUP"},
		change{"spec:\n", "spec:\n  deletionPolicy: Delete\n"}))
	author.apply(changed(withNamedType("namers"), change{"spec:\n", "spec:\n  deletionPolicy: Delete\n"}))
	for _, name := range []string{"makers", "namers"} {
		a.waitBlueprint(name, is("Accepted", "False", "TypeNotOwned", "websites."+a.group), is("Serving", "False"))
	}
	// Consent is not sufficient: the reservation must be released first.
	a.setConsent(`"namers.` + a.group + `"`)
	a.waitBlueprint("namers", is("Accepted", "False", "TypeNotOwned", "kubectl annotate crd"))
	author.delete(blueprintVersion, "Blueprint", "makers."+a.group)
	a.waitGone(blueprintVersion, "Blueprint", "makers."+a.group)
	if _, err := a.get("GROUP/v1", "Website", "flowers"); apierrors.IsNotFound(err) {
		t.Error("another Blueprint deleted a retained instance")
	}
	// A Blueprint with the reserved name gets the type even though others are older.
	a.apply(withText("again"))
	a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True"))
	a.wait("v1", "ConfigMap", "flowers-page", has("again roses", "data", "text"))
	a.waitBlueprint("namers", is("Accepted", "False", "TypeClaimed"))
}
