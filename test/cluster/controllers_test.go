package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

var (
	crds = schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}.
		WithResource("customresourcedefinitions")
	widgets   = schema.GroupVersionResource{Group: "test.example.com", Version: "v1", Resource: "widgets"}
	widget    = widgets.GroupVersion().WithKind("Widget")
	configMap = corev1.SchemeGroupVersion.WithKind("ConfigMap")
)

// defineWidgets creates the CRD and waits until widgets can be listed.
func defineWidgets(t *testing.T, client dynamic.Interface) {
	t.Helper()
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": crds.GroupVersion().String(),
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": widgets.GroupResource().String()},
		"spec": map[string]any{
			"group": widgets.Group,
			"scope": "Namespaced",
			"names": map[string]any{"plural": widgets.Resource, "singular": "widget", "kind": widget.Kind},
			"versions": []any{map[string]any{
				"name": widgets.Version, "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}},
			}},
		},
	}}
	if _, err := client.Resource(crds).Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "widgets can be listed", func(ctx context.Context) error {
		_, err := client.Resource(widgets).List(ctx, metav1.ListOptions{})
		return err
	})
}

func removeWidgets(t *testing.T, client dynamic.Interface) {
	t.Helper()
	name := widgets.GroupResource().String()
	if err := client.Resource(crds).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the CRD is deleted", func(ctx context.Context) error {
		_, err := client.Resource(crds).Get(ctx, name, metav1.GetOptions{})
		return wantNotFound(err)
	})
}

// wantNotFound returns nil if err is a NotFound error, and an error otherwise.
func wantNotFound(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err == nil:
		return errors.New("the object still exists")
	}
	return err
}

func TestWithControllers_GarbageCollectionCascades(t *testing.T) {
	c := shared.Cluster(t)
	client := dynamicClient(t, c)
	inDefault := func(gvr schema.GroupVersionResource) dynamic.ResourceInterface {
		return client.Resource(gvr).Namespace(metav1.NamespaceDefault)
	}
	widgetClient, configMapClient := inDefault(widgets), inDefault(corev1.SchemeGroupVersion.WithResource("configmaps"))

	// cascade creates a widget that owns another widget, which owns a ConfigMap. It deletes the first widget and waits
	// until the other two objects are deleted.
	cascade := func(t *testing.T) {
		ctx := t.Context()
		parent, err := widgetClient.Create(ctx, object(widget, "parent"), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		child, err := widgetClient.Create(ctx, object(widget, "child", parent), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = configMapClient.Create(ctx, object(configMap, "grandchild", child), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		// Create orphans after these objects. Once the garbage collector has deleted the orphans, it has also observed the
		// objects. Without this wait, the garbage collector could look up the owners directly, and the test would not depend
		// on the watch of the owner's type.
		missing := object(widget, "missing")
		missing.SetUID("none")
		for _, kind := range []struct {
			gvk    schema.GroupVersionKind
			client dynamic.ResourceInterface
		}{{widget, widgetClient}, {configMap, configMapClient}} {
			_, err := kind.client.Create(ctx, object(kind.gvk, "orphan", missing), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the orphan is deleted", func(ctx context.Context) error {
				_, err := kind.client.Get(ctx, "orphan", metav1.GetOptions{})
				return wantNotFound(err)
			})
		}
		err = widgetClient.Delete(ctx, parent.GetName(), metav1.DeleteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the grandchild is deleted", func(ctx context.Context) error {
			_, err := configMapClient.Get(ctx, "grandchild", metav1.GetOptions{})
			return wantNotFound(err)
		})
		eventually(t, "the child is deleted", func(ctx context.Context) error {
			_, err := widgetClient.Get(ctx, "child", metav1.GetOptions{})
			return wantNotFound(err)
		})
	}

	for _, s := range []struct {
		name   string
		before func(t *testing.T)
	}{
		{"new type", func(t *testing.T) { defineWidgets(t, client) }},
		{"type that was removed and defined again", func(t *testing.T) {
			removeWidgets(t, client)
			defineWidgets(t, client)
		}},
		{"after a restart of the API server", func(t *testing.T) {
			if err := errors.Join(c.APIServer().Kill(), c.APIServer().Start(t.Context())); err != nil {
				t.Fatal(err)
			}
		}},
		{"after a restart of etcd", func(t *testing.T) {
			if err := errors.Join(c.Etcd().Kill(), c.Etcd().Start(t.Context()), c.WaitReady(t.Context())); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(s.name, func(t *testing.T) {
			s.before(t)
			cascade(t)
		})
	}
	removeWidgets(t, client)
}

func TestWithControllers_NamespaceDeletionRemovesItsObjects(t *testing.T) {
	ctx := t.Context()
	c := shared.Cluster(t)
	dynamicClient := dynamicClient(t, c)
	client := clientset(t, c)
	defineWidgets(t, dynamicClient)
	defer removeWidgets(t, dynamicClient)

	const name = "deleted"
	_, err := client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	widgetInNamespace := object(widget, "deleted")
	widgetInNamespace.SetNamespace(name)
	_, err = dynamicClient.Resource(widgets).Namespace(name).Create(ctx, widgetInNamespace, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CoreV1().ConfigMaps(name).Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace is deleted", func(ctx context.Context) error {
		_, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		return wantNotFound(err)
	})
	left, err := dynamicClient.Resource(widgets).List(ctx, metav1.ListOptions{})
	if err != nil || len(left.Items) != 0 {
		t.Errorf("%d widgets are left, error %v", len(left.Items), err)
	}
}

func TestWithControllers_AggregatesClusterRoles(t *testing.T) {
	ctx := t.Context()
	roles := clientset(t, shared.Cluster(t)).RbacV1().ClusterRoles()
	label := map[string]string{"aggregate-to-combined": "true"}
	_, err := roles.Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta:      metav1.ObjectMeta{Name: "combined"},
		AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: label}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = roles.Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "part", Labels: label},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{widgets.Group}, Resources: []string{widgets.Resource}, Verbs: []string{"get"},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the rule is aggregated", func(ctx context.Context) error {
		combined, err := roles.Get(ctx, "combined", metav1.GetOptions{})
		if err == nil && len(combined.Rules) != 1 {
			err = fmt.Errorf("the aggregated rules are %v", combined.Rules)
		}
		return err
	})
}
