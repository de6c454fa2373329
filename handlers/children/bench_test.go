package children

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/internal/fakeserver"
)

// reading is a Cache whose lister finds no objects.
type reading struct{ handlers.Reader }

func (reading) Lister(schema.GroupVersionResource) (dynamiccontroller.Lister, error) {
	return fakeserver.Lister{}, nil
}

// BenchmarkReconcileUnchanged measures a reconcile of a parent with three children that have not changed.
func BenchmarkReconcileUnchanged(b *testing.B) {
	server := newFakeServer(newWidget())
	indexers := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexers)
	reader := handlers.Cached(func(gvr schema.GroupVersionResource) (cache.GenericLister, error) {
		return cache.NewGenericLister(indexer, gvr.GroupResource()), nil
	})
	reconciler := newReconciler(b, Config{Client: server, Cache: reading{reader}})
	var stage []*unstructured.Unstructured
	for i := range 3 {
		stage = append(stage, newConfigMap(fmt.Sprintf("child-%d", i), "x"))
	}
	parent := newWidget()
	result, err := reconciler.Reconcile(b.Context(), first, parent, oneStage(stage...))
	children := result.Existing()
	if err != nil {
		b.Fatal(err)
	}
	for _, child := range children {
		if err := indexer.Add(child); err != nil {
			b.Fatal(err)
		}
	}
	server.TakeWrites()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := reconciler.Reconcile(b.Context(), first, parent, oneStage(stage...)); err != nil {
			b.Fatal(err)
		}
	}
	if writes := server.TakeWrites(); len(writes) != 0 {
		b.Errorf("wrote %q", writes)
	}
}
