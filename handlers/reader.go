package handlers

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
)

// Reader is where objects are read from: [Cached], [Live] or [Fresh]. What it returns is the caller's to change. Get
// returns an error for which apierrors.IsNotFound holds only if the type is there and the object is not. An empty
// namespace lists all of them.
type Reader interface {
	Get(ctx context.Context, gvr schema.GroupVersionResource, namespace, name string) (*unstructured.Unstructured, error)
	List(ctx context.Context, gvr schema.GroupVersionResource, namespace string, selector labels.Selector) ([]*unstructured.Unstructured, error)
}

// Cached reads from the engine's caches: lister is DynamicController.Lister, whose errors tell that a type is not served
// or has not synced. The type must be served with whole objects (CacheFull). A list looks at every object of the type in
// the namespace.
func Cached(lister func(schema.GroupVersionResource) (cache.GenericLister, error)) Reader {
	return cached{lister: lister}
}

type cached struct {
	lister func(schema.GroupVersionResource) (cache.GenericLister, error)
}

// namespaced reads one namespace, or what has none.
func (c cached) namespaced(gvr schema.GroupVersionResource, namespace string) (interface {
	List(labels.Selector) ([]runtime.Object, error)
	Get(string) (runtime.Object, error)
}, error) {
	lister, err := c.lister(gvr)
	if err != nil || namespace == "" {
		return lister, err
	}
	return lister.ByNamespace(namespace), nil
}

func (c cached) Get(_ context.Context, gvr schema.GroupVersionResource, namespace, name string) (*unstructured.Unstructured, error) {
	lister, err := c.namespaced(gvr, namespace)
	if err != nil {
		return nil, err
	}
	object, err := lister.Get(name)
	if err != nil {
		return nil, err
	}
	return wholeCopy(object)
}

func (c cached) List(_ context.Context, gvr schema.GroupVersionResource, namespace string, selector labels.Selector) ([]*unstructured.Unstructured, error) {
	lister, err := c.namespaced(gvr, namespace)
	if err != nil {
		return nil, err
	}
	objects, err := lister.List(selector)
	if err != nil {
		return nil, err
	}
	copies := make([]*unstructured.Unstructured, len(objects))
	for i, object := range objects {
		if copies[i], err = wholeCopy(object); err != nil {
			return nil, err
		}
	}
	return copies, nil
}

func wholeCopy(object runtime.Object) (*unstructured.Unstructured, error) {
	whole, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("the cache keeps a %T, not whole objects: serve the type with CacheFull, or read live", object)
	}
	return whole.DeepCopy(), nil
}

// Live reads from the API server, with one request a call. It needs the verbs get and list.
func Live(client dynamic.Interface) Reader { return live{client: client} }

type live struct{ client dynamic.Interface }

func (l live) Get(ctx context.Context, gvr schema.GroupVersionResource, namespace, name string) (*unstructured.Unstructured, error) {
	object, err := resource(l.client, gvr, namespace).Get(ctx, name, metav1.GetOptions{})
	// A server that does not know the type, or lags, says 404 too. That is not the object's absence.
	if apierrors.IsNotFound(err) && apierrors.IsUnexpectedServerError(err) {
		return nil, fmt.Errorf("get %s: the API server does not serve the type: %s", gvr, err.Error())
	}
	return object, err
}

func (l live) List(ctx context.Context, gvr schema.GroupVersionResource, namespace string, selector labels.Selector) ([]*unstructured.Unstructured, error) {
	if _, selectable := selector.Requirements(); !selectable {
		return nil, nil // the text of labels.Nothing is empty, which would match everything
	}
	list, err := resource(l.client, gvr, namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, err
	}
	objects := make([]*unstructured.Unstructured, len(list.Items))
	for i := range list.Items {
		objects[i] = &list.Items[i]
	}
	return objects, nil
}

// resource is the client for a namespace's objects of a type, or for those of all.
func resource(client dynamic.Interface, gvr schema.GroupVersionResource, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return client.Resource(gvr)
	}
	return client.Resource(gvr).Namespace(namespace)
}
