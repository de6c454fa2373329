package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/handlers/children"
)

// deleteInBackground deletes the parent "p" and calls Reconcile until the parent is gone. It returns what Reconcile
// reported to LeftBehind.
func (s *setting) deleteInBackground(reconciler *children.Reconciler) (left []children.LeftBehind) {
	s.Helper()
	options := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
	s.noError(s.in(s.parents, s.namespace).Delete(s.Context(), "p", options))
	s.eventually("the parent is gone", func() error {
		now := s.get(s.parents, s.namespace, "p")
		if now == nil {
			return nil
		}
		_, err := reconciler.Reconcile(s.Context(), s.parent("p"), now, children.Desired{
			LeftBehind: func(_ context.Context, all []children.LeftBehind) error {
				left = all
				return nil
			},
		})
		return fmt.Errorf("the finalizers are %q: %w", now.GetFinalizers(), errors.Join(err))
	})
	return left
}

// The garbage collector knows a child by the version in which it has last seen it. If that version is no longer served,
// it keeps the child.
func TestHandlers_FirstStageDoesNotDependOnTheGarbageCollector(t *testing.T) {
	t.Parallel()
	c := newConverging(t)
	crd, old, latest := c.things()
	var deleted atomic.Bool // whether the Reconciler has deleted the child
	c.reconciler = c.newReconciler(children.Config{Client: must(dynamic.NewForConfig(intercepted(c.config,
		func(r *http.Request, send send) (*http.Response, error) {
			if r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/things/one") {
				deleted.Store(true)
			}
			return send(r)
		},
	)))})
	desired := children.Desired{Stages: [][]children.Child{
		children.Stage(newObject(old, "Thing", c.namespace, "one", nil)), children.Stage(newConfigMap("", "two", "x")),
	}}
	c.eventually("the children exist", func() error {
		_, err := c.reconciler.Reconcile(c.Context(), c.id(c.parents, "p"), c.parent, desired)
		return err
	})
	c.updateCRD(crd, func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{
			versionOf("v1alpha1", true, false), versionOf("v1", true, true),
		}
	})
	c.mapperOf(latest)
	c.eventually("the object is stored as v1", func() error {
		_, err := c.in(latest, c.namespace).Patch(c.Context(), "one", types.MergePatchType,
			[]byte(`{"metadata": {"annotations": {"migrated": "yes"}}}`), metav1.PatchOptions{FieldManager: "migrator"})
		return err
	})
	_, err := c.crds.ApiextensionsV1().CustomResourceDefinitions().Patch(c.Context(), crd, types.MergePatchType,
		[]byte(`{"status": {"storedVersions": ["v1"]}}`), metav1.PatchOptions{}, "status")
	c.noError(err)
	c.updateCRD(crd, func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Spec.Versions = crd.Spec.Versions[1:] })
	c.eventually("the old version is not served", func() error {
		if _, err := c.in(old, c.namespace).List(c.Context(), metav1.ListOptions{}); err != nil {
			return nil
		}
		return errors.New("it is served")
	})
	c.deleteInBackground(c.reconciler)
	if exists := c.get(latest, c.namespace, "one") != nil; exists || !deleted.Load() {
		t.Errorf("after its parent, the child exists: %t; deleted by the Reconciler: %t", exists, deleted.Load())
	}
}

// A kind, or its CrossNamespace, is removed from the configuration while parents have such children.
func TestHandlers_KindsThatLeaveTheConfiguration(t *testing.T) {
	configMap := schema.GroupKind{Kind: "ConfigMap"}
	for name, test := range map[string]struct {
		kinds []children.Kind
		left  []string
		near  bool // whether the child in the namespace of the parent is kept until the parent is deleted
	}{
		"the kinds":      {[]children.Kind{}, []string{"ConfigMap", "Namespace"}, true},
		"CrossNamespace": {[]children.Kind{{GroupKind: configMap}}, []string{"ConfigMap", "Namespace"}, false},
		"the cluster-scoped kind": {
			[]children.Kind{{GroupKind: configMap, CrossNamespace: true}}, []string{"Namespace"}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSetting(newHarness(t))
			s.moreKinds = []children.Kind{{GroupKind: schema.GroupKind{Kind: "Namespace"}, CrossNamespace: true}}
			other := s.newNamespace()
			cluster := newObject(namespaces, "Namespace", "", s.namespace+"-child", nil)
			parent := s.put(s.parents, newObject(s.parents, "Platform", s.namespace, "p", nil))
			before := s.newReconciler(children.Config{})
			_, err := before.Reconcile(t.Context(), s.parent("p"), parent,
				oneStage(newConfigMap("", "near", "x"), newConfigMap(other, "far", "x"), cluster))
			s.noError(err)

			after := s.newReconciler(children.Config{Kinds: test.kinds})
			for range 2 {
				_, err := after.Reconcile(t.Context(), s.parent("p"), parent, children.Desired{})
				if !errors.Is(err, children.ErrCrossNamespaceNotListed) {
					t.Errorf("got %v", err)
				}
			}
			if near := s.get(configMaps, s.namespace, "near") != nil; near != test.near {
				t.Errorf("the child in the namespace of the parent exists: %t", near)
			}
			rollback := s.put(s.parents, newObject(s.parents, "Platform", s.namespace, "rollback", nil))
			_, err = before.Reconcile(t.Context(), s.parent("rollback"), rollback,
				oneStage(newConfigMap(other, "rollback", "x")))
			s.noError(err)
			_, err = after.Reconcile(t.Context(), s.parent("rollback"), rollback, children.Desired{})
			s.noError(ignoreUnlisted(ignoreRequeue(err)))
			_, err = s.newReconciler(children.Config{}).Reconcile(t.Context(), s.parent("rollback"),
				s.get(s.parents, s.namespace, "rollback"), children.Desired{})
			s.noError(ignoreRequeue(err))
			if s.get(configMaps, other, "rollback") != nil {
				t.Error("after a rollback, the child is not pruned")
			}

			var kinds []string
			for _, left := range s.deleteInBackground(after) {
				if kinds = append(kinds, left.Kind.String()); !errors.Is(left.Err, children.ErrCrossNamespaceNotListed) {
					t.Errorf("left behind: %+v", left)
				}
			}
			if !slices.Equal(kinds, test.left) {
				t.Errorf("left behind: %q, want %q", kinds, test.left)
			}
		})
	}
}

// ignoreUnlisted returns nil if err wraps ErrCrossNamespaceNotListed.
func ignoreUnlisted(err error) error {
	if errors.Is(err, children.ErrCrossNamespaceNotListed) {
		return nil
	}
	return err
}
