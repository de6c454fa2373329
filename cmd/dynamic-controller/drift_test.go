package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

const driftingPages = `
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
    template:
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: "${self.metadata.name}"}
      data: {text: "${self.spec.text}"}
`

// Another client that changes a child after each correction is named, and does not cause a write for each change.
func TestDrift_IsBoundedAndNamed(t *testing.T) {
	a := newAPI(t)
	kubeconfig, proxy := a.proxied()
	startServing(t, kubeconfig)
	a.apply(driftingPages)
	a.apply(`{apiVersion: GROUP/v1, kind: Page, metadata: {name: a}, spec: {text: x}}`)
	a.wait("GROUP/v1", "Page", "a", is("Ready", "True"))
	child := a.read(`{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}`)
	before := writes(proxy)
	ctx, stop := context.WithCancel(t.Context())
	fights := make(chan int)
	go func() {
		n := 0
		defer func() { fights <- n }()
		for ctx.Err() == nil {
			now, err := a.client(child).Get(ctx, "a", metav1.GetOptions{})
			if err != nil {
				continue
			}
			if text, _, _ := unstructured.NestedString(now.Object, "data", "text"); text != "x" {
				continue
			}
			_, _ = a.client(child).Patch(ctx, "a", types.MergePatchType, []byte(`{"data": {"text": "mine"}}`),
				metav1.PatchOptions{FieldManager: "fighter"})
			n++
		}
	}()
	a.wait("GROUP/v1", "Page", "a", func(page *unstructured.Unstructured) error {
		ready := instances.ConditionOf(page, "Ready")
		if ready == nil || ready.Reason != "Drifting" || !strings.Contains(ready.Message, `data.text is changed`) ||
			!strings.Contains(ready.Message, `"fighter"`) || !strings.HasPrefix(ready.Message, "content: ConfigMap ") {
			return fmt.Errorf("the condition is %v", ready)
		}
		return nil
	})
	began := time.Now()
	bounded := writes(proxy)
	a.wait("v1", "ConfigMap", "a", func(*unstructured.Unstructured) error {
		if time.Since(began) < 5*time.Second {
			return fmt.Errorf("the writes are still counted")
		}
		return nil
	})
	during := writes(proxy) - bounded
	stop()
	n := <-fights
	t.Logf("%d changes by the other client, %d writes until the condition, %d in the five seconds after it", n,
		bounded-before, during)
	if during > 5 {
		t.Errorf("%d writes in five seconds", during)
	}
	a.wait("GROUP/v1", "Page", "a", is("Ready", "True"))
	a.wait("v1", "ConfigMap", "a", has("x", "data", "text"))
}
