package desire

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/handlers/internal/ownerref"
)

// configurationOf returns a copy of an object without the fields that the API server sets.
func configurationOf(object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	// If any value is not a string, GetLabels and GetAnnotations return nil, and all other values would be lost.
	for _, field := range []string{"labels", "annotations"} {
		if _, _, err := unstructured.NestedStringMap(object.Object, "metadata", field); err != nil {
			return nil, fmt.Errorf("metadata.%s: must be a map of strings", field)
		}
	}
	config := object.DeepCopy()
	delete(config.Object, "status")
	for _, field := range []string{
		"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds",
		"managedFields", "selfLink",
	} {
		unstructured.RemoveNestedField(config.Object, "metadata", field)
	}
	return config, encodeStringData(config)
}

// setNamespace sets the namespace of a child to the parent's unless the child has a namespace or is cluster-scoped.
func setNamespace(config, parent *unstructured.Unstructured, mapping *meta.RESTMapping) error {
	switch {
	case isClusterScoped(mapping) && config.GetNamespace() != "":
		return fmt.Errorf("must not have the namespace %s, because its kind is cluster-scoped", config.GetNamespace())
	case isClusterScoped(mapping), config.GetNamespace() != "":
		return nil
	case parent.GetNamespace() == "":
		return errors.New("must have a namespace, because its parent has none")
	}
	config.SetNamespace(parent.GetNamespace())
	return nil
}

// setController adds the parent as controller to the owner references.
func setController(config, parent *unstructured.Unstructured) error {
	refs, err := ownerref.WithController(config, parent)
	if err != nil {
		return err
	}
	return unstructured.SetNestedSlice(config.Object, refs, "metadata", "ownerReferences")
}

func setAnnotation(config *unstructured.Unstructured, key, value string) {
	config.SetAnnotations(with(config.GetAnnotations(), key, value))
}

func setLabel(config *unstructured.Unstructured, key, value string) {
	config.SetLabels(with(config.GetLabels(), key, value))
}

func with(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}

func isClusterScoped(mapping *meta.RESTMapping) bool {
	return mapping.Scope.Name() == meta.RESTScopeNameRoot
}
