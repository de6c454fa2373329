package integration

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/handlers/children"
)

// recreateNamespace deletes the namespace of the test and creates it again.
func (h *harness) recreateNamespace() {
	h.Helper()
	namespaces := h.clients.CoreV1().Namespaces()
	h.noError(namespaces.Delete(h.Context(), h.namespace, metav1.DeleteOptions{}))
	h.eventually("the namespace is gone", func() error {
		_, err := namespaces.Get(h.Context(), h.namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the namespace exists: %w", errors.Join(err))
	})
	_, err := namespaces.Create(h.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: h.namespace}},
		metav1.CreateOptions{})
	h.noError(err)
}

// restore creates a deleted parent again, as a tool for backups does. The parent gets another UID.
func (s *setting) restore(backup *unstructured.Unstructured) *unstructured.Unstructured {
	s.Helper()
	object := backup.DeepCopy()
	for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"} {
		unstructured.RemoveNestedField(object.Object, "metadata", field)
	}
	var now *unstructured.Unstructured
	s.eventually("the parent is restored", func() (err error) {
		now, err = s.in(s.parents, s.namespace).Create(s.Context(), object, metav1.CreateOptions{})
		return err
	})
	return now
}

// A parent is deleted without its controller and restored from a backup. Its child in another namespace belongs to it
// again, unless the namespace was created again. In that case, the child must be confirmed.
func TestHandlers_RestoredParent(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	other := h.newNamespace()
	parent := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	reconcile := func(parent *unstructured.Unstructured, value string) error {
		_, err := s.newReconciler(children.Config{}).Reconcile(t.Context(), s.parent("p"), parent,
			oneStage(newConfigMap(other, "remote", value)))
		return err
	}
	h.noError(reconcile(parent, "created"))
	backup := h.get(s.parents, h.namespace, "p")
	value := func() string { return fmt.Sprint(h.get(configMaps, other, "remote").Object["data"]) }
	loseParent := func() {
		h.merge(s.parents, h.namespace, "p", `{"metadata":{"finalizers":null}}`)
		h.noError(h.in(s.parents, h.namespace).Delete(t.Context(), "p", metav1.DeleteOptions{}))
	}

	loseParent()
	h.noError(reconcile(s.restore(backup), "restored"))
	if got := value(); got != "map[key:restored]" {
		t.Errorf("after the restore, the child contains %s", got)
	}

	loseParent()
	confirmed := h.get(namespaces, "", h.namespace).GetUID()
	h.recreateNamespace()
	now := s.restore(backup)
	if err := reconcile(now, "stolen"); !errors.Is(err, children.ErrNotOwned) {
		t.Errorf("in another namespace with the same name: got %v, want %v", err, children.ErrNotOwned)
	}
	if got := value(); got != "map[key:restored]" {
		t.Errorf("without a confirmation, the child contains %s", got)
	}
	_, err := s.newReconciler(children.Config{}).Reconcile(t.Context(), s.parent("p"), now, oneStage())
	h.noError(ignoreRequeue(err))
	if h.get(configMaps, other, "remote") == nil {
		t.Fatal("without a confirmation, the child was pruned")
	}
	confirm := func(namespace types.UID) {
		h.merge(configMaps, other, "remote",
			fmt.Sprintf(`{"metadata":{"annotations":{"%s/restored":%q}}}`, platformName, namespace))
	}
	confirm(confirmed) // the confirmation of an earlier namespace with the same name
	if err := reconcile(now, "stolen"); !errors.Is(err, children.ErrNotOwned) {
		t.Errorf("confirmed for another namespace: got %v, want %v", err, children.ErrNotOwned)
	}
	confirm(h.get(namespaces, "", h.namespace).GetUID())
	h.noError(reconcile(now, "confirmed"))
	if got := value(); got != "map[key:confirmed]" {
		t.Errorf("after the confirmation, the child contains %s", got)
	}
	if left := h.get(configMaps, other, "remote").GetAnnotations()[platformName+"/restored"]; left != "" {
		t.Error("the confirmation remains")
	}
	h.noError(h.in(s.parents, h.namespace).Delete(t.Context(), "p", metav1.DeleteOptions{}))
	h.eventually("the child is deleted with the parent", func() error {
		now := h.get(s.parents, h.namespace, "p")
		if now == nil {
			return nil
		}
		_, err := s.newReconciler(children.Config{}).Reconcile(t.Context(), s.parent("p"), now, children.Desired{})
		return fmt.Errorf("the parent has the finalizers %q: %w", now.GetFinalizers(), errors.Join(err))
	})
	if h.get(configMaps, other, "remote") != nil {
		t.Error("the child was not deleted")
	}
}
