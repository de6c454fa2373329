package controllertest

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
)

// metadataClient is a client for the metadata of a server's objects.
type metadataClient struct{ server *Server }

func (c metadataClient) Resource(gvr schema.GroupVersionResource) metadata.Getter {
	return metadataGetter{client{server: c.server, gvr: gvr}}
}

// IsWatchListSemanticsUnSupported has the same purpose as that of Server.
func (c metadataClient) IsWatchListSemanticsUnSupported() bool { return true }

// metadataGetter sends the requests of a client, and returns only metadata. Delete and DeleteCollection are those of
// the client.
type metadataGetter struct{ client }

func (g metadataGetter) Namespace(namespace string) metadata.ResourceInterface {
	g.namespace = namespace
	return g
}

func (g metadataGetter) Get(
	ctx context.Context, name string, opts metav1.GetOptions, subresources ...string,
) (*metav1.PartialObjectMetadata, error) {
	return reduced(g.client.Get(ctx, name, opts, subresources...))
}

func (g metadataGetter) List(ctx context.Context, opts metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	list, err := g.client.List(ctx, opts)
	if err != nil {
		return nil, err
	}
	all := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{
		ResourceVersion: list.GetResourceVersion(), Continue: list.GetContinue(),
		RemainingItemCount: list.GetRemainingItemCount(),
	}}
	for i := range list.Items {
		all.Items = append(all.Items, *meta.AsPartialObjectMetadata(&list.Items[i]))
	}
	return all, nil
}

func (g metadataGetter) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return g.watch(ctx, opts, func(object *unstructured.Unstructured) runtime.Object {
		return meta.AsPartialObjectMetadata(object)
	})
}

func (g metadataGetter) Patch(
	ctx context.Context, name string, patchType types.PatchType, data []byte, opts metav1.PatchOptions,
	subresources ...string,
) (*metav1.PartialObjectMetadata, error) {
	return reduced(g.client.Patch(ctx, name, patchType, data, opts, subresources...))
}

func reduced(object *unstructured.Unstructured, err error) (*metav1.PartialObjectMetadata, error) {
	if err != nil || object == nil {
		return nil, err
	}
	return meta.AsPartialObjectMetadata(object), nil
}
