package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/test/apiproxy"
)

// denyWrites creates an admission policy that denies writes to a resource for which the CEL expression is true. It
// waits until probe fails. The policy is deleted by the returned function, or when the test ends.
func (a *api) denyWrites(resource schema.GroupVersionResource, expression string, probe func() error) (allow func()) {
	a.Helper()
	group := schema.GroupVersion{Group: "admissionregistration.k8s.io", Version: "v1"}
	policies := a.admin.Resource(group.WithResource("validatingadmissionpolicies"))
	bindings := a.admin.Resource(group.WithResource("validatingadmissionpolicybindings"))
	_, err := policies.Create(a.Context(), a.read(fmt.Sprintf(`{apiVersion: %s, kind: ValidatingAdmissionPolicy,
		metadata: {name: %s}, spec: {
		matchConstraints: {resourceRules: [{apiGroups: [%q], apiVersions: [%s], resources: [%s],
			operations: [CREATE, UPDATE]}]},
		matchConditions: [{name: matches, expression: %q}],
		validations: [{expression: "false", message: frozen for a test}]}}`,
		group, a.namespace, resource.Group, resource.Version, resource.Resource, expression)), metav1.CreateOptions{})
	if err == nil {
		_, err = bindings.Create(a.Context(), a.read(fmt.Sprintf(`{apiVersion: %s, kind: ValidatingAdmissionPolicyBinding,
		metadata: {name: %s}, spec: {policyName: %s, validationActions: [Deny]}}`,
			group, a.namespace, a.namespace)), metav1.CreateOptions{})
	}
	if err != nil {
		a.Fatal(err)
	}
	allow = func() {
		ctx := context.WithoutCancel(a.Context())
		_ = bindings.Delete(ctx, a.namespace, metav1.DeleteOptions{})
		_ = policies.Delete(ctx, a.namespace, metav1.DeleteOptions{})
	}
	a.Cleanup(allow)
	eventually(a.T, func() error { // the API server enforces a new policy only after some time
		if probe() == nil {
			return errors.New("the policy is not enforced")
		}
		return nil
	})
	return allow
}

var onlyDry = []string{metav1.DryRunAll}

