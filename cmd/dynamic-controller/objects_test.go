package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/dynamic-controller/engine/test/cluster"
)

// api is the API server as an administrator uses it, with a group for kinds and a namespace of the test's own.
type api struct {
	*testing.T
	cluster *cluster.Cluster
	dynamic dynamic.Interface
	crds    clientset.Interface
	kube    kubernetes.Interface
	group   string
	// namespace is where the test's objects are.
	namespace string
}

func newAPI(t *testing.T) *api {
	t.Helper()
	c := shared.Cluster(t)
	dynamicClient, err1 := dynamic.NewForConfig(c.Config())
	crds, err2 := clientset.NewForConfig(c.Config())
	kube, err3 := kubernetes.NewForConfig(c.Config())
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			t.Fatal(err)
		}
	}
	a := &api{T: t, cluster: c, dynamic: dynamicClient, crds: crds, kube: kube, namespace: "test-" + utilrand.String(6)}
	a.group = a.namespace + ".example.com"
	platform := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: platformNamespace}}
	if _, err := kube.CoreV1().Namespaces().Create(t.Context(), platform, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: a.namespace}}
	if _, err := kube.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The garbage collector does not find out whose a child was whose type has gone: it goes with the namespace.
	t.Cleanup(func() {
		if err := kube.CoreV1().Namespaces().Delete(context.WithoutCancel(t.Context()), a.namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return a
}

// read makes an object of YAML, in which GROUP stands for the test's group. What has no namespace and is of a kind that
// has, as all but Blueprints and CustomResourceDefinitions here, is in the test's own.
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
	case "Blueprint", "CustomResourceDefinition", "Namespace", "ClusterRole":
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

// tryApply applies the object once.
func (a *api) tryApply(text string) (*unstructured.Unstructured, error) {
	a.Helper()
	obj := a.read(text)
	now, err := a.client(obj).Apply(a.Context(), obj.GetName(), obj, metav1.ApplyOptions{FieldManager: "test", Force: true})
	if err == nil && (obj.GetKind() == "Blueprint" || obj.GetKind() == "CustomResourceDefinition") {
		a.Cleanup(func() { a.clear(obj) })
	}
	return now, err
}

// apply applies the object, as soon as its type is there.
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

// wait waits until there is an object that check finds nothing wrong with.
func (a *api) wait(apiVersion, kind, name string, check func(*unstructured.Unstructured) error) (obj *unstructured.Unstructured) {
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

// waitGone waits until there is no such object.
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
		return fmt.Errorf("%s %s is still there, with status %v and metadata %v", kind, name, obj.Object["status"], obj.Object["metadata"])
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

// clear deletes what a test has left, whether somebody lets it go or not.
func (a *api) clear(obj *unstructured.Unstructured) {
	a.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	free := []byte(`{"metadata":{"finalizers":null}}`)
	_, _ = a.client(obj).Patch(ctx, obj.GetName(), types.MergePatchType, free, metav1.PatchOptions{})
	_ = a.client(obj).Delete(ctx, obj.GetName(), metav1.DeleteOptions{})
	if obj.GetKind() == "Blueprint" {
		a.clearRevisions(ctx, obj.GetName())
		crds, err := a.crds.ApiextensionsV1().CustomResourceDefinitions().List(ctx, metav1.ListOptions{})
		if err != nil {
			a.Error(err)
		}
		for _, crd := range crds.Items {
			if strings.HasSuffix(crd.Name, a.group) {
				_ = a.crds.ApiextensionsV1().CustomResourceDefinitions().Delete(ctx, crd.Name, metav1.DeleteOptions{})
			}
		}
	}
}

// clearRevisions deletes what is stored of a Blueprint.
func (a *api) clearRevisions(ctx context.Context, blueprintName string) {
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

// is wants a condition to have the status, of the object's generation, and its message to have the words.
func is(kind, status string, words ...string) func(*unstructured.Unstructured) error {
	return func(obj *unstructured.Unstructured) error {
		for _, c := range conditions(obj) {
			if c.Type != kind {
				continue
			}
			if string(c.Status) != status || c.ObservedGeneration != obj.GetGeneration() {
				return fmt.Errorf("%s is %s at generation %d of %d (%s: %s), want %s", kind, c.Status, c.ObservedGeneration, obj.GetGeneration(), c.Reason, c.Message, status)
			}
			for _, word := range words {
				if !strings.Contains(c.Reason+": "+c.Message, word) {
					return fmt.Errorf("%s is %s for %s: %s, want %q", kind, c.Status, c.Reason, c.Message, word)
				}
			}
			return nil
		}
		return fmt.Errorf("there is no condition %s", kind)
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

// has wants a field to have a value.
func has(value any, fields ...string) func(*unstructured.Unstructured) error {
	return func(obj *unstructured.Unstructured) error {
		got, _, _ := unstructured.NestedFieldNoCopy(obj.Object, fields...)
		if got != value {
			return fmt.Errorf("%s is %v, want %v", strings.Join(fields, "."), got, value)
		}
		return nil
	}
}

func counted(total, ready, failing int64) func(*unstructured.Unstructured) error {
	return all(has(total, "status", "instances", "total"), has(ready, "status", "instances", "ready"), has(failing, "status", "instances", "failing"))
}

// quiet returns once nothing has been written for a while, as count tells.
func quiet(t *testing.T, count func() int) {
	t.Helper()
	const still = 3 * time.Second
	last, since := count(), time.Now()
	eventually(t, func() error {
		if now := count(); now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) < still {
			return fmt.Errorf("there are %d writes, the last within %s", last, still)
		}
		return nil
	})
}
