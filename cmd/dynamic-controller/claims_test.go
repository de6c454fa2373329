package main

import (
	"context"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// named returns the Blueprint websites with the name of its CustomResourceDefinition in place of a type.
func named(name string) string {
	start, end := strings.Index(websites, "    group:"), strings.Index(websites, "  resources:")
	return changed(websites[:start]+"    crd: websites.GROUP\n"+websites[end:], change{"name: websites.GROUP", "name: " + name + ".GROUP"})
}

// theirs is a CustomResourceDefinition that the platform did not create.
const theirs = `
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

var theirsWithStatus = strings.Replace(theirs, "STATUS", "subresources: {status: {}}", 1)

// allow annotates the CustomResourceDefinition of the test's type, as an operator does. A nil value removes the annotation.
func (a *api) allow(value string) {
	a.Helper()
	patch := `{"metadata":{"annotations":{"platform.example.com/allowed-blueprint":` + value + `}}}`
	if _, err := a.crds.ApiextensionsV1().CustomResourceDefinitions().Patch(a.Context(), "websites."+a.group, types.MergePatchType,
		[]byte(patch), metav1.PatchOptions{}); err != nil {
		a.Fatal(err)
	}
}

func blueprintsOnly() rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{"platform.example.com"}, Resources: []string{"blueprints"}, Verbs: []string{"*"}}
}

// applyAs applies a Blueprint with another client.
func (a *api) applyAs(client dynamic.Interface, text string) {
	a.Helper()
	b := a.read(text)
	eventually(a.T, func() error {
		_, err := client.Resource(blueprint.GroupVersionResource).Apply(a.Context(), b.GetName(), b, metav1.ApplyOptions{FieldManager: "attacker", Force: true})
		return err
	})
	a.Cleanup(func() { a.clear(b) })
}

func TestAttack_ABlueprintThatIsNeverAcceptedDoesNotHoldAType(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	attacker := a.attacker(blueprintsOnly())
	a.applyAs(attacker, changed(websites, change{"name: websites.GROUP", "name: invalid.GROUP"}, change{"${self.spec.text}", "${self.spec.txt}"}))
	a.applyAs(attacker, named("waiting"))
	a.waitBlueprint("invalid", is("Accepted", "False"))
	a.waitBlueprint("waiting", is("TypeEstablished", "False"))

	a.apply(websites)
	a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True"))
	a.apply(flowers)
	a.wait("v1", "ConfigMap", "flowers-page", has("roses", "data", "text"))

	// An older Blueprint does not take the type later, when it is valid.
	a.applyAs(attacker, changed(websites, change{"name: websites.GROUP", "name: invalid.GROUP"}, change{"${self.spec.text}", "stolen"}))
	a.waitBlueprint("invalid", is("Accepted", "False", "TypeClaimed", "websites."+a.group))
	a.waitBlueprint("waiting", is("Accepted", "False", "TypeClaimed", "websites."+a.group))
	a.apply(strings.ReplaceAll(flowers, "roses", "tulips"))
	a.wait("v1", "ConfigMap", "flowers-page", has("tulips", "data", "text"))

	// Nor while the Blueprint that has it is refused.
	a.apply(strings.ReplaceAll(websites, "${self.spec.text}", "${self.spec.txt}"))
	a.waitBlueprint("websites", is("Accepted", "False", "undefined field 'txt'"), is("Serving", "True", "generation 1 is served"))
	a.waitBlueprint("invalid", is("Accepted", "False", "TypeClaimed"), is("Serving", "False"))
}

func TestAttack_ATypeThatThePlatformDidNotCreateIsNotSeized(t *testing.T) {
	a := newAPI(t)
	kubeconfig, calls := a.watched()
	startServing(t, kubeconfig)
	a.apply(theirsWithStatus)
	a.apply(flowers)
	attacker := a.attacker(blueprintsOnly())
	a.applyAs(attacker, changed(named("thieves"), change{"spec:\n", "spec:\n  deletionPolicy: Delete\n"}))
	a.waitBlueprint("thieves", is("Accepted", "False", "ConsentMissing",
		"kubectl annotate crd websites."+a.group+" platform.example.com/allowed-blueprint=thieves."+a.group), is("Serving", "False"))
	if err := attacker.Resource(blueprint.GroupVersionResource).Delete(t.Context(), "thieves."+a.group, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	a.waitGone(blueprintVersion, "Blueprint", "thieves."+a.group)
	if instance, err := a.get("GROUP/v1", "Website", "flowers"); err != nil || instance.GetDeletionTimestamp() != nil || len(instance.GetFinalizers()) > 0 {
		t.Errorf("the instance is %v, %v", instance, err)
	}
	for _, c := range calls.Calls() {
		if c.Group == a.group {
			t.Errorf("the platform requested %+v", c)
		}
	}
	// Its owner's choice is not blocked by the attacker, who was there first.
	a.applyAs(attacker, named("thieves"))
	a.applyAs(attacker, changed(websites, change{"name: websites.GROUP", "name: makers.GROUP"}))
	a.waitBlueprint("thieves", is("Accepted", "False", "ConsentMissing"))
	a.waitBlueprint("makers", is("Accepted", "False", "TypeNotOurs"))
	a.allow(`"websites.` + a.group + `"`)
	a.apply(named("websites"))
	a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True"))
	a.wait("v1", "ConfigMap", "flowers-page", has("roses", "data", "text"))
	a.waitBlueprint("thieves", is("Accepted", "False", "TypeClaimed"))
	a.waitBlueprint("makers", is("Accepted", "False", "TypeClaimed"))
}

func TestConsentThatIsWithdrawnEndsAllWrites(t *testing.T) {
	a := newAPI(t)
	p := startServing(t, a.cluster.Kubeconfig())
	a.apply(theirsWithStatus)
	a.allow(`"websites.` + a.group + `"`)
	far := metav1.NamespaceDefault
	a.apply(changed(named("websites"), change{"spec:\n", "spec:\n  deletionPolicy: Delete\n"},
		change{"metadata: {name: \"${self.metadata.name}-page\"}", "metadata: {name: \"${self.metadata.name}-page\", namespace: " + far + "}"}))
	for _, name := range []string{"flowers", "trees"} {
		a.apply(strings.ReplaceAll(flowers, "flowers", name))
		a.wait("GROUP/v1", "Website", name, is("Ready", "True"))
	}
	t.Cleanup(func() {
		_ = a.kube.CoreV1().ConfigMaps(far).Delete(context.Background(), "flowers-page", metav1.DeleteOptions{})
	})
	for _, value := range []string{`null`, `"others.` + a.group + `"`} {
		a.allow(value)
		a.waitBlueprint("websites", is("Accepted", "False", "ConsentMissing"), is("Serving", "False", "only deletions are processed"))
		before, err := a.get("v1", "ConfigMap", far+"/flowers-page")
		if err != nil {
			t.Fatal(err)
		}
		a.apply(strings.ReplaceAll(flowers, "roses", "tulips"))
		p.kill()
		p = startServing(t, a.cluster.Kubeconfig())
		if value == `null` {
			// Children that Kubernetes does not delete go with their instance.
			a.delete("GROUP/v1", "Website", "trees")
			a.waitGone("GROUP/v1", "Website", "trees")
			a.waitGone("v1", "ConfigMap", far+"/trees-page")
		}
		if now, err := a.get("v1", "ConfigMap", far+"/flowers-page"); err != nil || now.GetResourceVersion() != before.GetResourceVersion() {
			t.Errorf("after consent was withdrawn the child is %v, %v", now, err)
		}
	}
	// The deletion policy is not applied to a type without consent.
	a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
	a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)
	instance, err := a.get("GROUP/v1", "Website", "flowers")
	if err != nil || instance.GetDeletionTimestamp() != nil || len(instance.GetFinalizers()) > 0 {
		t.Errorf("the instance is %v, %v", instance, err)
	}
}

func TestARetainedTypeIsReservedForItsName(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
	a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)

	attacker := a.attacker(blueprintsOnly())
	a.applyAs(attacker, changed(websites, change{"name: websites.GROUP", "name: makers.GROUP"}, change{"spec:\n", "spec:\n  deletionPolicy: Delete\n"}))
	a.applyAs(attacker, changed(named("namers"), change{"spec:\n", "spec:\n  deletionPolicy: Delete\n"}))
	for _, name := range []string{"makers", "namers"} {
		a.waitBlueprint(name, is("Accepted", "False", "TypeNotOurs", "websites."+a.group), is("Serving", "False"))
	}
	// Not even with consent: the reservation has to be released first.
	a.allow(`"namers.` + a.group + `"`)
	a.waitBlueprint("namers", is("Accepted", "False", "TypeNotOurs", "kubectl annotate crd"))
	if err := attacker.Resource(blueprint.GroupVersionResource).Delete(t.Context(), "makers."+a.group, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	a.waitGone(blueprintVersion, "Blueprint", "makers."+a.group)
	if _, err := a.get("GROUP/v1", "Website", "flowers"); apierrors.IsNotFound(err) {
		t.Error("another Blueprint deleted what was retained")
	}
	// A Blueprint of the name has it, though the others are older.
	a.apply(saying("again"))
	a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True"))
	a.wait("v1", "ConfigMap", "flowers-page", has("again roses", "data", "text"))
	a.waitBlueprint("namers", is("Accepted", "False", "TypeClaimed"))
}
