package main

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// runsAs makes a Blueprint run as the ServiceAccount web.
const runsAs = "  serviceAccountName: web"

func TestIdentity_BlueprintRunsAsItsServiceAccount(t *testing.T) {
	a := newAPI(t)
	_, users := a.platform()
	web := a.serviceAccount(a.namespace, "web", rule(writeChildren, "", "configmaps"))

	configMap := `{apiVersion: v1, kind: ConfigMap, metadata: {name: "${self.metadata.name}"},
        data: {a: "${self.spec.a}"}}`
	a.apply(making("Site", configMap))
	a.waitBlueprint("sites", is("Accepted", "False", "IdentityRequired", "spec.serviceAccountName"),
		is("Serving", "False"))
	a.apply(making("Site", configMap, runsAs))
	a.apply(making("Vault", `{apiVersion: v1, kind: Secret, metadata: {name: "${self.metadata.name}"}}`, runsAs))
	for _, name := range []string{"sites", "vaults"} {
		a.waitBlueprint(name, is("Accepted", "True"), is("Serving", "True"))
	}

	a.apply("{apiVersion: GROUP/v1, kind: Site, metadata: {name: flowers}, spec: {a: roses}}")
	a.wait("GROUP/v1", "Site", "flowers", is("Ready", "False", "ConsentMissing",
		"ServiceAccount "+a.namespace+"/web does not allow Blueprint sites."+a.group))
	a.consent(a.namespace, "web", "sites."+a.group, "vaults."+a.group)
	a.wait("GROUP/v1", "Site", "flowers", is("Ready", "True"))
	a.wait("v1", "ConfigMap", "flowers", has("roses", "data", "a"))
	a.apply("{apiVersion: GROUP/v1, kind: Site, metadata: {name: flowers}, spec: {a: tulips}}")
	a.wait("v1", "ConfigMap", "flowers", has("tulips", "data", "a"))

	a.apply("{apiVersion: GROUP/v1, kind: Vault, metadata: {name: safe}}")
	a.wait("GROUP/v1", "Vault", "safe", is("Ready", "False", "Forbidden", "as ServiceAccount "+a.namespace+"/web: ",
		`cannot patch resource "secrets"`))
	if _, err := a.get("v1", "Secret", "safe"); !apierrors.IsNotFound(err) {
		t.Errorf("got error %v for the Secret, want NotFound", err)
	}
	users.onlyAs(t, "patch configmaps", web)
	users.onlyAs(t, "patch secrets", web)
	users.onlyAs(t, "get secrets", web)
	users.onlyAs(t, "create selfsubjectreviews", "")
	users.onlyAs(t, "get serviceaccounts", "")
	users.onlyAs(t, "watch configmaps", "")
	users.onlyAs(t, "patch sites/status", "")
}

// When a namespace is deleted, the ServiceAccount and its permissions are deleted before a child in another namespace.
func TestIdentity_NamespaceDeletionKeepsInstancesWithChildrenElsewhere(t *testing.T) {
	a := newAPI(t)
	a.platform()
	tenant, far := a.addNamespace(a.namespace+"-tenant"), a.addNamespace(a.namespace+"-far")
	a.serviceAccount(tenant, "web")
	a.consent(tenant, "web", "places."+a.group)
	a.grant(tenant, tenant, "web", rule(writeChildren, "", "configmaps")) // for the witness of an orphaning deletion
	revoke := a.grant(far, tenant, "web", rule(writeChildren, "", "configmaps"))
	a.apply(making("Place", `{apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${self.metadata.name}", namespace: "${self.spec.a}"}}`,
		runsAs, "  allowedNamespaces: [test-*]"))
	a.waitBlueprint("places", is("Accepted", "True"), is("Serving", "True"))
	a.apply("{apiVersion: GROUP/v1, kind: Place, metadata: {name: flowers, namespace: " + tenant + "}, " +
		"spec: {a: " + far + "}}")
	a.wait("GROUP/v1", "Place", tenant+"/flowers", is("Ready", "True"))
	revoke()
	if err := a.kube.CoreV1().Namespaces().Delete(t.Context(), tenant, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	place := a.wait("GROUP/v1", "Place", tenant+"/flowers", is("Ready", "False", "CleanupForbidden",
		"cannot delete configmaps "+far+"/flowers: ",
		"kubectl patch places."+a.group+" flowers -n "+tenant+" --type=merge -p "))
	var message string
	for _, c := range conditions(place) {
		message = c.Message
	}
	_, patch, _ := strings.Cut(message, "--type=merge -p '")
	patch = strings.TrimSuffix(patch, "'")
	if _, err := a.client(place).Patch(t.Context(), "flowers", types.MergePatchType, []byte(patch),
		metav1.PatchOptions{}); err != nil {
		t.Fatalf("patch %s: %v", patch, err)
	}
	a.waitGone("GROUP/v1", "Place", tenant+"/flowers")
	a.waitGone("v1", "Namespace", tenant)
	if _, err := a.get("v1", "ConfigMap", far+"/flowers"); err != nil {
		t.Error(err)
	}
}

// A tenant in another namespace creates a fake child there. The ServiceAccount has no permissions in that namespace.
func TestIdentity_FakeChildElsewhereDoesNotBlockAnInstance(t *testing.T) {
	a := newAPI(t)
	a.platform()
	far, theirs := a.addNamespace(a.namespace+"-far"), a.addNamespace(a.namespace+"-theirs")
	a.serviceAccount(a.namespace, "web")
	a.consent(a.namespace, "web", "places."+a.group)
	a.grant(far, a.namespace, "web", rule(writeChildren, "", "configmaps"))
	a.grant(a.namespace, a.namespace, "web", rule(writeChildren, "", "configmaps")) // for the witness
	a.apply(making("Place", `{apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${self.metadata.name}", namespace: "${self.spec.a}"}, data: {b: "${self.spec.b}"}}`,
		runsAs, "  allowedNamespaces: [test-*]"))
	a.waitBlueprint("places", is("Accepted", "True"), is("Serving", "True"))
	place := a.apply("{apiVersion: GROUP/v1, kind: Place, metadata: {name: flowers}, spec: {a: " + far + ", b: roses}}")
	a.wait("GROUP/v1", "Place", "flowers", is("Ready", "True"))
	label, record := markOf(place)
	a.apply(`{apiVersion: v1, kind: ConfigMap, metadata: {name: forged, namespace: ` + theirs + `,
        labels: {platform.example.com/parent: ` + label + `},
        annotations: {platform.example.com/parent: '` + record + `',
        platform.example.com/self: ` + theirs + `/forged, platform.example.com/stage: "9",
        platform.example.com/resource: child, platform.example.com/instance: ` + a.namespace + `/flowers}}}`)
	a.apply("{apiVersion: GROUP/v1, kind: Place, metadata: {name: flowers}, spec: {a: " + far + ", b: tulips}}")
	a.wait("v1", "ConfigMap", far+"/flowers", has("tulips", "data", "b"))
	a.wait("GROUP/v1", "Place", "flowers", is("Ready", "True"))
	a.delete("GROUP/v1", "Place", "flowers")
	a.waitGone("GROUP/v1", "Place", "flowers")
	a.waitGone("v1", "ConfigMap", far+"/flowers")
	if _, err := a.get("v1", "ConfigMap", theirs+"/forged"); err != nil {
		t.Error(err)
	}
}
