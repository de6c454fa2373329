package instances

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// listingIn returns a client whose lists of all namespaces only contain the objects of the given namespaces. They
// require permissions in these namespaces only. If there are no namespaces, it returns the client unchanged.
func listingIn(client dynamic.Interface, namespaces []string) dynamic.Interface {
	if len(namespaces) == 0 {
		return client
	}
	return namespacesClient{client, namespaces}
}

type namespacesClient struct {
	dynamic.Interface
	namespaces []string
}

func (c namespacesClient) Resource(gvr schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return namespacesResource{c.Interface.Resource(gvr), c.namespaces}
}

type namespacesResource struct {
	dynamic.NamespaceableResourceInterface
	namespaces []string
}

// List lists the objects of one namespace after the other. The result has no resourceVersion.
func (r namespacesResource) List(
	ctx context.Context, options metav1.ListOptions,
) (*unstructured.UnstructuredList, error) {
	all := &unstructured.UnstructuredList{}
	for _, namespace := range r.namespaces {
		list, err := r.Namespace(namespace).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("namespace %s: %w", namespace, err)
		}
		all.Items = append(all.Items, list.Items...)
	}
	return all, nil
}
