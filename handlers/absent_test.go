package handlers

import (
	"errors"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

func absentAnd(absent *unstructured.Unstructured, stage ...*unstructured.Unstructured) Desired {
	return Desired{Stages: [][]*unstructured.Unstructured{stage}, Partial: true, Absent: []*unstructured.Unstructured{absent}}
}

func TestChildren_AbsentChildrenAreDeletedFirst(t *testing.T) {
	a, b := newConfigMap("a", "x"), newConfigMap("b", "x")
	theirs := newObject("v1", "ConfigMap", "default", "theirs")
	for name, c := range map[string]struct {
		made, desired Desired
		writes        []string
		fails         string // a part of the error, if there is one
	}{
		"although more is to come":    {stages(a), absentAnd(a, b), []string{"delete configmaps a", "apply configmaps b"}, ""},
		"although nothing is applied": {stages(a), absentAnd(a), []string{"delete configmaps a"}, ""},
		"although a child is invalid": {stages(a), absentAnd(a, newConfigMap("", "x")), []string{"delete configmaps a"}, "a child needs a name"},
		"although a child is another's": {stages(a), absentAnd(a, newConfigMap("theirs", "x"), b),
			[]string{"delete configmaps a", "apply configmaps b"}, ErrNotOurs.Error()},
		"once, and then the others are pruned": {stages(a, b), Desired{Absent: []*unstructured.Unstructured{a, a}},
			[]string{"delete configmaps a", "delete configmaps b"}, ""},
		"in another namespace":               {stages(farAway("a")), absentAnd(farAway("a")), []string{"delete configmaps a"}, ""},
		"but not in another than it names":   {stages(farAway("a")), absentAnd(a), nil, ""},
		"but not if it is desired too":       {stages(a), absentAnd(a, inNamespace(a, "default")), nil, ""},
		"but not if it is not a child":       {stages(a), absentAnd(theirs), nil, ""},
		"but not of an unknown kind":         {stages(a), absentAnd(newObject("v1", "Unknown", "", "a")), nil, ""},
		"nor if there is no such object":     {stages(a), absentAnd(b), nil, ""},
		"a cluster-scoped one is left alone": {stages(a), absentAnd(newObject("v1", "Namespace", "", "a")), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			server := newFakeServer(newWidget(), theirs)
			children, parent := newChildren(t, ChildrenConfig{Client: server}), newWidget()
			if _, err := children.Reconcile(t.Context(), first, parent, c.made); err != nil {
				t.Fatal(err)
			}
			server.took()
			_, err := children.Reconcile(t.Context(), first, parent, c.desired)
			if err != nil && strings.HasPrefix(err.Error(), "requeue after") {
				err = nil
			}
			if (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
				t.Errorf("got %v", err)
			}
			if writes := server.took(); !slices.Equal(writes, c.writes) {
				t.Errorf("written: %q, and not %q", writes, c.writes)
			}
		})
	}
}

// inNamespace is the object with its namespace.
func inNamespace(object *unstructured.Unstructured, namespace string) *unstructured.Unstructured {
	object = object.DeepCopy()
	object.SetNamespace(namespace)
	return object
}

// A deletion that fails is reported and keeps nothing else from being applied.
func TestChildren_FailedDeletionOfAbsentChildIsReported(t *testing.T) {
	server := newFakeServer(newWidget())
	children, parent := newChildren(t, ChildrenConfig{Client: server}), newWidget()
	a, b := newConfigMap("a", "x"), newConfigMap("b", "x")
	if _, err := children.Reconcile(t.Context(), first, parent, stages(a)); err != nil {
		t.Fatal(err)
	}
	server.took()
	denied := apierrors.NewForbidden(configMaps.GroupResource(), "a", errors.New("denied"))
	server.PrependReactor("delete", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, denied })
	if _, err := children.Reconcile(t.Context(), first, parent, absentAnd(a, b)); !apierrors.IsForbidden(errors.Unwrap(err)) && !errors.Is(err, denied) {
		t.Errorf("got %v", err)
	}
	if writes := server.took(); !slices.Equal(writes, []string{"apply configmaps b"}) {
		t.Errorf("written: %q", writes)
	}
}

// The cache answers for objects that do not exist.
func TestChildren_AbsentObjectsThatDoNotExistCostNoRequests(t *testing.T) {
	server, cache := newFakeServer(newWidget()), stale{}
	children, parent := newChildren(t, ChildrenConfig{Client: server, Cache: cache, Owned: noneOwned}), newWidget()
	server.ClearActions()
	if _, err := children.Reconcile(t.Context(), first, parent, absentAnd(newConfigMap("a", "x"))); err != nil {
		t.Fatal(err)
	}
	if actions := server.Actions(); len(actions) > 0 {
		t.Errorf("requests: %v", actions)
	}
}
