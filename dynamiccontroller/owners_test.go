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

// BenchmarkChildOfManyOwnerTypes measures the time from a change to a child until the reconcile of its owner, with
// 1,000 types that own the child's type.
func BenchmarkChildOfManyOwnerTypes(b *testing.B) {
	const owners = 1000
	for name, mode := range map[string]dynamiccontroller.CacheMode{
		"metadata": dynamiccontroller.CacheMetadata,
		"full":     dynamiccontroller.CacheFull,
	} {
		b.Run(name, func(b *testing.B) {
			gvr := func(i int) schema.GroupVersionResource {
				return schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: fmt.Sprintf("type%ds", i)}
			}
			kinds := map[schema.GroupVersionResource]string{}
			for i := range owners + 1 {
				kinds[gvr(i)] = "TypeList"
			}
			client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
			config := dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1}
			c := dynamiccontroller.NewDynamicController(logr.Discard(), config, client,
				dynamiccontroller.WithMetadataClient(fakemetadata.New(client, nil)))
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
				o.SetOwnerReferences([]metav1.OwnerReference{{
					APIVersion: "example.com/v1", Kind: "Type", Name: "a", UID: types.UID(owner.Resource),
					Controller: ptr.To(true),
				}})
				return o
			}
			must(client.Resource(owner).Namespace("default").Create(ctx, object(owner, 2), metav1.CreateOptions{}))
			must(client.Resource(child).Namespace("default").Create(ctx, ofOwner(2), metav1.CreateOptions{}))
			called := make(chan struct{}, 100)
			handler := func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
				called <- struct{}{}
				return nil
			}
			keys := dynamiccontroller.WithCache(dynamiccontroller.CacheKeys)
			owns := dynamiccontroller.Owns(child, dynamiccontroller.WithCache(mode))
			for i := range owners {
				if err := c.StartServingGVK(ctx, gvr(i), handler, keys, owns); err != nil {
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

// An owner is not identified by its name, because another object may have been created with the same name. A namespaced
// child can have a cluster-scoped owner.
func TestD1_OwnerIsIdentifiedByItsUID(t *testing.T) {
	for name, mode := range map[string]dynamiccontroller.CacheMode{
		"full": dynamiccontroller.CacheFull, "metadata": dynamiccontroller.CacheMetadata, "keys": dynamiccontroller.CacheKeys,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
				parent, child := f.types[0], f.types[1]
				own := func(namespace, name string, uid types.UID) {
					f.versions[parent]++
					o := &unstructured.Unstructured{}
					o.SetGroupVersionKind(parent.GroupVersion().WithKind("Type"))
					o.SetNamespace(namespace)
					o.SetName(name)
					o.SetUID(uid)
					o.SetResourceVersion(fmt.Sprint(f.versions[parent] + 1))
					must(f.client.Resource(parent).Namespace(namespace).Create(t.Context(), o, metav1.CreateOptions{}))
					synctest.Wait()
				}
				stop := f.run()
				c := newCalls(succeed)
				f.serve(parent, c.handle, dynamiccontroller.WithCache(mode), dynamiccontroller.Owns(child))
				own("", "wide", f.uid(parent, "wide"))
				f.put(parent, "a")
				f.put(child, "c", f.id(parent, "a"))
				c.take()
				f.put(child, "of-wide", f.id(parent, "wide"))
				c.want(t, "a cluster-scoped owner", named("wide"))
				f.delete(parent, "a")
				own("default", "a", "another")
				c.take()
				f.put(child, "c", f.id(parent, "a"))
				c.want(t, "a child of the former owner", named())
				stop()
			})
		})
	}
}
