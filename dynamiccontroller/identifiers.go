package dynamiccontroller

import (
	"errors"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// ObjectIdentifiers identifies an object. It is the key of the queue: comparable, and without payload.
type ObjectIdentifiers struct {
	// NamespacedKey is "namespace/name", or "name" for a cluster-scoped object. Callers can also write "/name", as
	// types.NamespacedName does; handlers always get "name". The scope of the type is not checked: a key with a
	// namespace for a cluster-scoped type, or without one for a namespaced type, refers to an object that does not
	// exist.
	NamespacedKey string
	GVR           schema.GroupVersionResource
}

// normalizeKey returns the form of a key that queue and cache use, or an error for a malformed key.
func normalizeKey(key string) (string, error) {
	namespace, name, hasNamespace := strings.Cut(key, "/")
	if !hasNamespace {
		namespace, name = "", key
	}
	switch {
	case name == "":
		return "", errNoName
	case strings.Contains(name, "/"):
		return "", errTooManyParts
	case namespace == "":
		return name, nil
	default:
		return key, nil
	}
}

var (
	errNoName       = errors.New("the key has no name, want namespace/name or name")
	errTooManyParts = errors.New("the key has more than two parts, want namespace/name or name")
)

// Namespace is the object's namespace, empty for a cluster-scoped object.
func (id ObjectIdentifiers) Namespace() string {
	namespace, _, _ := cache.SplitMetaNamespaceKey(id.NamespacedKey)
	return namespace
}

// Name is the object's name.
func (id ObjectIdentifiers) Name() string {
	_, name, _ := cache.SplitMetaNamespaceKey(id.NamespacedKey)
	return name
}

// String is for people: "widgets.v1.example.com namespace/name".
func (id ObjectIdentifiers) String() string {
	return nameOf(id.GVR) + " " + id.NamespacedKey
}

// nameOf writes a GVR as kubectl takes it: resource.version.group.
func nameOf(gvr schema.GroupVersionResource) string {
	if gvr.Group == "" {
		return gvr.Resource + "." + gvr.Version
	}
	return gvr.Resource + "." + gvr.Version + "." + gvr.Group
}
