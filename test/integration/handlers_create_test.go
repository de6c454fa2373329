package integration

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/handlers/children"
)

// controllersOf collects the UIDs of the controllers that each object has had.
type controllersOf map[types.UID]map[types.UID]bool

func (c controllersOf) add(event watch.Event) {
	object, ok := event.Object.(*unstructured.Unstructured)
	if !ok {
		return
	}
	if c[object.GetUID()] == nil {
		c[object.GetUID()] = map[types.UID]bool{}
	}
	for _, ref := range object.GetOwnerReferences() {
		c[object.GetUID()][ref.UID] = true
	}
}

// Two parents create the same child at the same time. One of them creates it, and the other one gets an error. The
// owner of a child never changes.
func TestHandlers_ParentsThatCreateTheSameChild(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	config := rest.CopyConfig(h.config)
	config.QPS = -1
	client := must(dynamic.NewForConfig(config))
	w := must(h.in(configMaps, h.namespace).Watch(t.Context(), metav1.ListOptions{}))
	defer w.Stop()
	const pairs = 60
	var parents [2][pairs]*unstructured.Unstructured
	for i := range pairs {
		for j := range parents {
			name := fmt.Sprintf("p%d-%d", i, j)
			parents[j][i] = h.put(s.parents, newObject(s.parents, "Platform", h.namespace, name, nil))
		}
	}
	for i := range pairs {
		child := fmt.Sprintf("c%d", i)
		var errs [len(parents)]error
		var group sync.WaitGroup
		for j := range parents {
			// Nothing is in the cache, so each Reconciler assumes that the child does not exist.
			reconciler := s.newReconciler(children.Config{Client: client, Cache: emptyCache{}})
			group.Go(func() {
				parent := parents[j][i]
				_, errs[j] = reconciler.Reconcile(t.Context(), s.parent(parent.GetName()), parent,
					partial(newConfigMap("", child, parent.GetName())))
			})
		}
		group.Wait()
		if (errs[0] == nil) == (errs[1] == nil) || !errors.Is(errors.Join(errs[:]...), children.ErrNotOwned) {
			t.Errorf("%s: got the errors %v", child, errs)
		}
		now := h.get(configMaps, h.namespace, child)
		for j, err := range errs {
			if data := fmt.Sprint(now.Object["data"]); err == nil && data != fmt.Sprintf("map[key:p%d-%d]", i, j) {
				t.Errorf("%s: parent %d created it, and it contains %s", child, j, data)
			}
		}
		if now.GetDeletionGracePeriodSeconds() != nil {
			t.Errorf("%s: the child has the metadata %v", child, now.Object["metadata"])
		}
	}
	h.put(configMaps, newConfigMap(h.namespace, "last", "x"))
	owners := controllersOf{}
	for event := range w.ResultChan() {
		owners.add(event)
		if object, ok := event.Object.(*unstructured.Unstructured); ok && object.GetName() == "last" {
			break
		}
	}
	for uid, all := range owners {
		if len(all) > 1 {
			t.Errorf("the object with UID %s had %d owners", uid, len(all))
		}
	}
}

// A Namespace can be created as a child, and is deleted completely.
func TestHandlers_NamespacesAsChildrenAreDeleted(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	s.moreKinds = []children.Kind{{GroupKind: schema.GroupKind{Kind: "Namespace"}, CrossNamespace: true}}
	reconciler := s.newReconciler(children.Config{})
	name := h.namespace + "-child"
	parent := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	_, err := reconciler.Reconcile(t.Context(), s.parent("p"), parent,
		oneStage(newObject(namespaces, "Namespace", "", name, nil)))
	h.noError(err)
	h.put(configMaps, newConfigMap(name, "content", "x"))
	h.eventually("the Namespace is gone", func() error {
		if _, err := reconciler.Reconcile(t.Context(), s.parent("p"), parent, oneStage()); ignoreRequeue(err) != nil {
			return err
		}
		if now := h.get(namespaces, "", name); now != nil {
			return fmt.Errorf("its status is %v", now.Object["status"])
		}
		return nil
	})
}

// An API server before 1.37 stores the deletionGracePeriodSeconds of an object that an apply creates. With a negative
// value, a Namespace is not removed together with its last finalizer. It can still be changed and deleted.
func TestHandlers_NamespacesWithANegativeGracePeriod(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	s.moreKinds = []children.Kind{{GroupKind: schema.GroupKind{Kind: "Namespace"}, CrossNamespace: true}}
	reconciler := s.newReconciler(children.Config{})
	name := h.namespace + "-child"
	existing := newObject(namespaces, "Namespace", "", name, nil)
	h.noError(unstructured.SetNestedField(existing.Object, int64(-1), "metadata", "deletionGracePeriodSeconds"))
	now := h.put(namespaces, existing)
	t.Logf("the API server stores a negative deletionGracePeriodSeconds: %t", now.GetDeletionGracePeriodSeconds() != nil)
	parent := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	desired := oneStage(newObject(namespaces, "Namespace", "", name, nil))
	desired.Stages[0][0].Adopt = true
	for _, value := range []string{"a", "b"} {
		desired.Stages[0][0].Object.SetLabels(map[string]string{"value": value})
		_, err := reconciler.Reconcile(t.Context(), s.parent("p"), parent, desired)
		h.noError(err)
		if now := h.get(namespaces, "", name); now.GetLabels()["value"] != value {
			t.Errorf("the labels are %v, want the value %s", now.GetLabels(), value)
		}
	}
	h.eventually("the Namespace is gone", func() error {
		if _, err := reconciler.Reconcile(t.Context(), s.parent("p"), parent, oneStage()); ignoreRequeue(err) != nil {
			return err
		}
		_, err := h.clients.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("the Namespace %s is %s", name, corev1.NamespaceTerminating)
	})
}
