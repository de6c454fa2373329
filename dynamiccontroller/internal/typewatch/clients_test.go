package typewatch

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
)

type dynamicClient struct {
	dynamic.NamespaceableResourceInterface
	s         *server
	namespace string
}

func (c dynamicClient) Resource(schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return c
}
func (c dynamicClient) Namespace(namespace string) dynamic.ResourceInterface {
	return dynamicClient{s: c.s, namespace: namespace}
}
func (dynamicClient) IsWatchListSemanticsUnSupported() bool { return true }

func (c dynamicClient) List(ctx context.Context, options metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	now, err := c.s.list(ctx, Full, c.namespace, options)
	if err != nil {
		return nil, err
	}
	list := &unstructured.UnstructuredList{}
	list.SetResourceVersion(now.version)
	for _, item := range now.items {
		list.Items = append(list.Items, *item)
	}
	return list, nil
}

func (c dynamicClient) Watch(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
	return c.s.watch(ctx, Full, c.namespace, options)
}

type metadataClient struct {
	metadata.ResourceInterface
	s         *server
	namespace string
}

func (c metadataClient) Resource(schema.GroupVersionResource) metadata.Getter { return c }
func (c metadataClient) Namespace(namespace string) metadata.ResourceInterface {
	return metadataClient{s: c.s, namespace: namespace}
}
func (metadataClient) IsWatchListSemanticsUnSupported() bool { return true }

func (c metadataClient) List(
	ctx context.Context, options metav1.ListOptions,
) (*metav1.PartialObjectMetadataList, error) {
	now, err := c.s.list(ctx, Metadata, c.namespace, options)
	if err != nil {
		return nil, err
	}
	list := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: now.version}}
	for _, item := range now.items {
		list.Items = append(list.Items, *metadataOf(item))
	}
	return list, nil
}

func (c metadataClient) Watch(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
	return c.s.watch(ctx, Metadata, c.namespace, options)
}

func metadataOf(o *unstructured.Unstructured) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, m); err != nil {
		panic(err)
	}
	return m
}
