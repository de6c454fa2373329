package recordclient

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/internal/listwatch"
)

// Source provides clients for objects of any type.
type Source interface {
	// Check returns an error if the source cannot request a projection.
	Check(projection objects.Projection) error
	// Requests returns the requests for the objects of a type in a namespace, or in all namespaces if namespace is empty.
	// They return *objects.Record, *unstructured.Unstructured or *metav1.PartialObjectMetadata, with at least the fields
	// that the projection includes. A record can be unusable.
	Requests(gvr schema.GroupVersionResource, namespace string, projection objects.Projection) listwatch.Requests
}

// Clients is a Source of decoded objects. A client that is not needed can be nil.
type Clients struct {
	Dynamic  dynamic.Interface  // for whole objects
	Metadata metadata.Interface // for metadata
}

var _ Source = Clients{}

// Check returns an error if the client for the projection is nil.
func (c Clients) Check(projection objects.Projection) error {
	switch {
	case projection >= objects.Full && c.Dynamic == nil:
		return errors.New("WithCache(CacheFull) requires a dynamic client; pass one to NewDynamicController")
	case projection < objects.Full && c.Metadata == nil:
		return errors.New("WithCache(CacheMetadata) and WithCache(CacheKeys) require a metadata client; " +
			"use NewForConfig or WithMetadataClient")
	}
	return nil
}

// Requests returns requests that call the dynamic client for Full and Complete, and the metadata client otherwise.
func (c Clients) Requests(
	gvr schema.GroupVersionResource, namespace string, projection objects.Projection,
) listwatch.Requests {
	if projection >= objects.Full {
		r := c.Dynamic.Resource(gvr).Namespace(namespace)
		return listwatch.NewRequests(decoded{c.Dynamic, listFunc(r.List), r.Watch})
	}
	r := c.Metadata.Resource(gvr).Namespace(namespace)
	return listwatch.NewRequests(decoded{c.Metadata, listFunc(r.List), r.Watch})
}

// decoded wraps one of client-go's clients.
type decoded struct {
	client any
	list   requestFunc[runtime.Object]
	watch  requestFunc[watch.Interface]
}

type requestFunc[T any] func(context.Context, metav1.ListOptions) (T, error)

func listFunc[T runtime.Object](list requestFunc[T]) requestFunc[runtime.Object] {
	return func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return list(ctx, options)
	}
}

func (d decoded) List(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	return d.list(ctx, options)
}

func (d decoded) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return d.watch(ctx, options)
}

// IsWatchListSemanticsUnSupported reports whether the client is a fake without support for streaming lists.
func (d decoded) IsWatchListSemanticsUnSupported() bool {
	fake, ok := d.client.(interface{ IsWatchListSemanticsUnSupported() bool })
	return ok && fake.IsWatchListSemanticsUnSupported()
}
