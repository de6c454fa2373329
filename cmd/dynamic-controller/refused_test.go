package main

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/test/apiproxy"
)

const crdPolicy = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: NAME}
spec:
  matchConstraints:
    resourceRules:
      - {apiGroups: [apiextensions.k8s.io], apiVersions: [v1], resources: [customresourcedefinitions],
         operations: [CREATE, UPDATE]}
  matchConditions: [{name: group, expression: "object.spec.group == 'GROUP'"}]
  validations: [{expression: "false", message: types are frozen}]
`

const crdPolicyBinding = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: NAME}
spec: {policyName: NAME, validationActions: [Deny]}
`

// freezeTypes makes the API server refuse changes to the CustomResourceDefinitions of the test's group, until the
// returned function is called.
func (a *api) freezeTypes() (thaw func()) {
	a.Helper()
	group := schema.GroupVersion{Group: "admissionregistration.k8s.io", Version: "v1"}
	policies := a.admin.Resource(group.WithResource("validatingadmissionpolicies"))
	bindings := a.admin.Resource(group.WithResource("validatingadmissionpolicybindings"))
	named := func(text string) string { return strings.ReplaceAll(text, "NAME", a.namespace) }
	_, err := policies.Create(a.Context(), a.read(named(crdPolicy)), metav1.CreateOptions{})
	if err == nil {
		_, err = bindings.Create(a.Context(), a.read(named(crdPolicyBinding)), metav1.CreateOptions{})
	}
	if err != nil {
		a.Fatal(err)
	}
	thaw = func() {
		ctx := context.WithoutCancel(a.Context())
		_ = bindings.Delete(ctx, a.namespace, metav1.DeleteOptions{})
		_ = policies.Delete(ctx, a.namespace, metav1.DeleteOptions{})
	}
	a.Cleanup(thaw)
	probe := a.read(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition,
		metadata: {name: probes.GROUP}, spec: {group: GROUP, scope: Cluster, names: {plural: probes, kind: Probe},
		versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}}`)
	eventually(a.T, func() error { // the API server enforces a new policy only after some time
		_, err := a.client(probe).Create(a.Context(), probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return errors.New("the policy is not enforced")
		}
		return nil
	})
	return thaw
}

// withTitle adds a field to the type and uses it in a template.
var withTitle = changed(websites, change{"text: {type: string}\n", "text: {type: string}\n            title: {type: string}\n"},
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
		a.waitBlueprint("websites", is("Accepted", "False", "RejectedByServer", "types are frozen"),
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
	a.waitWhy("blueprint/websites.GROUP", 1, "is Failing: RejectedByServer: ", "types are frozen")

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
	refused := is("Accepted", "False", "RejectedByServer", "types are frozen")
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

// The API server itself rejects the schema, as an older version rejects a function that it does not know.
func TestRefusedType_SchemaOfANewerServer(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	a.apply(changed(withTitle, change{"title: {type: string}",
		`title: {type: string, x-kubernetes-validations: [{rule: "self.isFromTheFuture()"}]}`}))
	a.waitBlueprint("websites", is("Accepted", "False", "isFromTheFuture"),
		is("Serving", "True", "generation 1 is served"))
	a.apply(changed(flowers, change{"roses", "tulips"}))
	a.wait("v1", "ConfigMap", "flowers-page", has("tulips", "data", "text"))
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
