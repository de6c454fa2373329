// Package fakemetadata provides a metadata client that reads from a fake dynamic client, for tests. client-go's fake
// metadata client has a separate set of objects, whereas an API server returns the same objects to both clients.
package fakemetadata

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
)

// New returns a metadata client that lists and watches the objects of client. It supports no other operations.
// The function beforeList, if not nil, is called before each list and can block. A reactor of client-go's fake client
// cannot block, because the fake holds a lock while it calls reactors.
func New(client dynamic.Interface, beforeList func(schema.GroupVersionResource)) metadata.Interface {
	if beforeList == nil {
		beforeList = func(schema.GroupVersionResource) {}
	}
	return fakeClient{client, beforeList}
}

type fakeClient struct {
	client     dynamic.Interface
	beforeList func(schema.GroupVersionResource)
}

func (c fakeClient) Resource(gvr schema.GroupVersionResource) metadata.Getter {
	of := c.client.Resource(gvr)
	return getter{resource: resource{of: of, beforeList: func() { c.beforeList(gvr) }}, namespaceable: of}
}

// IsWatchListSemanticsUnSupported makes reflectors use plain LIST requests instead of streaming lists, as with
// client-go's fake clients.
func (c fakeClient) IsWatchListSemanticsUnSupported() bool { return true }

type getter struct {
	resource
	namespaceable dynamic.NamespaceableResourceInterface
}

func (g getter) Namespace(namespace string) metadata.ResourceInterface {
	return resource{of: g.namespaceable.Namespace(namespace), beforeList: g.beforeList}
}

type resource struct {
	metadata.ResourceInterface
	of         dynamic.ResourceInterface
	beforeList func()
}

func (r resource) List(ctx context.Context, opts metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	r.beforeList()
	list, err := r.of.List(ctx, opts)
	if err != nil {
		return nil, err
	}
	reduced := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: list.GetResourceVersion()}}
	for i := range list.Items {
		reduced.Items = append(reduced.Items, *meta.AsPartialObjectMetadata(&list.Items[i]))
	}
	return reduced, nil
}

func (r resource) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	w, err := r.of.Watch(ctx, opts)
	if err != nil {
		return nil, err
	}
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		if object, ok := e.Object.(*unstructured.Unstructured); ok {
			e.Object = meta.AsPartialObjectMetadata(object)
		}
		return e, true
	}), nil
}
