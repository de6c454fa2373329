package dynamiccontroller

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// ObjectIdentifiers tells one object from all others. It is what the queue holds: comparable, and without any payload.
type ObjectIdentifiers struct {
	NamespacedKey string // "namespace/name", or "name" for cluster-scoped objects
	GVR           schema.GroupVersionResource
}

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
