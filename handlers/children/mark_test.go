package children

import (
	"errors"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
)

// restored returns a widget with the same name as the first one and another UID, and its namespace.
func restored(namespace types.UID) (parent, inNamespace *unstructured.Unstructured) {
	parent, inNamespace = newWidget(), newObject("v1", "Namespace", "", "default")
	parent.SetUID("restored-uid")
	inNamespace.SetUID(namespace)
	return parent, inNamespace
}

// confirm returns a function that confirms that a child belongs to a restored parent.
func confirm(value string) func(child *unstructured.Unstructured) {
	return func(child *unstructured.Unstructured) {
		child.SetAnnotations(with(child.GetAnnotations(), "platform.example.com/restored", value))
	}
}

// After a restore, a parent has another UID. Its marked children belong to it again, unless that could give the
// children of one tenant to another.
func TestReconcile_RestoredChildren(t *testing.T) {
	for name, test := range map[string]struct {
		namespace types.UID // of the parent, after the restore
		identity  string
		change    func(child *unstructured.Unstructured)
		want      bool
	}{
		"the namespace still exists":                         {"namespace", "tenant", nil, true},
		"somebody else may have created the namespace again": {"another", "tenant", nil, false},
		"another identity writes the children":               {"namespace", "another", nil, false},
		"the mark has no namespace UID": {"", "tenant", func(child *unstructured.Unstructured) {
			setMark(child, "first", "widget-uid", "")
		}, false},
		"the mark of a parent with another name": {"namespace", "tenant", func(child *unstructured.Unstructured) {
			setMark(child, "second", "widget-uid", "namespace")
		}, false},
		"the label and the record differ": {"namespace", "tenant", func(child *unstructured.Unstructured) {
			labels := child.GetLabels()
			setMark(child, "second", "widget-uid", "namespace")
			child.SetLabels(labels)
		}, false},
		"a copy": {"namespace", "tenant", func(child *unstructured.Unstructured) {
			child.SetAnnotations(with(child.GetAnnotations(), "platform.example.com/self", "other/original"))
		}, false},
		"confirmed for the namespace":                {"another", "another", confirm("another"), true},
		"confirmed for a namespace that was deleted": {"another", "tenant", confirm("confirmed"), false},
		"confirmed for all namespaces":               {"another", "tenant", confirm("true"), false},
		"confirmed for the earlier parent":           {"another", "tenant", confirm("widget-uid"), false},
		"confirmed without a namespace":              {"", "tenant", confirm(""), false},
	} {
		t.Run(name, func(t *testing.T) {
			_, namespace := restored("namespace")
			before := newFakeServer(newWidget(), namespace)
			desired := oneStage(newRemoteConfigMap("a"))
			desired.As.Name = "tenant"
			creator := newReconciler(t, Config{Client: before})
			if _, err := creator.Reconcile(t.Context(), first, newWidget(), desired); err != nil {
				t.Fatal(err)
			}
			child := getConfigMap(t, before, "other", "a")
			if test.change != nil {
				test.change(child)
			}
			parent, namespace := restored(test.namespace)
			desired.As.Name = test.identity
			check := func(server reconciling, desired Desired, write string) {
				t.Helper()
				_, err := server.reconciler.Reconcile(t.Context(), first, server.parent, desired)
				if test.want {
					failUnlessRequeued(t, err)
				} else if !errors.Is(err, ErrNotOwned) && len(desired.Stages[0]) > 0 {
					t.Errorf("got %v", err)
				}
				if wrote := slices.Contains(server.TakeWrites(), write); wrote != test.want {
					t.Errorf("%s: %t", write, wrote)
				}
			}
			server := newReconciling(t, parent, namespace, child)
			check(server, desired, "apply configmaps a")
			if now := getConfigMap(t, server.Server, "other", "a"); test.want {
				call := callFor(t, server.reconciler, server.parent)
				mark, err := call.rules.MarkOf(now, call.namespaceUID)
				_, confirmed := now.GetAnnotations()["platform.example.com/restored"]
				if confirmed || mark != decide.MarkOfParent || err != nil {
					t.Errorf("the child has mark %d and the annotations %v, %v", mark, now.GetAnnotations(), err)
				}
			}
			// The restored inventory contains the namespace of a child that is no longer desired.
			parent.SetAnnotations(map[string]string{"platform.example.com/inventory": "ConfigMap=v1/configmaps:0@other"})
			parent.SetFinalizers([]string{"platform.example.com/children"})
			none := oneStage()
			none.As = desired.As
			check(newReconciling(t, parent, namespace, child), none, "delete configmaps a")
		})
	}
}

