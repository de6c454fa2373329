package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/dynamic-controller/engine/internal/testkit"
	"github.com/dynamic-controller/engine/test/cluster"
)

// api gives a test administrative access to an API server that no other test uses at the same time. The test has its
// own API group and namespace.
type api struct {
	*testing.T
	cluster *cluster.Cluster
	dynamic dynamic.Interface // lacks administrative access if the method as returned this api
	admin   dynamic.Interface
	crds    clientset.Interface
	kube    kubernetes.Interface
	group   string
	// namespace is the namespace of the test's objects.
	namespace string
}

func newAPI(t *testing.T) *api {
	t.Helper()
	c := takeCluster(t)
	dynamicClient, err1 := dynamic.NewForConfig(c.Config())
	crds, err2 := clientset.NewForConfig(c.Config())
	kube, err3 := kubernetes.NewForConfig(c.Config())
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			t.Fatal(err)
		}
	}
	a := &api{
		T: t, cluster: c, dynamic: dynamicClient, admin: dynamicClient, crds: crds, kube: kube,
		namespace: "test-" + utilrand.String(6),
	}
	a.group = a.namespace + ".example.com"
	platform := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: platformNamespace}}
	if _, err := kube.CoreV1().Namespaces().Create(t.Context(), platform, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: a.namespace}}
	if _, err := kube.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The garbage collector does not delete children if the type of their owner was deleted first. They are deleted
	// together with the namespace.
	t.Cleanup(func() {
		if err := kube.CoreV1().Namespaces().Delete(context.WithoutCancel(t.Context()), a.namespace,
			metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return a
}

// addNamespace creates a namespace and deletes it when the test ends.
func (a *api) addNamespace(name string) string {
	a.Helper()
	namespaces := a.kube.CoreV1().Namespaces()
	_, err := namespaces.Create(a.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	if err != nil {
		a.Fatal(err)
	}
	a.Cleanup(func() {
		err := namespaces.Delete(context.WithoutCancel(a.Context()), name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			a.Error(err)
		}
	})
	return name
}

// read parses an object. It replaces GROUP with the test's group.
func (a *api) read(text string) *unstructured.Unstructured {
	a.Helper()
	obj := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(text, "GROUP", a.group)), &obj.Object); err != nil {
		a.Fatal(err)
	}
	return obj
}

func (a *api) client(obj *unstructured.Unstructured) dynamic.ResourceInterface {
	gvr, _ := meta.UnsafeGuessKindToResource(obj.GroupVersionKind())
	switch obj.GetKind() {
	case "Blueprint", "CustomResourceDefinition", "Namespace", "ClusterRole", "Tenant":
		return a.dynamic.Resource(gvr)
	}
	if strings.HasPrefix(obj.GetKind(), "Cluster") {
		return a.dynamic.Resource(gvr)
	}
	namespace := obj.GetNamespace()
	if namespace == "" {
		namespace = a.namespace
	}
	return a.dynamic.Resource(gvr).Namespace(namespace)
}

// tryApply applies an object once. Namespaced objects without a namespace are created in the test's namespace.
func (a *api) tryApply(text string) (*unstructured.Unstructured, error) {
	a.Helper()
	obj := a.read(text)
	now, err := a.client(obj).Apply(a.Context(), obj.GetName(), obj,
		metav1.ApplyOptions{FieldManager: "test", Force: true})
	if err == nil && (obj.GetKind() == "Blueprint" || obj.GetKind() == "CustomResourceDefinition") {
		a.Cleanup(func() { a.cleanUp(obj) })
	}
	return now, err
}

// apply applies an object. It retries until the type is served.
func (a *api) apply(text string) (now *unstructured.Unstructured) {
	a.Helper()
	eventually(a.T, func() (err error) {
		now, err = a.tryApply(text)
		return err
	})
	return now
}

func (a *api) get(apiVersion, kind, name string) (*unstructured.Unstructured, error) {
	obj := &unstructured.Unstructured{}
	obj.SetAPIVersion(strings.ReplaceAll(apiVersion, "GROUP", a.group))
	obj.SetKind(kind)
	if namespace, rest, is := strings.Cut(name, "/"); is {
		obj.SetNamespace(namespace)
		name = rest
	}
	return a.client(obj).Get(context.WithoutCancel(a.Context()), name, metav1.GetOptions{})
}

// wait waits until the object exists and check returns nil.
func (a *api) wait(apiVersion, kind, name string,
	check func(*unstructured.Unstructured) error) (obj *unstructured.Unstructured) {
	a.Helper()
	eventually(a.T, func() (err error) {
		if obj, err = a.get(apiVersion, kind, name); err != nil {
			return err
		}
		if err := check(obj); err != nil {
			return fmt.Errorf("%s %s: %w; its status is %v", kind, name, err, obj.Object["status"])
		}
		return nil
	})
	return obj
}

// waitGone waits until the object no longer exists.
func (a *api) waitGone(apiVersion, kind, name string) {
	a.Helper()
	eventually(a.T, func() error {
		obj, err := a.get(apiVersion, kind, name)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return fmt.Errorf("%s %s still exists, with status %v and metadata %v", kind, name, obj.Object["status"],
			obj.Object["metadata"])
	})
}

func (a *api) delete(apiVersion, kind, name string) {
	a.Helper()
	obj, err := a.get(apiVersion, kind, name)
	if err == nil {
		err = a.client(obj).Delete(context.WithoutCancel(a.Context()), obj.GetName(), metav1.DeleteOptions{})
	}
	if err != nil {
		a.Fatal(err)
	}
}

// cleanUp deletes an object of the test regardless of its finalizers. For a Blueprint, it also deletes the type.
func (a *api) cleanUp(obj *unstructured.Unstructured) {
	a.Helper()
	admin := *a
	admin.dynamic = a.admin
	a = &admin
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	a.release(ctx, obj)
	if obj.GetKind() == "Blueprint" {
		a.deleteRevisions(ctx, obj.GetName())
		crds, err := a.crds.ApiextensionsV1().CustomResourceDefinitions().List(ctx, metav1.ListOptions{})
		if err != nil {
			a.Error(err)
		}
		for _, crd := range crds.Items {
			if strings.HasSuffix(crd.Name, a.group) {
				a.releaseInstances(ctx, &crd)
				_ = a.crds.ApiextensionsV1().CustomResourceDefinitions().Delete(ctx, crd.Name, metav1.DeleteOptions{})
			}
		}
	}
}

// release deletes an object regardless of its finalizers. It waits until a Blueprint no longer exists, so that the next
// test on the cluster does not find it.
func (a *api) release(ctx context.Context, obj *unstructured.Unstructured) {
	a.Helper()
	err := testkit.Poll(ctx, func(ctx context.Context) error {
		err := a.client(obj).Delete(ctx, obj.GetName(), metav1.DeleteOptions{})
		_, _ = a.client(obj).Patch(ctx, obj.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
			metav1.PatchOptions{})
		if obj.GetKind() != "Blueprint" || apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
			return nil
		}
		return errors.Join(errors.New("the object still existed"), err)
	})
	if err != nil {
		a.Errorf("%s %s remains: %v", obj.GetKind(), obj.GetName(), err)
	}
}

