package handlers

import (
	"context"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
)

// newCache returns a Reader whose cache is an indexer with the given widgets.
func newCache(objects ...runtime.Object) Reader {
	indexers := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexers)
	for _, object := range objects {
		if err := indexer.Add(object); err != nil {
			panic(err)
		}
	}
	return Cached(func(gvr schema.GroupVersionResource) (cache.GenericLister, error) {
		return cache.NewGenericLister(indexer, gvr.GroupResource()), nil
	})
}

func TestCached_ReturnsCopiesOfSharedObjects(t *testing.T) {
	shared := newWidget()
	reader := newCache(shared)
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
		t.Error("the object in the cache was changed")
	}
	if others, err := reader.List(t.Context(), widgets, "other", labels.Everything()); len(others) != 0 || err != nil {
		t.Errorf("got %v and the error %v in another namespace", others, err)
	}
	if _, err := reader.Get(t.Context(), widgets, "default", "second"); !apierrors.IsNotFound(err) {
		t.Errorf("got %v, want a NotFound", err)
	}
}

func TestCached_RejectsMetadata(t *testing.T) {
	partial := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "first"}}
	_, err := newCache(partial).Get(t.Context(), widgets, "default", "first")
	if err == nil || !strings.Contains(err.Error(), "CacheFull") {
		t.Errorf("got %v", err)
	}
}

// The text of labels.Nothing is "", which the API server interprets as selecting everything.
func TestLive_NothingSelectorMatchesNothing(t *testing.T) {
	server := newFakeServer(newWidget())
	for name, c := range map[string]struct {
		selector labels.Selector
		want     int
	}{
		"everything": {labels.Everything(), 1},
		"nothing":    {labels.Nothing(), 0},
	} {
		got, err := Live(server).List(t.Context(), widgets, "", c.selector)
		if err != nil || len(got) != c.want {
			t.Errorf("%s: got %d objects and the error %v, want %d objects", name, len(got), err, c.want)
		}
	}
}

// An API server that does not (yet) serve the type responds with 404 for each object.
func TestLive_UnservedTypeDoesNotReturnNotFound(t *testing.T) {
	server := newFakeServer()
	const body = "404 page not found"
	response := apierrors.NewGenericServerResponse(404, "get", widgets.GroupResource(), "first", body, 0, true)
	server.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, response
	})
	gone := func(context.Context, identifiers) error { t.Error("gone was called"); return nil }
	err := Object(Live(server), nil, gone)(t.Context(), first)
	if err == nil || apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "does not serve the type") {
		t.Errorf("got %v", err)
	}
}
