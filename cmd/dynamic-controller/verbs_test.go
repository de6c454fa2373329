package main

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// probes is a Blueprint with one resource. TYPE and RESOURCE are replaced.
const probes = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: probes.GROUP}
spec:
  TYPE
  resources:
    - id: a
      RESOURCE
`

const probeType = "type: {group: GROUP, version: v1, kind: Probe, schema: {properties: {spec: {type: object}}}}"

func probesOf(probeType, resource string) string {
	return strings.NewReplacer("TYPE", probeType, "RESOURCE", resource).Replace(probes)
}

// watchType is a type whose plural is a prefix in the paths of requests.
const watchType = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: watch.GROUP
  annotations: {platform.example.com/allowed-blueprint: probes.GROUP}
spec:
  group: GROUP
  scope: Namespaced
  names: {plural: watch, singular: watch, kind: Watch}
  versions:
    - {name: v1, served: true, storage: true, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object,
       x-kubernetes-preserve-unknown-fields: true}}}
`

func TestBlueprint_KindsThatLackVerbsAreRejected(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	const page = `template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${self.metadata.name}"}}`
	for name, test := range map[string]struct{ blueprint, want string }{
		"a TokenReview": {
			probesOf(probeType, "template: {apiVersion: authentication.k8s.io/v1, kind: TokenReview, metadata: {name: a}}"),
			"spec.resources[0].template: the API server does not support get, list, watch, patch, delete for TokenReview",
		},
		"a SubjectAccessReview": {
			probesOf(probeType,
				"template: {apiVersion: authorization.k8s.io/v1, kind: SubjectAccessReview, metadata: {name: a}}"),
			"the API server does not support get, list, watch, patch, delete for SubjectAccessReview",
		},
		"a Binding": {
			probesOf(probeType, "template: {apiVersion: v1, kind: Binding, metadata: {name: a}}"),
			"spec.resources[0].template: the API server does not support get, list, watch, patch, delete for Binding",
		},
		"a ComponentStatus": {
			probesOf(probeType, "template: {apiVersion: v1, kind: ComponentStatus, metadata: {name: a}}"),
			"spec.resources[0].template: the API server does not support watch, create, patch, delete for ComponentStatus",
		},
		"a reference to a ComponentStatus": {
			probesOf(probeType, "externalRef: {apiVersion: v1, kind: ComponentStatus, metadata: {name: scheduler}}"),
			"spec.resources[0].externalRef: the API server does not support watch for ComponentStatus",
		},
		"a child with the plural watch": {
			probesOf(probeType, "template: {apiVersion: GROUP/v1, kind: Watch, metadata: {name: a}}"),
			"spec.resources[0].template: the API server does not support list, watch for Watch",
		},
		"a type with the plural watch": {
			probesOf(strings.Replace(probeType, "kind: Probe", "kind: Other, plural: proxy", 1), page),
			"spec.type: the API server does not support list, watch for proxy.",
		},
		"an existing type with the plural watch": {
			probesOf("type: {crd: watch.GROUP}", page),
			"spec.type.crd: the API server does not support list, watch for watch.",
		},
	} {
		// The subtests share the cluster.
		t.Run(name, func(t *testing.T) {
			b := *a
			b.T = t
			b.apply(watchType)
			b.apply(test.blueprint)
			b.waitBlueprint("probes", is("Accepted", "False", test.want))
			b.delete(blueprintVersion, "Blueprint", "probes."+a.group)
			b.waitGone(blueprintVersion, "Blueprint", "probes."+a.group)
		})
	}
}

// withoutVerb makes the API server respond to the platform as if it did not support a verb for a resource.
type withoutVerb struct {
	resource, method string
	code             int
	active           atomic.Bool
}

func (w *withoutVerb) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		parts := strings.Split(r.URL.Path, "/")
		i := slices.Index(parts, w.resource)
		isList := i == len(parts)-1
		if !w.active.Load() || i < 0 || r.Method != w.method || isList != (r.Method == http.MethodGet) {
			return next.RoundTrip(r)
		}
		body := `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"refused by the test","code":405,` +
			`"reason":"MethodNotAllowed"}`
		if w.code == http.StatusNotFound {
			body = "404 page not found"
		}
		return &http.Response{
			StatusCode: w.code, Status: http.StatusText(w.code), Body: io.NopCloser(strings.NewReader(body)), Request: r,
			Header: http.Header{"Content-Type": {"application/json"}}, ProtoMajor: 1, ProtoMinor: 1,
		}, nil
	})
}

