//go:build long

package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Anyone can create objects that look like children of an instance. Their number and size do not matter when the
// instance is deleted, neither in the namespace of the instance nor in others.
func TestMemoryLimit_ForgedChildrenOfADeletedInstance(t *testing.T) {
	const maxAnonymous = 100 << 20
	a := newAPI(t)
	limit := newMemoryLimit(t, shippedLimit)
	if limit.cgroup == "" {
		t.Fatal("this test cannot create a cgroup, which it needs to limit and measure the memory")
	}
	p := startCommand(t, limit.command(replicaArgs(t, a.cluster.Kubeconfig(), "--leader-elect=false")...))
	p.waitReady()
	near, far := a.addNamespace(a.namespace+"-near"), a.addNamespace(a.namespace+"-far")
	a.apply(making("Spread", `{apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${self.metadata.name}", namespace: "${self.spec.a}"}}`, "  allowedNamespaces: ['*']"))
	a.apply(fmt.Sprintf("{apiVersion: GROUP/v1, kind: Spread, metadata: {name: s}, spec: {a: %q}}", near))
	a.wait("GROUP/v1", "Spread", "s", p.whileRunning(is("Ready", "True")))
	instance, err := a.get("GROUP/v1", "Spread", "s")
	if err != nil {
		t.Fatal(err)
	}
	child, err := a.get("v1", "ConfigMap", near+"/s")
	if err != nil {
		t.Fatal(err)
	}

	forge := func(namespace string, n int, data map[string]any, as func(forged *unstructured.Unstructured)) {
		forged := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "data": data}}
		forged.SetNamespace(namespace)
		forged.SetName(fmt.Sprint("forged-", n))
		as(forged)
		if _, err := a.client(forged).Create(t.Context(), forged, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	large := map[string]any{"large": strings.Repeat("x", 1_000_000)}
	for n := range 120 {
		forge(far, n, large, func(forged *unstructured.Unstructured) { forged.SetLabels(child.GetLabels()) })
	}
	dense := map[string]string{"platform.example.com/parent": string(instance.GetUID())}
	for n := range 2_000 {
		dense[fmt.Sprint("k", n)] = ""
	}
	for n := range 300 {
		forge(a.namespace, n, nil, func(forged *unstructured.Unstructured) {
			forged.SetLabels(dense)
			forged.SetAnnotations(child.GetAnnotations())
			forged.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(instance, instance.GroupVersionKind())})
		})
	}

	a.delete("GROUP/v1", "Spread", "s")
	var peak int64
	check := p.whileRunning(func(now *unstructured.Unstructured) error {
		peak = max(peak, limit.anonymous())
		return fmt.Errorf("the instance still exists: %v", conditions(now))
	})
	eventually(t, func() error {
		now, err := a.get("GROUP/v1", "Spread", "s")
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, check(now))
	})
	a.waitGone("v1", "ConfigMap", near+"/s")
	t.Logf("%d MiB of anonymous memory at most", peak>>20)
	limit.logPeak("total")
	if peak > maxAnonymous {
		t.Errorf("the forged children increased the anonymous memory to %d MiB", peak>>20)
	}
}
