package kind

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/test/cluster"
)

const (
	namespace = "dynamic-controller-system"
	name      = "dynamic-controller"
	timeout   = time.Minute
)

// base is the kustomization on which the one in this directory is based.
const base = "../../install/kustomize"

// kustomization contains the fields that the tests support. The tests in the install module use kustomize.
type kustomization struct {
	metav1.TypeMeta `json:",inline"`
	Resources       []string
	Images          []struct{ Name, NewTag string }
	Patches         []struct {
		Patch  string
		Target struct{ Group, Version, Kind, Name string }
	}
}

// manifests returns the resources of the kustomization, and the role of the demonstration.
func manifests(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	return append(kustomized(t), documents(t, "demo-role.yaml")...)
}

// kustomized returns the resources of the kustomization with its image tags and its patches applied.
func kustomized(t *testing.T) (all []*unstructured.Unstructured) {
	t.Helper()
	k, bases := readKustomization(t, "."), readKustomization(t, base)
	if !slices.Equal(k.Resources, []string{base}) || len(bases.Images)+len(bases.Patches) > 0 {
		t.Fatalf("got the kustomizations %+v and %+v", k, bases)
	}
	for _, file := range bases.Resources {
		all = append(all, documents(t, filepath.Join(base, file))...)
	}
	for _, obj := range all {
		if obj.GetKind() == "Deployment" {
			for _, p := range k.Patches {
				applyPatch(t, obj, p.Patch)
			}
			k.setTags(t, obj)
		}
	}
	return all
}

func readKustomization(t *testing.T, dir string) (k kustomization) {
	t.Helper()
	if err := yaml.UnmarshalStrict(read(t, filepath.Join(dir, "kustomization.yaml")), &k); err != nil {
		t.Fatal(err)
	}
	for _, p := range k.Patches {
		if p.Target.Kind != "Deployment" || p.Target.Name != name {
			t.Fatalf("the tests do not support the patch %+v", p)
		}
	}
	return k
}

// applyPatch applies a JSON patch.
func applyPatch(t *testing.T, obj *unstructured.Unstructured, text string) {
	t.Helper()
	data, err1 := yaml.ToJSON([]byte(text))
	patch, err2 := jsonpatch.DecodePatch(data)
	before, err3 := obj.MarshalJSON()
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	after, err := patch.Apply(before)
	if err == nil {
		err = obj.UnmarshalJSON(after)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// setTags sets the tags of the images of a Deployment.
func (k kustomization) setTags(t *testing.T, obj *unstructured.Unstructured) {
	t.Helper()
	path := []string{"spec", "template", "spec", "containers"}
	containers, _, err := unstructured.NestedSlice(obj.Object, path...)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range containers {
		c := c.(map[string]any)
		repository, _, _ := strings.Cut(c["image"].(string), ":")
		for _, image := range k.Images {
			if repository == image.Name {
				c["image"] = image.Name + ":" + image.NewTag
			}
		}
	}
	if err := unstructured.SetNestedSlice(obj.Object, containers, path...); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func documents(t *testing.T, file string) (all []*unstructured.Unstructured) {
	t.Helper()
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(read(t, file)), 4096)
	for {
		obj := &unstructured.Unstructured{}
		err := decoder.Decode(&obj.Object)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if len(obj.Object) > 0 {
			all = append(all, obj)
		}
	}
}

func typed[T any](t *testing.T, obj *unstructured.Unstructured) *T {
	t.Helper()
	v := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(obj.Object, v, true); err != nil {
		t.Fatalf("%s %s: %v", obj.GetKind(), obj.GetName(), err)
	}
	return v
}

func only[T any](t *testing.T, kind string) *T {
	t.Helper()
	var found []*T
	for _, obj := range manifests(t) {
		if obj.GetKind() == kind {
			found = append(found, typed[T](t, obj))
		}
	}
	if len(found) != 1 {
		t.Fatalf("got %d manifests of the kind %s, want one", len(found), kind)
	}
	return found[0]
}

// api contains administrator clients.
type api struct {
	*testing.T
	cluster *cluster.Cluster
	dynamic dynamic.Interface
	kube    kubernetes.Interface
}

func newAPI(t *testing.T) *api {
	t.Helper()
	c := shared.Cluster(t)
	dynamicClient, err1 := dynamic.NewForConfig(c.Config())
	kube, err2 := kubernetes.NewForConfig(c.Config())
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return &api{T: t, cluster: c, dynamic: dynamicClient, kube: kube}
}

// apply applies a manifest like kubectl apply --server-side.
func (a *api) apply(obj *unstructured.Unstructured) error {
	client, err := a.clientFor(obj)
	if err != nil {
		return err
	}
	data, err := obj.MarshalJSON()
	if err != nil {
		return err
	}
	_, err = client.Patch(a.Context(), obj.GetName(), types.ApplyPatchType, data,
		metav1.PatchOptions{FieldManager: "test", FieldValidation: metav1.FieldValidationStrict})
	return err
}

func (a *api) clientFor(obj *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	groups, err := restmapper.GetAPIGroupResources(a.kube.Discovery())
	if err != nil {
		return nil, err
	}
	gvk := obj.GroupVersionKind()
	mapping, err := restmapper.NewDiscoveryRESTMapper(groups).RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, err
	}
	if obj.GetNamespace() == "" {
		return a.dynamic.Resource(mapping.Resource), nil
	}
	return a.dynamic.Resource(mapping.Resource).Namespace(obj.GetNamespace()), nil
}

// applyAll applies all manifests and deletes them when the test ends.
func (a *api) applyAll() {
	a.Helper()
	a.applyObjects(manifests(a.T))
}

func (a *api) applyObjects(objects []*unstructured.Unstructured) {
	a.Helper()
	for _, obj := range objects {
		if err := a.apply(obj); err != nil {
			a.Fatalf("%s %s: %v", obj.GetKind(), obj.GetName(), err)
		}
		a.Cleanup(func() {
			client, err := a.clientFor(obj)
			if err == nil {
				err = client.Delete(context.WithoutCancel(a.Context()), obj.GetName(), metav1.DeleteOptions{})
			}
			if err != nil && !apierrors.IsNotFound(err) {
				a.Error(err)
			}
		})
	}
}

// in returns a copy for a subtest.
func (a *api) in(t *testing.T) *api {
	within := *a
	within.T = t
	return &within
}

func TestManifests_OnAPIServer(t *testing.T) {
	a := newAPI(t)
	a.applyAll()
	t.Run("every manifest is accepted", func(t *testing.T) { a.in(t).testManifestsAreAccepted() })
	t.Run("the Pod meets the restricted level", func(t *testing.T) { a.in(t).testPodIsRestricted() })
	a.waitForPermissions()
	t.Run("a tenant grants access to one ServiceAccount", func(t *testing.T) { a.in(t).testTenant() })
	t.Run("the demonstration uses all permissions", func(t *testing.T) { a.in(t).testPermissions() })
	t.Run("the probes of the Deployment succeed", func(t *testing.T) { a.in(t).testProbes() })
	t.Run("the webhook refuses an invalid Blueprint", func(t *testing.T) { a.in(t).testWebhook() })
	t.Run("tenants cannot change the webhook", func(t *testing.T) { a.in(t).testWebhookIsProtected() })
	t.Run("the platform is limited to a namespace", func(t *testing.T) { a.in(t).testNamespaces() })
}

func (a *api) testManifestsAreAccepted() {
	for _, obj := range manifests(a.T) {
		if err := a.apply(obj); err != nil { // applying a manifest again must succeed
			a.Errorf("%s %s: %v", obj.GetKind(), obj.GetName(), err)
		}
		wrong := obj.DeepCopy()
		wrong.SetName("wrong")
		wrong.Object["specs"] = map[string]any{}
		if err := a.apply(wrong); err == nil || !strings.Contains(err.Error(), "specs") {
			a.Errorf("got the error %v for a %s with an unknown field", err, obj.GetKind())
		}
	}
}

func (a *api) testPodIsRestricted() {
	template := only[appsv1.Deployment](a.T, "Deployment").Spec.Template
	create := func(spec corev1.PodSpec) error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "dry", Labels: template.Labels}, Spec: spec}
		_, err := a.kube.CoreV1().Pods(namespace).Create(a.Context(), pod, metav1.CreateOptions{
			DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
		return err
	}
	if err := create(template.Spec); err != nil {
		a.Error(err)
	}

	ofPod, ofContainer := *template.Spec.DeepCopy(), *template.Spec.DeepCopy()
	ofPod.SecurityContext = nil
	ofContainer.Containers[0].SecurityContext = nil
	for name, spec := range map[string]corev1.PodSpec{"of the Pod": ofPod, "of the container": ofContainer} {
		const want = `violates PodSecurity "restricted:latest"`
		if err := create(spec); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
			a.Errorf("without the security context %s: got the error %v", name, err)
		}
	}
}