// remote is a Blueprint whose instances have a child in another namespace, and therefore the platform's finalizer.
func (a *api) remote(policy string) string {
	far := a.addNamespace(a.namespace + "-far")
	return strings.Replace(probesOf(probeType, "template: {apiVersion: v1, kind: Secret, metadata: {"+
		`name: "${self.metadata.name}", namespace: `+far+`}}`), "spec:\n", "spec:\n  deletionPolicy: "+policy+"\n", 1)
}

func TestInstance_DeletionContinuesWithoutChildrenThatCannotBeListedOrDeleted(t *testing.T) {
	for name, lost := range map[string]*withoutVerb{
		"lists are not supported":     {resource: "secrets", method: http.MethodGet, code: http.StatusMethodNotAllowed},
		"deletions are not supported": {resource: "secrets", method: http.MethodDelete, code: http.StatusMethodNotAllowed},
		"the type is not served":      {resource: "secrets", method: http.MethodGet, code: http.StatusNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			kubeconfig, _ := a.proxied(lost.wrap)
			startServing(t, kubeconfig)
			a.apply(a.remote("Retain"))
			a.apply("{apiVersion: GROUP/v1, kind: Probe, metadata: {name: a, finalizers: [example.com/other]}}")
			a.wait("GROUP/v1", "Probe", "a", is("Ready", "True"))
			lost.active.Store(true)
			a.delete("GROUP/v1", "Probe", "a")
			left := a.wait("GROUP/v1", "Probe", "a", all(hasList([]string{"example.com/other"}, "metadata", "finalizers"),
				is("Ready", "False", "ChildrenLeftBehind", "Secret")))
			a.waitEvent(a.namespace, "Probe", "a", "Failed: ChildrenLeftBehind: ")
			a.change(left, `{"metadata":{"finalizers":null}}`)
			a.waitGone("GROUP/v1", "Probe", "a")
			a.wait("v1", "Secret", a.namespace+"-far/a", exists)
		})
	}
}

func TestBlueprint_DeletionContinuesWithoutInstancesThatCannotBeListed(t *testing.T) {
	for name, test := range map[string]struct {
		policy string
		code   int
	}{
		"lists are not supported, Retain": {"Retain", http.StatusMethodNotAllowed},
		"lists are not supported, Delete": {"Delete", http.StatusMethodNotAllowed},
		"the type is not served, Retain":  {"Retain", http.StatusNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			lost := &withoutVerb{resource: "probes", method: http.MethodGet, code: test.code}
			kubeconfig, _ := a.proxied(lost.wrap)
			startServing(t, kubeconfig)
			a.apply(a.remote(test.policy))
			a.apply("{apiVersion: GROUP/v1, kind: Probe, metadata: {name: a}}")
			a.wait("GROUP/v1", "Probe", "a", is("Ready", "True"))
			lost.active.Store(true)
			a.delete(blueprintVersion, "Blueprint", "probes."+a.group)
			a.waitGone(blueprintVersion, "Blueprint", "probes."+a.group)
			a.waitEvent("default", "Blueprint", "probes."+a.group, "InstancesLeftBehind: the deletion continues")
		})
	}
}

// waitEvent waits for an event about the object that starts with the prefix.
func (a *api) waitEvent(namespace, kind, name, prefix string) {
	a.Helper()
	eventually(a.T, func() error {
		got := a.events(namespace, kind, name)
		if !slices.ContainsFunc(got, func(text string) bool { return strings.HasPrefix(text, prefix) }) {
			return fmt.Errorf("%s %s: got events %q, want %q", kind, name, got, prefix)
		}
		return nil
	})
}

// change applies a merge patch.
func (a *api) change(object *unstructured.Unstructured, patch string) {
	a.Helper()
	_, err := a.client(object).Patch(a.Context(), object.GetName(), types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	if err != nil {
		a.Fatal(err)
	}
}
