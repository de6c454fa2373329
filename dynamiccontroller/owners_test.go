package dynamiccontroller_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fakemetadata"
)

// BenchmarkChildOfManyOwnerTypes measures the time from a change of a child to the reconcile of its owner, if 1,000
// types own the type of the child.
func BenchmarkChildOfManyOwnerTypes(b *testing.B) {
	const owners = 1000
	for name, mode := range map[string]dynamiccontroller.CacheMode{"metadata": dynamiccontroller.CacheMetadata, "full": dynamiccontroller.CacheFull} {
		b.Run(name, func(b *testing.B) {
			gvr := func(i int) schema.GroupVersionResource {
				return schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: fmt.Sprintf("type%ds", i)}
			}
			kinds := map[schema.GroupVersionResource]string{}
			for i := range owners + 1 {
				kinds[gvr(i)] = "TypeList"
			}
			client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
			c := dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1}, client,
				dynamiccontroller.WithMetadataClient(fakemetadata.Over(client, func(schema.GroupVersionResource) {})))
			ctx, cancel := context.WithCancel(context.Background())
			child, owner := gvr(owners), gvr(0)
			object := func(gvr schema.GroupVersionResource, version int) *unstructured.Unstructured {
				o := &unstructured.Unstructured{}
				o.SetGroupVersionKind(gvr.GroupVersion().WithKind("Type"))
				o.SetNamespace("default")
				o.SetName("a")
				o.SetUID(types.UID(gvr.Resource))
				o.SetResourceVersion(fmt.Sprint(version))
				return o
			}
			ofOwner := func(version int) *unstructured.Unstructured {
				o := object(child, version)
				o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Type", Name: "a", UID: types.UID(owner.Resource), Controller: ptr.To(true)}})
				return o
			}
			must(client.Resource(owner).Namespace("default").Create(ctx, object(owner, 2), metav1.CreateOptions{}))
			must(client.Resource(child).Namespace("default").Create(ctx, ofOwner(2), metav1.CreateOptions{}))
			called := make(chan struct{}, 100)
			for i := range owners {
				if err := c.StartServingGVK(ctx, gvr(i), func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
					called <- struct{}{}
					return nil
				}, dynamiccontroller.WithCache(dynamiccontroller.CacheKeys), dynamiccontroller.Owns(child, dynamiccontroller.WithCache(mode))); err != nil {
					b.Fatal(err)
				}
			}
			ended := make(chan error)
			go func() { ended <- c.Run(ctx) }()
			<-called
			c.WaitForInformersSync(nil)
			version := 2
			for b.Loop() {
				version++
				must(client.Resource(child).Namespace("default").Update(ctx, ofOwner(version), metav1.UpdateOptions{}))
				<-called
			}
			cancel()
			if err := <-ended; err != nil {
				b.Error(err)
			}
		})
	}
}

// The name of an owner does not identify it: another object can have been created with the same name. A namespaced
// child can have a cluster-scoped owner.
func TestD1_OwnerIsIdentifiedByItsUID(t *testing.T) {
	for name, mode := range map[string]dynamiccontroller.CacheMode{
		"full": dynamiccontroller.CacheFull, "metadata": dynamiccontroller.CacheMetadata, "keys": dynamiccontroller.CacheKeys,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
				parent, child := w.types[0], w.types[1]
				own := func(namespace, name string, uid types.UID) {
					w.versions[parent]++
					o := &unstructured.Unstructured{}
					o.SetGroupVersionKind(parent.GroupVersion().WithKind("Type"))
					o.SetNamespace(namespace)
					o.SetName(name)
					o.SetUID(uid)
					o.SetResourceVersion(fmt.Sprint(w.versions[parent] + 1))
					must(w.client.Resource(parent).Namespace(namespace).Create(t.Context(), o, metav1.CreateOptions{}))
					synctest.Wait()
				}
				stop := w.run()
				c := newCalls(succeed)
				w.serve(parent, c.handle, dynamiccontroller.WithCache(mode), dynamiccontroller.Owns(child))
				own("", "wide", w.uid(parent, "wide"))
				w.put(parent, "a")
				w.put(child, "c", w.id(parent, "a"))
				c.take()
				w.put(child, "of-wide", w.id(parent, "wide"))
				c.want(t, "a cluster-scoped owner", named("wide"))
				w.delete(parent, "a")
				own("default", "a", "another")
				c.take()
				w.put(child, "c", w.id(parent, "a"))
				c.want(t, "a child of the former owner", named())
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
