package main

import (
	"encoding/json"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// extraResource is a resource that is not in the author's Blueprint.
const extraResource = `
    - id: forged
      template:
        apiVersion: v1
        kind: Secret
        metadata: {name: "${self.metadata.name}-forged"}
`

func TestAttack_ManipulatedStatusIsNotServed(t *testing.T) {
	a := newAPI(t)
	kubeconfig, proxy := a.proxied()
	first := startServing(t, kubeconfig)
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	a.apply(strings.ReplaceAll(websites, "${self.spec.text}", "${self.spec.txt}"))
	a.waitBlueprint("websites", is("Accepted", "False"), is("Serving", "True", "generation 1 is served"))
	first.kill()

	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		"observedGeneration": 2,
		"served":             map[string]any{"generation": 1, "spec": a.read(websites + extraResource).Object["spec"]},
	}})
	if err != nil {
		t.Fatal(err)
	}
	attacker := a.as("attacker", rule("patch", "platform.example.com", "blueprints/status"))
	if _, err := attacker.dynamic.Resource(blueprint.GroupVersionResource).Patch(t.Context(), "websites."+a.group,
		types.MergePatchType, patch,
		metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}

	startServing(t, kubeconfig)
	a.apply(strings.ReplaceAll(flowers, "roses", "tulips"))
	a.wait("v1", "ConfigMap", "flowers-page", has("tulips", "data", "text"))
	waitUntilQuiet(t, func() int { return writes(proxy) })
	if secret, err := a.get("v1", "Secret", "flowers-forged"); !apierrors.IsNotFound(err) {
		t.Errorf("the platform created a Secret from a manipulated status: %v, %v", secret, err)
	}
	a.waitBlueprint("websites", is("Accepted", "False", "unknown field \"txt\""),
		is("Serving", "True", "generation 1 is served"))
}
