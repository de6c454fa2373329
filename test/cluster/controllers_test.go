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

// defineWidgets returns when widgets can be created.
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
	eventually(t, "the definition of widgets is gone", func(ctx context.Context) error {
		_, err := client.Resource(crds).Get(ctx, name, metav1.GetOptions{})
		return gone(err)
	})
}

// gone turns the error of a Get around.
func gone(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err == nil:
		return errors.New("it is still there")
	}
	return err
}

func TestOwnerReferencesCascade(t *testing.T) {
	c := shared.Cluster(t)
	client := dynamicClient(t, c)
	inDefault := func(gvr schema.GroupVersionResource) dynamic.ResourceInterface {
		return client.Resource(gvr).Namespace(metav1.NamespaceDefault)
	}
	widgetClient, configMapClient := inDefault(widgets), inDefault(corev1.SchemeGroupVersion.WithResource("configmaps"))

	// A widget owns a widget, which owns a config map.
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
		// The collector looks for the owner of what it sees for the first time. Only later does it need a watch of the
		// owner's type, so wait until it has seen them; it has when it has collected what was made after them.
		stranger := object(widget, "stranger")
		stranger.SetUID("none")
		for _, kind := range []struct {
			gvk    schema.GroupVersionKind
			client dynamic.ResourceInterface
		}{{widget, widgetClient}, {configMap, configMapClient}} {
			_, err := kind.client.Create(ctx, object(kind.gvk, "orphan", stranger), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the orphan is gone", func(ctx context.Context) error {
				_, err := kind.client.Get(ctx, "orphan", metav1.GetOptions{})
				return gone(err)
			})
		}
		err = widgetClient.Delete(ctx, parent.GetName(), metav1.DeleteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the grandchild is gone", func(ctx context.Context) error {
			_, err := configMapClient.Get(ctx, "grandchild", metav1.GetOptions{})
			return gone(err)
		})
		eventually(t, "the child is gone", func(ctx context.Context) error {
			_, err := widgetClient.Get(ctx, "child", metav1.GetOptions{})
			return gone(err)
		})
	}

	for _, s := range []struct {
		name   string
		before func(t *testing.T)
	}{
		{"of a type that was just defined", func(t *testing.T) { defineWidgets(t, client) }},
		{"of a type that was removed and is back", func(t *testing.T) {
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

func TestANamespaceEndsWithAllThatIsInIt(t *testing.T) {
	ctx := t.Context()
	c := shared.Cluster(t)
	dynamicClient := dynamicClient(t, c)
	client := clientset(t, c)
	defineWidgets(t, dynamicClient)
	defer removeWidgets(t, dynamicClient)

	const name = "doomed"
	_, err := client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	doomed := object(widget, "doomed")
	doomed.SetNamespace(name)
	if _, err := dynamicClient.Resource(widgets).Namespace(name).Create(ctx, doomed, metav1.CreateOptions{}); err != nil {
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
	eventually(t, "the namespace is gone", func(ctx context.Context) error {
		_, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		return gone(err)
	})
	left, err := dynamicClient.Resource(widgets).List(ctx, metav1.ListOptions{})
	if err != nil || len(left.Items) != 0 {
		t.Errorf("%d widgets are left, %v", len(left.Items), err)
	}
}

func TestClusterRolesAggregate(t *testing.T) {
	ctx := t.Context()
	roles := clientset(t, shared.Cluster(t)).RbacV1().ClusterRoles()
	label := map[string]string{"aggregate-to-whole": "true"}
	_, err := roles.Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta:      metav1.ObjectMeta{Name: "whole"},
		AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: label}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = roles.Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "piece", Labels: label},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{widgets.Group}, Resources: []string{widgets.Resource}, Verbs: []string{"get"},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the whole has the piece's rule", func(ctx context.Context) error {
		whole, err := roles.Get(ctx, "whole", metav1.GetOptions{})
		if err == nil && len(whole.Rules) != 1 {
			err = fmt.Errorf("its rules are %v", whole.Rules)
		}
		return err
	})
}