// Only a child with the mark of its parent's predecessor requires a request for the namespace.
func TestMarkOf_ReadsTheNamespaceOnce(t *testing.T) {
	parent, namespace := restored("namespace")
	server := newFakeServer(parent, namespace)
	call := callFor(t, newReconciler(t, Config{Client: server}), parent)
	for _, uid := range []types.UID{"restored-uid", "widget-uid", "widget-uid"} {
		object := newRemoteConfigMap("a")
		setMark(object, "first", uid, "namespace")
		if isChild, err := decide.IsChild(call.rules, object, call.namespaceUID); !isChild || err != nil {
			t.Errorf("UID %s: got %t, %v", uid, isChild, err)
		}
	}
	if n := len(server.Actions()); n != 1 {
		t.Errorf("sent %d requests", n)
	}
}

// A failed request must not make a restored child a foreign one.
func TestMarkOf_ReturnsErrors(t *testing.T) {
	parent, namespace := restored("namespace")
	server := newFakeServer(parent, namespace)
	server.PrependReactor("get", "namespaces", failWith(errors.New("timeout")))
	call := callFor(t, newReconciler(t, Config{Client: server}), parent)
	object := newRemoteConfigMap("a")
	setMark(object, "first", "widget-uid", "namespace")
	if _, err := decide.IsChild(call.rules, object, call.namespaceUID); err == nil {
		t.Error("got no error")
	}
	var controlled metav1.Object = newConfigMap("b", "x")
	if isChild, err := decide.IsChild(call.rules, controlled, call.namespaceUID); isChild || err != nil {
		t.Errorf("an object without a mark: got %t, %v", isChild, err)
	}
}

// A Reconciler without permission to get the namespace does not repeat the request for each child.
func TestReconcile_ReadsAForbiddenNamespaceOnce(t *testing.T) {
	server := newReconciling(t, newWidget())
	requests := 0
	server.PrependReactor("get", "namespaces", func(clienttesting.Action) (bool, runtime.Object, error) {
		requests++
		return true, nil, apierrors.NewForbidden(namespaces.GroupResource(), "default", errors.New("test"))
	})
	for calls := 1; calls <= 2; calls++ {
		desired := oneStage(newRemoteConfigMap("a"), newRemoteConfigMap("b"))
		if _, err := server.reconciler.Reconcile(t.Context(), first, server.parent, desired); err != nil {
			t.Fatal(err)
		}
		if requests != calls {
			t.Errorf("sent %d requests in %d calls", requests, calls)
		}
	}
}

// The error for the child of an earlier parent contains the value of the confirmation.
func TestReconcile_AdvisesHowToConfirmARestore(t *testing.T) {
	parent, namespace := restored("another")
	child := newRemoteConfigMap("a")
	setMark(child, "first", "widget-uid", "namespace")
	for advice, objects := range map[string][]*unstructured.Unstructured{
		"platform.example.com/restored=another, ":    {parent, namespace, child},
		"permit the controller to get its namespace": {parent, child},
	} {
		server := newReconciling(t, objects...)
		_, err := server.reconciler.Reconcile(t.Context(), first, parent.DeepCopy(), oneStage(newRemoteConfigMap("a")))
		if !errors.Is(err, ErrNotOwned) || !strings.Contains(err.Error(), advice) {
			t.Errorf("got %v, want %q", err, advice)
		}
	}
}
