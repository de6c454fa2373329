package handlers

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// What it costs to see that nothing changed for a parent with three children.
func BenchmarkReconcileUnchanged(b *testing.B) {
	server := newFakeServer(newWidget())
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	reader := Cached(func(gvr schema.GroupVersionResource) (cache.GenericLister, error) {
		return cache.NewGenericLister(indexer, gvr.GroupResource()), nil
	})
	children, err := NewChildren(ChildrenConfig{Client: server, Mapper: newMapper(), Name: "platform.example.com", Cache: reader, Owned: noneOwned})
	if err != nil {
		b.Fatal(err)
	}
	var wanted []*unstructured.Unstructured
	for i := range 3 {
		wanted = append(wanted, newConfigMap(fmt.Sprintf("child-%d", i), "x"))
	}
	parent := newWidget()
	made, err := children.Reconcile(b.Context(), first, parent, stages(wanted...))
	if err != nil {
		b.Fatal(err)
	}
	for _, child := range made {
		if err := indexer.Add(runtime.Object(child)); err != nil {
			b.Fatal(err)
		}
	}
	server.took()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := children.Reconcile(b.Context(), first, parent, stages(wanted...)); err != nil {
			b.Fatal(err)
		}
	}
	if writes := server.took(); len(writes) != 0 {
		b.Errorf("written: %q", writes)
	}
}
