package dynamiccontroller

import (
	"context"
	"fmt"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"github.com/dynamic-controller/engine/internal/shards"
)

// BenchmarkScopes measures the beginning and the end of all shards, without their watches.
func BenchmarkScopes(b *testing.B) {
	for _, types := range []int{1000, 10_000} {
		b.Run(fmt.Sprint("types=", types), func(b *testing.B) {
			c := NewDynamicController(logr.Discard(), Config{}, fake.NewSimpleDynamicClient(runtime.NewScheme()))
			for i := range types {
				gvr := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: fmt.Sprint("type", i)}
				err := c.StartServingGVK(b.Context(), gvr, func(context.Context, ObjectIdentifiers) error { return nil })
				if err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				for i := range shards.Max {
					c.registry.mu.Lock()
					c.registry.enterScopeLocked(shards.Shard{Index: i, Count: shards.Max})
					c.registry.mu.Unlock()
				}
				for i := range shards.Max {
					for _, d := range c.registry.leaveScope(shards.Shard{Index: i, Count: shards.Max}) {
						<-d.done
					}
				}
			}
		})
	}
}
