package integration

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/handlers/children"
)

var namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}

// deletion is a parent with children in its namespace, in another namespace and at cluster scope.
type deletion struct {
	*setting
	name, uid string
	objects   []*unstructured.Unstructured // the desired children
	desired   children.Desired

	policy    metav1.DeletionPropagation
	finalizer string // the finalizer of the garbage collector
	stopped   bool   // whether the controller is stopped until the garbage collector has removed its finalizer
}

func (d *deletion) String() string {
	return fmt.Sprintf("%s with %d children, stopped: %t", d.policy, len(d.objects), d.stopped)
}

func (d *deletion) delete() {
	d.Helper()
	options := metav1.DeleteOptions{PropagationPolicy: ptr.To(d.policy)}
	d.noError(d.in(d.parents, d.namespace).Delete(d.Context(), d.name, options))
}

// newDeletion creates a parent and its children. If onlyMarked is set, the parent has no children in its namespace.
func (s *setting) newDeletion(name string, onlyMarked bool) *deletion {
	s.Helper()
	far := newConfigMap(s.newNamespace(), name, "x")
	cluster := newObject(namespaces, "Namespace", "", s.namespace+"-"+name, nil)
	d := &deletion{setting: s, name: name}
	d.objects = []*unstructured.Unstructured{far, cluster}
	if !onlyMarked {
		d.objects = append(d.objects, newConfigMap(s.namespace, name, "x"))
	}
	d.desired = children.Desired{Stages: [][]children.Child{children.Stage(d.objects...)}}
	parent := s.put(s.parents, newObject(s.parents, "Platform", s.namespace, name, nil))
	d.uid = string(parent.GetUID())
	_, err := s.newReconciler(children.Config{}).Reconcile(s.Context(), s.parent(name), parent, d.desired)
	s.noError(err)
	s.put(configMaps, newConfigMap(cluster.GetName(), "precious", "the user's data"))
	if !onlyMarked {
		s.syncCollector()
	}
	return d
}

// syncCollector waits until the garbage collector has seen all existing ConfigMaps. It would not orphan the others.
func (s *setting) syncCollector() {
	s.Helper()
	owner := s.put(configMaps, newConfigMap(s.namespace, "seen-owner", ""))
	seen := newConfigMap(s.namespace, "seen", "")
	seen.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: "v1", Kind: "ConfigMap", Name: owner.GetName(), UID: owner.GetUID(),
	}})
	s.put(configMaps, seen)
	s.noError(s.in(configMaps, s.namespace).Delete(s.Context(), owner.GetName(), metav1.DeleteOptions{}))
	s.eventually("the garbage collector has deleted a ConfigMap without an owner", func() error {
		if s.get(configMaps, s.namespace, seen.GetName()) != nil {
			return errors.New("it exists")
		}
		return nil
	})
}

// read returns the current state of a child, or nil if it does not exist.
func (d *deletion) read(child *unstructured.Unstructured) *unstructured.Unstructured {
	d.Helper()
	gvr := configMaps
	if child.GetKind() == "Namespace" {
		gvr = namespaces
	}
	return d.get(gvr, child.GetNamespace(), child.GetName())
}

// waitForCollector waits until the garbage collector has removed its finalizer from the parent.
func (d *deletion) waitForCollector() {
	d.Helper()
	d.eventually("the garbage collector has processed the parent: "+d.String(), func() error {
		now := d.get(d.parents, d.namespace, d.name)
		if now != nil && slices.Contains(now.GetFinalizers(), d.finalizer) {
			return fmt.Errorf("the finalizers are %q", now.GetFinalizers())
		}
		return nil
	})
}

// reconcileUntilGone calls Reconcile until the parent no longer exists.
func (d *deletion) reconcileUntilGone() {
	d.Helper()
	reconciler := d.newReconciler(children.Config{})
	d.eventually("the parent is gone: "+d.String(), func() error {
		now := d.get(d.parents, d.namespace, d.name)
		if now == nil {
			return nil
		}
		_, err := reconciler.Reconcile(d.Context(), d.parent(d.name), now, children.Desired{})
		return fmt.Errorf("the finalizers are %q: %w", now.GetFinalizers(), errors.Join(err))
	})
}

// checkReleased fails the test unless all children exist without marks.
func (d *deletion) checkReleased() {
	d.Helper()
	d.checkExist("were orphaned")
	for _, object := range d.objects {
		if mark := d.read(object).GetAnnotations()[platformName+"/parent"]; mark != "" {
			d.Errorf("%s: %s %s still has the mark %s", d, object.GetKind(), object.GetName(), mark)
		}
	}
}

// checkKept fails the test unless all children exist and a later parent with the same name neither owns nor prunes
// them.
func (d *deletion) checkKept() {
	d.Helper()
	d.checkReleased()
	later := d.put(d.parents, newObject(d.parents, "Platform", d.namespace, d.name, nil))
	reconciler := d.newReconciler(children.Config{})
	_, err := reconciler.Reconcile(d.Context(), d.parent(d.name), later, d.desired)
	if !errors.Is(err, children.ErrNotOwned) {
		d.Errorf("%s: a later parent with the same children: got %v", d, err)
	}
	_, err = reconciler.Reconcile(d.Context(), d.parent(d.name), later, children.Desired{})
	d.noError(ignoreRequeue(err))
	d.noError(d.in(d.parents, d.namespace).Delete(d.Context(), d.name, metav1.DeleteOptions{}))
	d.reconcileUntilGone()
	d.checkExist("had a later parent")
}