func TestDeployment_MatchesThePlatform(t *testing.T) {
	d := only[appsv1.Deployment](t, "Deployment")
	if *d.Spec.Replicas != 2 {
		t.Errorf("got %d replicas", *d.Spec.Replicas)
	}
	pod := d.Spec.Template.Spec
	container := pod.Containers[0]
	// The replica waits 5 s longer than the engine, and then takes at most --leader-elect-renew-deadline to release the
	// lease.
	const release = 15 * time.Second
	grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second
	if shutdown := dynamiccontroller.DefaultConfig().ShutdownTimeout + release; grace <= shutdown {
		t.Errorf("the termination grace period is %s, want more than %s", grace, shutdown)
	}
	if container.SecurityContext.ReadOnlyRootFilesystem == nil || !*container.SecurityContext.ReadOnlyRootFilesystem {
		t.Error("the root filesystem is writable")
	}
	fields := map[string]string{}
	for _, e := range container.Env {
		fields[e.Name] = e.ValueFrom.FieldRef.FieldPath
	}
	if fields["POD_NAME"] != "metadata.name" || fields["POD_NAMESPACE"] != "metadata.namespace" {
		t.Errorf("the environment has %v", fields)
	}
	if len(container.Resources.Requests) == 0 || container.Resources.Limits.Memory().IsZero() {
		t.Errorf("got the resources %v", container.Resources)
	}
	script := string(read(t, "with-cluster.sh"))
	if container.Image != "dynamic-controller:kind" || !strings.Contains(script, "image="+container.Image+"\n") {
		t.Errorf("the image is %s, and with-cluster.sh loads another one", container.Image)
	}
}

func TestKindCluster_HasOneWorkerPerReplica(t *testing.T) {
	var c struct {
		metav1.TypeMeta `json:",inline"`
		Nodes           []struct{ Role string }
	}
	if err := yaml.UnmarshalStrict(read(t, "cluster.yaml"), &c); err != nil {
		t.Fatal(err)
	}
	workers := 0
	for _, n := range c.Nodes {
		if n.Role == "worker" {
			workers++
		}
	}
	if want := fmt.Sprint(c.Kind, " ", c.APIVersion); want != "Cluster kind.x-k8s.io/v1alpha4" || workers != 2 {
		t.Errorf("got %s with %d workers", want, workers)
	}
}
