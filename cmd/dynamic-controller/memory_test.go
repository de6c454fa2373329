package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
)

// shippedLimit is the memory limit of install/kustomize/deployment.yaml.
const shippedLimit = 256 << 20

// whileRunning returns a check that ends the test if the process exits.
func (p *process) whileRunning(check func(*unstructured.Unstructured) error) func(*unstructured.Unstructured) error {
	return func(obj *unstructured.Unstructured) error {
		select {
		case <-p.exited:
			p.Fatalf("the process has exited: %v", p.err)
		default:
		}
		return check(obj)
	}
}

// createLargeConfigMaps creates ConfigMaps of 1 MB, nearly the maximum size, in the test's namespace. It uses the token
// of a tenant that has no other permissions. fill adds the content. The names begin with prefix.
func (a *api) createLargeConfigMaps(prefix string, count int, fill func(*unstructured.Unstructured)) {
	a.Helper()
	kubeconfig := a.account(a.namespace+"-"+prefix, rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"create"},
	})
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		a.Fatal(err)
	}
	cfg.QPS = -1
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		a.Fatal(err)
	}
	const name = "large-NUMBER"
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}
	object.SetName(name)
	fill(object)
	// Encode the objects only once, because this is slow with the race detector.
	encoded, err := object.MarshalJSON()
	if err != nil {
		a.Fatal(err)
	}
	errs := make([]error, count)
	slots := make(chan struct{}, 8)
	var all sync.WaitGroup
	for i := range count {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			body := bytes.Replace(encoded, []byte(name), fmt.Append(nil, prefix, "-", i), 1)
			errs[i] = retry.OnError(retry.DefaultBackoff, isTimeout, func() error {
				err := client.CoreV1().RESTClient().Post().Namespace(a.namespace).Resource("configmaps").
					SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body).Do(a.Context()).Error()
				if apierrors.IsAlreadyExists(err) { // created by a request that timed out
					return nil
				}
				return err
			})
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		a.Fatal(err)
	}
}

// isTimeout reports whether an API server or its etcd did not finish a request in time.
func isTimeout(err error) bool {
	return apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || strings.Contains(err.Error(), "request timed out")
}

const megabyte = 1_040_000

// largeContent adds large data to a ConfigMap.
func largeContent(labels map[string]string) func(*unstructured.Unstructured) {
	return func(object *unstructured.Unstructured) {
		object.SetLabels(labels)
		object.Object["data"] = map[string]any{"text": strings.Repeat("a", megabyte)}
	}
}

// largeMetadata adds large labels and a large owner reference to a ConfigMap. The garbage collector ignores the owner,
// because its kind is unknown.
func largeMetadata(parent map[string]string) func(*unstructured.Unstructured) {
	labels := maps.Clone(parent)
	for i := range megabyte / 2 / 200 {
		key := fmt.Sprintf("%s.example.com/platform.example.com-%d", strings.Repeat("a", 60), i)
		labels[key] = strings.Repeat("v", 63)
	}
	return func(object *unstructured.Unstructured) {
		object.SetLabels(labels)
		object.SetOwnerReferences([]metav1.OwnerReference{{
			APIVersion: "unknown.example.com/v1", Kind: "Owner", UID: "1", Controller: ptr.To(true), Name: strings.Repeat("o",
				megabyte/2),
		}})
	}
}

