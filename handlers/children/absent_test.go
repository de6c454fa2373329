package children

import (
	"errors"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/internal/fakeserver"
)

// withAbsent returns a partial Desired with one absent object and one stage.
func withAbsent(absent *unstructured.Unstructured, stage ...*unstructured.Unstructured) Desired {
	return Desired{
		Stages: [][]Child{Stage(stage...)}, Partial: true, Absent: []*unstructured.Unstructured{absent},
	}
}

func TestReconcile_DeletesAbsentChildrenFirst(t *testing.T) {
	a, b := newConfigMap("a", "x"), newConfigMap("b", "x")
	qualified := newConfigMap("a", "x")
	qualified.SetNamespace("default")
	unowned := newObject("v1", "ConfigMap", "default", "unowned")
	for name, c := range map[string]struct {
		existing, desired Desired
		writes            []string
		err               string // part of the error, or empty if no error is expected
	}{
		"another child is applied": {
			oneStage(a), withAbsent(a, b), []string{"delete configmaps a", "apply configmaps b"}, "",
		},
		"no child is applied": {oneStage(a), withAbsent(a), []string{"delete configmaps a"}, ""},
		"a child is invalid": {
			oneStage(a), withAbsent(a, newConfigMap("", "x")), []string{"delete configmaps a"}, "must have a name",
		},
		"a child is not owned": {
			oneStage(a), withAbsent(a, newConfigMap("unowned", "x"), b),
			[]string{"delete configmaps a", "apply configmaps b"}, ErrNotOwned.Error(),
		},
		"a duplicate absent object, and others are pruned": {
			oneStage(a, b), Desired{Absent: []*unstructured.Unstructured{a, a}},
			[]string{"delete configmaps a", "delete configmaps b"}, "",
		},
		"an object in another namespace": {
			oneStage(newRemoteConfigMap("a")), withAbsent(newRemoteConfigMap("a")), []string{"delete configmaps a"}, "",
		},
		"not a child in another namespace":   {oneStage(newRemoteConfigMap("a")), withAbsent(a), nil, ""},
		"not an object that is also desired": {oneStage(a), withAbsent(a, qualified), nil, ""},
		"not an object that is not a child":  {oneStage(a), withAbsent(unowned), nil, ""},
		"not an object of an unknown kind":   {oneStage(a), withAbsent(newObject("v1", "Unknown", "", "a")), nil, ""},
		"not an object that does not exist":  {oneStage(a), withAbsent(b), nil, ""},
		"not a cluster-scoped object":        {oneStage(a), withAbsent(newObject("v1", "Namespace", "", "a")), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			server := newFakeServer(newWidget(), unowned)
			reconciler, parent := newReconciler(t, Config{Client: server}), newWidget()
			if _, err := reconciler.Reconcile(t.Context(), first, parent, c.existing); err != nil {
				t.Fatal(err)
			}
			server.TakeWrites()
			_, err := reconciler.Reconcile(t.Context(), first, parent, c.desired)
			if _, requeued := dynamiccontroller.RequeueDelay(err); requeued {
				err = nil
			}
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("got %v", err)
			}
			if writes := server.TakeWrites(); !slices.Equal(writes, c.writes) {
				t.Errorf("wrote %q, want %q", writes, c.writes)
			}
		})
	}
}

func TestReconcile_FailedDeletionOfAbsentChildDoesNotAffectOthers(t *testing.T) {
	server := newFakeServer(newWidget())
	reconciler, parent := newReconciler(t, Config{Client: server}), newWidget()
	a, b := newConfigMap("a", "x"), newConfigMap("b", "x")
	if _, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(a)); err != nil {
		t.Fatal(err)
	}
	server.TakeWrites()
	denied := apierrors.NewForbidden(configMaps.GroupResource(), "a", errors.New("denied"))
	server.PrependReactor("delete", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, denied
	})
	if _, err := reconciler.Reconcile(t.Context(), first, parent, withAbsent(a, b)); !errors.Is(err, denied) {
		t.Errorf("got %v", err)
	}
	if writes := server.TakeWrites(); !slices.Equal(writes, []string{"apply configmaps b"}) {
		t.Errorf("wrote %q", writes)
	}
}

// An absent object of a group whose discovery fails matters only if the parent can have had such a child.
func TestReconcile_AbsentObjectsWhileTheDiscoveryFails(t *testing.T) {
	server := newFakeServer(newWidget())
	reconciler, parent := newReconciler(t, Config{Client: server}), newWidget()
	mapper := reconciler.config.Mapper
	child := newObject("example.com/v1", "Widget", "", "other")
	absent := withAbsent(child)
	absent.Kinds = []schema.GroupVersionKind{child.GroupVersionKind()}
	reconciler.config.Mapper = undiscoveredMapper{mapper}
	if _, err := reconciler.Reconcile(t.Context(), first, parent, absent); err != nil {
		t.Error("without an entry in the inventory:", err)
	}
	reconciler.config.Mapper = mapper
	desired := oneStage(child)
	desired.Kinds = absent.Kinds
	if _, err := reconciler.Reconcile(t.Context(), first, parent, desired); err != nil {
		t.Fatal(err)
	}
	reconciler.config.Mapper = undiscoveredMapper{mapper}
	_, err := reconciler.Reconcile(t.Context(), first, parent, absent)
	if groups, _ := discovery.GroupDiscoveryFailedErrorGroups(err); len(groups) != 1 {
		t.Errorf("with an entry in the inventory: got error %v", err)
	}
}

func TestReconcile_NonexistentAbsentObjectsCauseNoRequests(t *testing.T) {
	server := newFakeServer(newWidget())
	reconciler := newReconciler(t, Config{Client: server, Cache: fakeserver.Cache{}})
	desired := withAbsent(newConfigMap("a", "x"))
	if _, err := reconciler.Reconcile(t.Context(), first, newWidget(), desired); err != nil {
		t.Fatal(err)
	}
	if actions := server.Actions(); len(actions) > 0 {
		t.Errorf("sent %v", actions)
	}
}
