package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/test/apiproxy"
)

const fixedPages = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: pages.GROUP}
spec:
  type:
    group: GROUP
    version: v1
    kind: Page
    schema: {properties: {spec: {type: object, properties: {text: {type: string}}}}}
  resources:
  - id: content
    onImmutable: Fail
    template:
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: "${self.metadata.name}"}
      immutable: true
      data: {text: "${self.spec.text}"}
`

// A child that cannot be changed is kept and reported until the Blueprint allows recreating it. An event reports the
// recreation. Users of the instance cannot choose.
func TestRecreate_OnlyIfTheBlueprintAllowsIt(t *testing.T) {
	a := newAPI(t)
	kubeconfig, proxy := a.proxied()
	startServing(t, kubeconfig)
	page := func(text string) {
		a.apply(`{apiVersion: GROUP/v1, kind: Page, metadata: {name: a}, spec: {text: ` + text + `}}`)
	}
	deletions := func() int {
		return count(proxy, func(c apiproxy.Call) bool { return c.Resource == "configmaps" && c.Verb == "delete" })
	}
	a.apply(fixedPages)
	page("before")
	a.wait("GROUP/v1", "Page", "a", is("Ready", "True"))
	uid := func() types.UID {
		t.Helper()
		child := a.read(`{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}`)
		now, err := a.client(child).Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return now.GetUID()
	}
	old := uid()
	page("after")
	a.wait("GROUP/v1", "Page", "a", func(page *unstructured.Unstructured) error {
		if ready := instances.ConditionOf(page, "Ready"); ready == nil || ready.Reason != "Rejected" {
			return fmt.Errorf("the condition is %v", ready)
		}
		return nil
	})
	if uid() != old {
		t.Error("the child was recreated")
	}
	a.apply(changed(fixedPages, change{"onImmutable: Fail", "onImmutable: Recreate"}))
	a.wait("v1", "ConfigMap", "a", has("after", "data", "text"))
	a.wait("GROUP/v1", "Page", "a", is("Ready", "True"))
	if now := uid(); now == old || deletions() != 1 {
		t.Errorf("%d deletions; the child was %s and is %s", deletions(), old, now)
	}
	eventually(t, func() error {
		got := a.events(a.namespace, "Page", "a")
		isRecreation := func(text string) bool {
			return strings.HasPrefix(text, "ChildrenRecreated: recreating ConfigMap a, because")
		}
		if !slices.ContainsFunc(got, isRecreation) {
			return fmt.Errorf("got the events %q", got)
		}
		return nil
	})
}