// A tenant cannot exhaust a replica's memory with objects of a child type that have the label of children, also if
// their metadata is large. Others are not watched: see TestWatches_SelectChildren.
func TestMemoryLimit_LargeObjectsOfATenant(t *testing.T) {
	a := newAPI(t)
	limit := newMemoryLimit(t, shippedLimit)
	run := func() *process {
		return startCommand(t, limit.command(replicaArgs(t, a.cluster.Kubeconfig(), "--leader-elect=false")...))
	}
	p := run()
	a.apply(websites)
	a.waitBlueprint("websites", p.whileRunning(is("Serving", "True")))
	const count = 75 // caching those of either kind would exceed the maximum below
	parent := map[string]string{"platform.example.com/parent": "00000000-0000-0000-0000-000000000000"}
	a.createLargeConfigMaps("content", count, largeContent(parent))
	a.createLargeConfigMaps("metadata", count, largeMetadata(parent))
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", p.whileRunning(is("Ready", "True")))
	limit.logPeak("created while running")
	p.kill()
	p = run()
	p.waitReady()
	a.apply(strings.ReplaceAll(flowers, "roses", "tulips"))
	a.wait("v1", "ConfigMap", "flowers-page", p.whileRunning(has("tulips", "data", "text")))
	if peak := limit.logPeak("after a restart"); peak > shippedLimit/2 {
		t.Errorf("a tenant's objects increased the memory to %d MiB", peak>>20)
	}
}

// Watches of child types select objects with the label of children.
func TestWatches_SelectChildren(t *testing.T) {
	a := newAPI(t)
	var mu sync.Mutex // guards selectors
	var selectors []string
	kubeconfig, _ := a.proxied(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			query := r.URL.Query()
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/configmaps") {
				mu.Lock()
				selectors = append(selectors, query.Get("labelSelector"))
				mu.Unlock()
			}
			return next.RoundTrip(r)
		})
	})
	startServing(t, kubeconfig)
	a.apply(websites)
	a.waitBlueprint("websites", is("Serving", "True"))
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	mu.Lock()
	defer mu.Unlock()
	if len(selectors) == 0 {
		t.Error("no ConfigMaps were listed or watched")
	}
	for _, selector := range selectors {
		if !strings.HasPrefix(selector, "platform.example.com/parent") {
			t.Errorf("ConfigMaps were listed or watched with the selector %q", selector)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A child without the label is no longer watched. The platform restores the label.
func TestWatches_RestoreTheLabelOfChildren(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	a.waitBlueprint("websites", is("Serving", "True"))
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	page := a.wait("v1", "ConfigMap", "flowers-page", has("roses", "data", "text"))
	without := []byte(`{"metadata":{"labels":{"platform.example.com/parent":null}},"data":{"text":"weeds"}}`)
	if _, err := a.client(page).Patch(t.Context(), page.GetName(), types.MergePatchType, without,
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	again := a.wait("v1", "ConfigMap", "flowers-page", all(has("roses", "data", "text"),
		has(page.GetLabels()["platform.example.com/parent"], "metadata", "labels", "platform.example.com/parent")))
	if again.GetUID() != page.GetUID() {
		t.Error("the child was replaced")
	}
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
}

// Instances and children that are too large for the cache are reconciled nevertheless.
func TestLargeObjects_AreReconciled(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	a.waitBlueprint("websites", is("Serving", "True"))
	text := func(of string) string { return strings.Repeat(of, 200<<10/len(of)) }
	a.apply(strings.ReplaceAll(flowers, "roses", text("rose ")))
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	page := a.wait("v1", "ConfigMap", "flowers-page", has(strings.TrimSpace(text("rose ")), "data", "text"))
	a.waitBlueprint("websites", hasCounts(1, 1, 0))

	a.apply(strings.ReplaceAll(flowers, "roses", text("lily ")))
	a.wait("v1", "ConfigMap", "flowers-page", has(strings.TrimSpace(text("lily ")), "data", "text"))
	drift := []byte(`{"data":{"text":"` + text("weed ") + `"}}`)
	if _, err := a.client(page).Patch(t.Context(), page.GetName(), types.MergePatchType, drift,
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	a.wait("v1", "ConfigMap", "flowers-page", has(strings.TrimSpace(text("lily ")), "data", "text"))
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))

	a.delete("GROUP/v1", "Website", "flowers")
	a.waitGone("v1", "ConfigMap", "flowers-page")
	a.waitBlueprint("websites", hasCounts(0, 0, 0))
}