// releaseInstances deletes all objects of a type regardless of their finalizers. Otherwise, a remaining object would
// block one of the five workers of the API server that delete CustomResourceDefinitions, for a minute at a time.
func (a *api) releaseInstances(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) {
	a.Helper()
	all := a.dynamic.Resource(schema.GroupVersionResource{
		Group: crd.Spec.Group, Version: crd.Spec.Versions[0].Name, Resource: crd.Spec.Names.Plural,
	})
	err := testkit.Poll(ctx, func(ctx context.Context) error {
		list, err := all.List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil // the type is not served
		}
		for _, item := range list.Items {
			object := all.Namespace(item.GetNamespace())
			_ = object.Delete(ctx, item.GetName(), metav1.DeleteOptions{})
			_, _ = object.Patch(ctx, item.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
				metav1.PatchOptions{})
		}
		if n := len(list.Items); n > 0 {
			return fmt.Errorf("%d objects", n)
		}
		return nil
	})
	if err != nil {
		a.Errorf("objects of %s remain: %v", crd.Name, err)
	}
}

// deleteRevisions deletes the stored revisions of a Blueprint.
func (a *api) deleteRevisions(ctx context.Context, blueprintName string) {
	a.Helper()
	revisions := a.kube.AppsV1().ControllerRevisions(platformNamespace)
	all, err := revisions.List(ctx, metav1.ListOptions{LabelSelector: "platform.example.com/blueprint"})
	if err != nil {
		a.Error(err)
		return
	}
	for _, r := range all.Items {
		if strings.HasPrefix(r.Name, blueprintName+"-") {
			_ = revisions.Delete(ctx, r.Name, metav1.DeleteOptions{})
		}
	}
}

// is checks that a condition has the given status and the object's generation, and that its reason and message contain
// the words.
func is(kind, status string, words ...string) func(*unstructured.Unstructured) error {
	return func(obj *unstructured.Unstructured) error {
		for _, c := range conditions(obj) {
			if c.Type != kind {
				continue
			}
			if string(c.Status) != status || c.ObservedGeneration != obj.GetGeneration() {
				return fmt.Errorf("%s is %s for generation %d of %d (%s: %s), want %s", kind, c.Status, c.ObservedGeneration,
					obj.GetGeneration(), c.Reason, c.Message, status)
			}
			for _, word := range words {
				if !strings.Contains(c.Reason+": "+c.Message, word) {
					return fmt.Errorf("%s is %s for %s: %s, want %q", kind, c.Status, c.Reason, c.Message, word)
				}
			}
			return nil
		}
		return fmt.Errorf("condition %s is missing", kind)
	}
}

func all(checks ...func(*unstructured.Unstructured) error) func(*unstructured.Unstructured) error {
	return func(obj *unstructured.Unstructured) error {
		var errs []error
		for _, check := range checks {
			errs = append(errs, check(obj))
		}
		return errors.Join(errs...)
	}
}

func conditions(obj *unstructured.Unstructured) []metav1.Condition {
	var status struct {
		Conditions []metav1.Condition `json:"conditions"`
	}
	if content, ok := obj.Object["status"].(map[string]any); ok {
		_ = runtime.DefaultUnstructuredConverter.FromUnstructured(content, &status)
	}
	return status.Conditions
}

// has checks the value of a field.
func has(value any, fields ...string) func(*unstructured.Unstructured) error {
	return func(obj *unstructured.Unstructured) error {
		got, _, _ := unstructured.NestedFieldNoCopy(obj.Object, fields...)
		if got != value {
			return fmt.Errorf("%s is %v, want %v", strings.Join(fields, "."), got, value)
		}
		return nil
	}
}

func hasCounts(total, ready, failing int64) func(*unstructured.Unstructured) error {
	return all(has(total, "status", "instances", "total"), has(ready, "status", "instances", "ready"),
		has(failing, "status", "instances", "failing"))
}

// waitUntilQuiet waits until count has returned the same number for a while.
func waitUntilQuiet(t *testing.T, count func() int) {
	t.Helper()
	const quiet = 3 * time.Second
	last, since := count(), time.Now()
	eventually(t, func() error {
		if now := count(); now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) < quiet {
			return fmt.Errorf("got %d requests, some of them within the last %s", last, quiet)
		}
		return nil
	})
}
