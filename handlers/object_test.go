package handlers

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A server that does not know the type says 404 for every object, as one does that lags. No object is gone for that.
func TestAnUnknownTypeIsNoAbsence(t *testing.T) {
	server := newFakeServer()
	answer := apierrors.NewGenericServerResponse(404, "get", widgets.GroupResource(), "first", "404 page not found", 0, true)
	server.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, answer })
	never := func(context.Context, identifiers) error { t.Error("gone"); return nil }
	err := Object(Live(server), nil, never)(t.Context(), first)
	if err == nil || apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "does not serve the type") {
		t.Errorf("got %v", err)
	}
}

func TestAnObjectThatCannotBeReadIsNeitherThereNorGone(t *testing.T) {
	notSynced := Cached(func(schema.GroupVersionResource) (cache.GenericLister, error) {
		return nil, dynamiccontroller.ErrNotSynced
	})
	present := func(context.Context, identifiers, *unstructured.Unstructured) error { t.Error("there"); return nil }
	gone := func(context.Context, identifiers) error { t.Error("gone"); return nil }
	if err := Object(notSynced, present, gone)(t.Context(), first); !errors.Is(err, dynamiccontroller.ErrNotSynced) {
		t.Errorf("got %v", err)
	}
}

// cacheOf is an engine's cache of widgets.
func cacheOf(objects ...runtime.Object) Reader {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for _, object := range objects {
		if err := indexer.Add(object); err != nil {
			panic(err)
		}
	}
	return Cached(func(gvr schema.GroupVersionResource) (cache.GenericLister, error) {
		return cache.NewGenericLister(indexer, gvr.GroupResource()), nil
	})
}

func TestWhatTheCacheReturnsIsACopy(t *testing.T) {
	shared := newWidget()
	reader := cacheOf(shared)
	one, err := reader.Get(t.Context(), widgets, "default", "first")
	if err != nil {
		t.Fatal(err)
	}
	one.SetLabels(map[string]string{"a": "b"})
	for _, namespace := range []string{"default", ""} {
		all, err := reader.List(t.Context(), widgets, namespace, labels.Everything())
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		all[0].SetLabels(map[string]string{"a": "b"})
	}
	if len(shared.GetLabels()) != 0 {
		t.Error("the cache's object was changed")
	}
	if others, err := reader.List(t.Context(), widgets, "elsewhere", labels.Everything()); len(others) != 0 || err != nil {
		t.Errorf("elsewhere there are %v, %v", others, err)
	}
	if _, err := reader.Get(t.Context(), widgets, "default", "second"); !apierrors.IsNotFound(err) {
		t.Errorf("got %v", err)
	}
}

func TestACacheOfMetadataIsNoCacheOfObjects(t *testing.T) {
	partial := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "first"}}
	if _, err := cacheOf(partial).Get(t.Context(), widgets, "default", "first"); err == nil || !strings.Contains(err.Error(), "CacheFull") {
		t.Errorf("got %v", err)
	}
}

func TestWhatCannotBeDecodedIsParked(t *testing.T) {
	type odd struct {
		Spec string `json:"spec"`
	}
	widget := newWidget()
	widget.Object["spec"] = map[string]any{"a": "b"}
	handle := Typed(func(context.Context, identifiers, *odd, *unstructured.Unstructured) error {
		t.Error("called")
		return nil
	})
	if err := handle(t.Context(), first, widget); err == nil || !strings.HasPrefix(err.Error(), "terminal: decode") {
		t.Errorf("got %v", err)
	}
}

func TestConditionsThatMakeNoSenseAreRefused(t *testing.T) {
	server := newFakeServer(newWidget())
	fine := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "R"}
	for name, c := range map[string]struct {
		manager    string
		conditions []metav1.Condition
	}{
		"no manager": {"", []metav1.Condition{fine}},
		"no type":    {"m", []metav1.Condition{{Status: metav1.ConditionTrue, Reason: "R"}}},
		"no status":  {"m", []metav1.Condition{{Type: "Ready", Reason: "R"}}},
		"no reason":  {"m", []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue}}},
		"twice":      {"m", []metav1.Condition{fine, fine}},
	} {
		if _, err := (Conditions{Client: server, FieldManager: c.manager}).Set(t.Context(), first, newWidget(), c.conditions...); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	if writes := server.took(); len(writes) != 0 {
		t.Errorf("written: %q", writes)
	}
}

// The moment of the last transition is that of the status, and not of the reason.
func TestATransitionIsOneOfStatus(t *testing.T) {
	widget := newWidget()
	server := newFakeServer(widget)
	conditions := Conditions{Client: server, FieldManager: "m"}
	at := func(status metav1.ConditionStatus, reason string) any {
		if _, err := conditions.Set(t.Context(), first, widget, metav1.Condition{Type: "Ready", Status: status, Reason: reason}); err != nil {
			t.Fatal(err)
		}
		list, _, _ := unstructured.NestedSlice(widget.Object, "status", "conditions")
		return list[0].(map[string]any)["lastTransitionTime"]
	}
	at(metav1.ConditionTrue, "A")
	long := "2000-01-01T00:00:00Z"
	list, _, _ := unstructured.NestedSlice(widget.Object, "status", "conditions")
	list[0].(map[string]any)["lastTransitionTime"] = long
	if err := unstructured.SetNestedSlice(widget.Object, list, "status", "conditions"); err != nil {
		t.Fatal(err)
	}
	if got := at(metav1.ConditionTrue, "B"); got != long {
		t.Errorf("another reason moved it to %v", got)
	}
	if got := at(metav1.ConditionFalse, "B"); got == long {
		t.Error("another status did not move it")
	}
	if writes := server.took(); !slices.Equal(writes, []string{"apply status of widgets first", "apply status of widgets first", "apply status of widgets first"}) {
		t.Errorf("written: %q", writes)
	}
}