// freezeTypes makes the API server refuse changes to the CustomResourceDefinitions of the test's group, until the
// returned function is called.
func (a *api) freezeTypes() (thaw func()) {
	a.Helper()
	probe := a.read(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition,
		metadata: {name: probes.GROUP}, spec: {group: GROUP, scope: Cluster, names: {plural: probes, kind: Probe},
		versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}}`)
	crds := apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")
	return a.denyWrites(crds, "object.spec.group == 'GROUP'", func() error {
		_, err := a.client(probe).Create(a.Context(), probe, metav1.CreateOptions{DryRun: onlyDry})
		return err
	})
}

// withTitle adds a field to the type and uses it in a template.
var withTitle = changed(websites,
	change{"text: {type: string}\n", "text: {type: string}\n            title: {type: string}\n"},
	change{"{text: \"${self.spec.text}\"}", "{text: \"${self.spec.text}\", title: \"${self.spec.title}\"}"})

// An admission policy rejects the new type of a served Blueprint.
func TestRefusedType_PreviousGenerationRemainsServed(t *testing.T) {
	a := newAPI(t)
	first := startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	revision := a.servedName(1)
	thaw := a.freezeTypes()
	a.apply(withTitle)
	remains := func(text string) {
		t.Helper()
		a.waitBlueprint("websites", is("Accepted", "False", "RejectedByServer", "frozen for a test"),
			is("Progressing", "False", "RejectedByServer", "generation 2 is not rolled out", "generation 1 remains served"),
			is("TypeEstablished", "True"), is("Serving", "True", "generation 1 is served"),
			has(revision, "status", "served", "revision"))
		a.apply(changed(flowers, change{"roses", text}))
		a.wait("v1", "ConfigMap", "flowers-page", has(text, "data", "text"))
		a.wait("GROUP/v1", "Website", "flowers", all(is("Ready", "True"), has(revision, "status", "revision")))
		a.waitRevisions("websites", 1)
	}
	remains("tulips")
	first.waitLog(line{Msg: "Blueprint rejected"})
	a.waitWhy("blueprint/websites.GROUP", 1, "is Failing: RejectedByServer: ", "frozen for a test")

	// A standby serves the same revision, also after it becomes the leader, and so does a new process.
	standby := startReplica(t, a.cluster.Kubeconfig())
	standby.waitReady()
	standby.waitLog(line{Msg: "Type started", GVR: "websites", Generation: 1})
	first.stop(syscall.SIGTERM)
	standby.waitLog(line{Msg: "Started leading"})
	remains("lilies")
	standby.kill()
	startServing(t, a.cluster.Kubeconfig())
	remains("orchids")

	thaw()
	a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True", "generation 2 is served"),
		is("Progressing", "True"))
	a.apply(changed(flowers, change{"text: roses", "text: roses, title: Flowers"}))
	a.wait("v1", "ConfigMap", "flowers-page", has("Flowers", "data", "title"))
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
}

// The author of a refused generation returns to the served one. Changes to templates alone are not refused.
func TestRefusedType_RollbackIsAccepted(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	revision := a.servedName(1)
	a.freezeTypes()
	a.apply(withTitle)
	a.waitBlueprint("websites", is("Accepted", "False", "RejectedByServer"))
	a.apply(websites)
	a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True", "generation 3 is served"),
		is("Progressing", "True", "RolloutComplete"), has(revision, "status", "served", "revision"))
	a.apply(withText("fresh"))
	a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True", "generation 4 is served"))
	a.wait("v1", "ConfigMap", "flowers-page", has("fresh roses", "data", "text"))
}

// The type of the first generation is refused. It reserves nothing and can be deleted.
func TestRefusedType_FirstGeneration(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	thaw := a.freezeTypes()
	refused := is("Accepted", "False", "RejectedByServer", "frozen for a test")
	a.apply(deleting)
	a.waitBlueprint("websites", refused, is("TypeEstablished", "False", "RejectedByServer"),
		is("Serving", "False", "NothingAccepted", "no generation has been accepted"))
	if stored := a.revisions("websites"); len(stored) > 0 {
		t.Errorf("stored %d revisions of a Blueprint that was never accepted", len(stored))
	}
	a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
	a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)

	// Two Blueprints claim the same type.
	other := changed(websites, change{"name: websites.GROUP", "name: others.GROUP"})
	a.apply(websites)
	a.waitBlueprint("websites", refused)
	a.apply(other)
	a.waitBlueprint("others", is("Accepted", "False"))
	thaw()
	a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True", "generation 1 is served"))
	a.waitBlueprint("others", is("Accepted", "False", "Type"))
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
}

// The platform applies the type, and then cannot store the spec. The previous generation remains served, also after a
// restart, although its type is older than the one in the API server.
func TestRefusedType_TypeIsNewerThanTheServedSpec(t *testing.T) {
	a := newAPI(t)
	gate := &storeGate{}
	kubeconfig, _ := a.proxied(gate.wrap)
	first := startServing(t, kubeconfig)
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	gate.closed.Store(true)
	a.apply(withTitle)
	remains := func(text string) {
		t.Helper()
		a.waitBlueprint("websites", is("Accepted", "True"),
			is("Serving", "True", "generation 1 is served", "generation 2 is accepted but not served"))
		a.apply(changed(flowers, change{"text: roses", "text: " + text + ", title: Flowers"}))
		a.wait("v1", "ConfigMap", "flowers-page", has(text, "data", "text"))
	}
	remains("tulips")
	first.kill()
	startServing(t, kubeconfig)
	remains("lilies")
	// A later generation is rejected. The newer type is kept, because instances already use its fields.
	a.apply(changed(withTitle, change{"${self.spec.title}", "${self.spec.titel}"}))
	a.waitBlueprint("websites", is("Accepted", "False", "titel"), is("Serving", "True", "generation 1 is served"))
	a.apply(changed(flowers, change{"text: roses", "text: orchids, title: Flowers"}))
	a.wait("v1", "ConfigMap", "flowers-page", has("orchids", "data", "text"))
	a.wait("GROUP/v1", "Website", "flowers", has("Flowers", "spec", "title"))

	gate.closed.Store(false)
	a.apply(withTitle)
	a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True", "generation 4 is served"))
	a.wait("v1", "ConfigMap", "flowers-page", has("Flowers", "data", "title"))
}

// storeGate rejects requests that create ControllerRevisions while it is closed. It allows dry runs.
type storeGate struct{ closed atomic.Bool }

func (g *storeGate) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		call := apiproxy.CallOf(r)
		if g.closed.Load() && call.Resource == "controllerrevisions" && call.Verb == "create" &&
			!r.URL.Query().Has("dryRun") {
			return nil, errors.New("the gate is closed")
		}
		return next.RoundTrip(r)
	})
}
