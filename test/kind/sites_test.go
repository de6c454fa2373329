//go:build kind

package kind

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var sites = schema.GroupVersionResource{Group: "kind.example.com", Version: "v1", Resource: "sites"}

// buildWeb builds the image of the workload and loads it onto the nodes.
func (e *env) buildWeb() {
	e.Helper()
	const (
		image      = "dynamic-controller-test-web:kind"
		dockerfile = "FROM scratch\nCOPY web /web\nUSER 65532:65532\nENTRYPOINT [\"/web\"]\n"
	)
	dir := e.TempDir()
	e.Setenv("CGO_ENABLED", "0")
	e.run("go", "build", "-o", filepath.Join(dir, "web"), "./web")
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(dockerfile), 0o600); err != nil {
		e.Fatal(err)
	}
	e.run("docker", "build", "--quiet", "--tag", image, dir)
	e.Cleanup(func() { _, _ = runCommand(context.WithoutCancel(e.Context()), "docker", "rmi", image) })
	e.run("kind", "load", "docker-image", image, "--name", os.Getenv("KIND_NETWORK"))
}

// The test's Blueprint creates two Deployments. The Pods of one Deployment become ready only when they can reach the
// other Deployment through its Service.
func TestBlueprint_WorkloadsReachEachOther(t *testing.T) {
	e := newEnv(t)
	e.buildWeb()
	began := time.Now()
	e.run("kubectl", "apply", "--filename", "testdata/sites.yaml")
	t.Cleanup(func() {
		// Delete the ClusterRole last, because the platform needs it to delete the objects of the Blueprint.
		ctx := context.WithoutCancel(t.Context())
		for _, object := range []string{"blueprint/sites", "clusterrole/dynamic-controller-sites"} {
			if out, err := runCommand(ctx, "kubectl", "delete", object, "--timeout", "2m"); err != nil {
				t.Errorf("delete %s: %v: %s", object, err, out)
			}
		}
	})
	e.run("kubectl", "wait", "--for=condition=Serving", "blueprint/sites", "--timeout", "2m")
	t.Logf("the Blueprint is served %s after it was applied with its ClusterRole", time.Since(began))

	site := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": sites.GroupVersion().String(), "kind": "Site",
		"metadata": map[string]any{"name": "shop"},
		"spec":     map[string]any{"replicas": int64(3)},
	}}
	began = time.Now()
	client := e.dynamic.Resource(sites).Namespace(metav1.NamespaceDefault)
	if _, err := client.Create(t.Context(), site, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.run("kubectl", "wait", "--for=condition=Ready", "sites.kind.example.com/shop", "--timeout", "2m")
	took := time.Since(began)
	pods, err := e.kube.CoreV1().Pods(metav1.NamespaceDefault).List(t.Context(),
		metav1.ListOptions{LabelSelector: "site=shop"})
	if err != nil {
		t.Fatal(err)
	}
	nodes := map[string]int{}
	for _, pod := range pods.Items {
		if !isReady(&pod) {
			t.Errorf("the Site is Ready, but the Pod %s is not", pod.Name)
		}
		nodes[pod.Spec.NodeName]++
	}
	if len(pods.Items) != 6 || len(nodes) < 2 {
		t.Errorf("got %d Pods on nodes %v, want 6 Pods on at least 2 nodes", len(pods.Items), nodes)
	}
	t.Logf("the Site is Ready %s after it was created, with Pods on %v", took, nodes)

	// The platform reverts changes to the Deployment.
	e.run("kubectl", "scale", "deployment/shop-server", "--replicas", "0")
	e.eventually(timeout, "the servers are running again", func(ctx context.Context) error {
		_, err := runCommand(ctx, "kubectl", "rollout", "status", "deployment/shop-server", "--timeout", "10s")
		return err
	})
	out := e.run("kubectl", "get", "deployment", "shop-server", "--output", "jsonpath={.spec.replicas}")
	if strings.TrimSpace(out) != "3" {
		t.Errorf("got %s replicas of the Deployment, want 3", out)
	}
}
