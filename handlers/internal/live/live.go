// Package live reads objects from the API server.
package live

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Get reads an object. It returns a NotFound only if the API server serves the type and the object does not exist.
func Get(
	ctx context.Context, client dynamic.Interface, id dynamiccontroller.ObjectIdentifiers,
) (*unstructured.Unstructured, error) {
	object, err := Resource(client, id.GVR, id.Namespace()).Get(ctx, id.Name(), metav1.GetOptions{})
	// An API server that does not (yet) serve the type also responds with 404.
	if apierrors.IsNotFound(err) && apierrors.IsUnexpectedServerError(err) {
		return nil, fmt.Errorf("get %s: the API server does not serve the type: %s", id.GVR, err.Error())
	}
	return object, err
}

// List reads the objects of a type that match the selector. An empty namespace means all namespaces.
func List(
	ctx context.Context, client dynamic.Interface, gvr schema.GroupVersionResource, namespace string,
	selector labels.Selector,
) ([]*unstructured.Unstructured, error) {
	if _, selectable := selector.Requirements(); !selectable {
		return nil, nil // the text of labels.Nothing is "", which selects everything
	}
	list, err := Resource(client, gvr, namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, err
	}
	objects := make([]*unstructured.Unstructured, len(list.Items))
	for i := range list.Items {
		objects[i] = &list.Items[i]
	}
	return objects, nil
}

// pageSize is the maximum number of objects that Each reads with one request.
const pageSize = 500

// Each calls f for the objects of a type that match the selector. An empty namespace means all namespaces. If f returns
// an error, Each returns it. The objects are read in pages. A page is requested after f has been called for all objects
// of the previous one, so that only one page is held in memory. The pager of client-go requests pages in advance.
func Each(
	ctx context.Context, client dynamic.Interface, gvr schema.GroupVersionResource, namespace string,
	selector labels.Selector, f func(*unstructured.Unstructured) error,
) error {
	if _, selectable := selector.Requirements(); !selectable {
		return nil // the text of labels.Nothing is "", which selects everything
	}
	options := metav1.ListOptions{LabelSelector: selector.String(), Limit: pageSize}
	for {
		page, err := Resource(client, gvr, namespace).List(ctx, options)
		if err != nil {
			return err
		}
		for i := range page.Items {
			if err := f(&page.Items[i]); err != nil {
				return err
			}
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}

// Resource returns the client for the objects of a type in a namespace. If namespace is empty, it covers all
// namespaces.
func Resource(client dynamic.Interface, gvr schema.GroupVersionResource, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return client.Resource(gvr)
	}
	return client.Resource(gvr).Namespace(namespace)
}

// Identify returns the identifiers of an object.
func Identify(gvr schema.GroupVersionResource, object metav1.Object) dynamiccontroller.ObjectIdentifiers {
	return dynamiccontroller.ObjectIdentifiers{NamespacedKey: cache.MetaObjectToName(object).String(), GVR: gvr}
}