// checkExist fails the test unless all children exist and are not being deleted.
func (d *deletion) checkExist(when string) {
	d.Helper()
	for _, object := range d.objects {
		if now := d.read(object); now == nil || now.GetDeletionTimestamp() != nil {
			d.Fatalf("%s: %s %s is deleted after the children %s", d, object.GetKind(), object.GetName(), when)
		}
	}
}

// checkDeleted fails the test unless all children are deleted.
func (d *deletion) checkDeleted() {
	d.Helper()
	for _, object := range d.objects {
		d.eventually("the children are deleted: "+d.String(), func() error {
			if now := d.read(object); now != nil && now.GetDeletionTimestamp() == nil {
				return fmt.Errorf("%s %s/%s exists", object.GetKind(), object.GetNamespace(), object.GetName())
			}
			return nil
		})
	}
}

// All children are kept if the dependents of their parent are orphaned, and deleted otherwise. The same applies if the
// controller does not run until the garbage collector has removed its finalizer.
func TestHandlers_DeletionPropagation(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	s.moreKinds = []children.Kind{{GroupKind: schema.GroupKind{Kind: "Namespace"}, CrossNamespace: true}}
	var all []*deletion
	for policy, finalizer := range map[metav1.DeletionPropagation]string{
		metav1.DeletePropagationBackground: "",
		metav1.DeletePropagationForeground: metav1.FinalizerDeleteDependents,
		metav1.DeletePropagationOrphan:     metav1.FinalizerOrphanDependents,
	} {
		for _, onlyMarked := range []bool{false, true} {
			for _, stopped := range []bool{false, true} {
				d := s.newDeletion(fmt.Sprintf("p%d", len(all)), onlyMarked)
				d.policy, d.finalizer, d.stopped = policy, finalizer, stopped
				all = append(all, d)
			}
		}
	}
	for _, d := range all {
		d.delete()
	}
	for _, d := range all {
		if d.stopped {
			d.waitForCollector()
		}
		d.reconcileUntilGone()
		if d.policy == metav1.DeletePropagationOrphan {
			d.checkKept()
		} else {
			d.checkDeleted()
		}
		d.eventually("the witness of "+d.String()+" is gone", func() error {
			list, err := h.in(configMaps, h.namespace).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, object := range list.Items {
				if strings.HasPrefix(object.GetName(), "children-of-"+d.uid) {
					return fmt.Errorf("its owners are %v", object.GetOwnerReferences())
				}
			}
			return nil
		})
	}
}

// inNewNamespace returns a setting with the same types in another namespace.
func (s *setting) inNewNamespace() *setting {
	s.Helper()
	other, h := *s, *s.harness
	h.namespace = s.newNamespace()
	other.harness = &h
	return &other
}

// The namespace of a parent is deleted while the controller is stopped, and the witness with it. If the parent was
// deleted before, nothing shows whether its dependents were orphaned, and the children are kept. If the deletion of the
// namespace deleted the parent, the children are deleted.
func TestHandlers_NamespaceDeletion(t *testing.T) {
	t.Parallel()
	s := newSetting(newHarness(t))
	s.moreKinds = []children.Kind{{GroupKind: schema.GroupKind{Kind: "Namespace"}, CrossNamespace: true}}
	finalizers := map[metav1.DeletionPropagation]string{
		"":                                 "", // the parent is deleted with its namespace
		metav1.DeletePropagationBackground: "", metav1.DeletePropagationOrphan: metav1.FinalizerOrphanDependents,
	}
	var all []*deletion
	for policy, finalizer := range finalizers {
		d := s.inNewNamespace().newDeletion("p", true)
		d.policy, d.finalizer, d.stopped = policy, finalizer, true
		if all = append(all, d); policy != "" {
			d.delete()
			d.waitForCollector()
		}
		s.noError(s.clients.CoreV1().Namespaces().Delete(t.Context(), d.namespace, metav1.DeleteOptions{}))
	}
	for _, d := range all {
		d.eventually("the witness is gone, and the parent is deleted", func() error {
			list, err := d.in(configMaps, d.namespace).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			parent := d.get(d.parents, d.namespace, d.name)
			if len(list.Items) > 0 || parent.GetDeletionTimestamp() == nil {
				return fmt.Errorf("%d config maps exist", len(list.Items))
			}
			return nil
		})
		d.reconcileUntilGone()
		if d.policy == "" {
			d.checkDeleted()
		} else {
			d.checkReleased()
		}
	}
}

// A parent is restored from a backup and deleted before its first reconcile. Nothing shows how it was deleted.
func TestHandlers_RestoredParentIsDeletedBeforeItsFirstReconcile(t *testing.T) {
	t.Parallel()
	s := newSetting(newHarness(t))
	s.moreKinds = []children.Kind{{GroupKind: schema.GroupKind{Kind: "Namespace"}, CrossNamespace: true}}
	for i, policy := range []metav1.DeletionPropagation{
		metav1.DeletePropagationBackground, metav1.DeletePropagationOrphan,
	} {
		d := s.newDeletion(fmt.Sprintf("p%d", i), true)
		d.policy, d.finalizer, d.stopped = policy, metav1.FinalizerOrphanDependents, true
		backup := s.get(s.parents, s.namespace, d.name)
		s.merge(s.parents, s.namespace, d.name, `{"metadata":{"finalizers":null}}`)
		s.noError(s.in(s.parents, s.namespace).Delete(t.Context(), d.name, metav1.DeleteOptions{}))
		s.restore(backup)
		d.delete()
		d.waitForCollector()
		d.reconcileUntilGone()
		d.checkReleased()
	}
}
