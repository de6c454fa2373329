// Package fakeserver contains an API server with three types, and caches, for tests and examples of package handlers.
package fakeserver

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
)

// Types that the server serves.
var (
	Widgets    = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	ConfigMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	Namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
)

// First identifies the object that NewWidget returns.
var First = dynamiccontroller.ObjectIdentifiers{GVR: Widgets, NamespacedKey: "default/first"}

// New returns a server that serves these types, with the given objects. It adds a finalizer to objects that are being
// deleted and have none, because the server would not keep them.
func New(objects ...*unstructured.Unstructured) *controllertest.Server {
	server := controllertest.NewServer(
		controllertest.Type{GVR: Widgets, Kind: "Widget"},
		controllertest.Type{GVR: ConfigMaps, Kind: "ConfigMap"},
		controllertest.Type{GVR: Namespaces, Kind: "Namespace", ClusterScoped: true},
	)
	for _, object := range objects {
		if object.GetDeletionTimestamp() != nil && len(object.GetFinalizers()) == 0 {
			object = object.DeepCopy()
			object.SetFinalizers([]string{"example.com/hold"})
		}
		server.Add(object)
	}
	return server
}

// Cache is a reader that returns fixed objects by name. It simulates a cache that lags behind the server.
type Cache map[string]*unstructured.Unstructured

// Get returns the object with the given name, in any namespace.
func (c Cache) Get(
	_ context.Context, gvr schema.GroupVersionResource, _, name string,
) (*unstructured.Unstructured, error) {
	if object := c[name]; object != nil {
		return object, nil
	}
	return nil, apierrors.NewNotFound(gvr.GroupResource(), name)
}

// List always returns an error.
func (Cache) List(
	context.Context, schema.GroupVersionResource, string, labels.Selector,
) ([]*unstructured.Unstructured, error) {
	return nil, errors.New("lists are not supported")
}

// Lister returns a lister that finds no objects.
func (Cache) Lister(schema.GroupVersionResource) (dynamiccontroller.Lister, error) {
	return Lister{}, nil
}

// NewMapper returns a mapper for the types of the server.
func NewMapper() meta.RESTMapper { return New().RESTMapper() }

// NewObject returns an object. If namespace is empty, the object has no namespace field.
func NewObject(apiVersion, kind, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind}}
	object.SetName(name)
	if namespace != "" {
		object.SetNamespace(namespace)
	}
	return object
}

// NewWidget returns the widget default/first. Its resourceVersion is that of the first object of a server.
func NewWidget() *unstructured.Unstructured {
	widget := NewObject("example.com/v1", "Widget", First.Namespace(), First.Name())
	widget.SetUID("widget-uid")
	widget.SetResourceVersion("2")
	widget.SetGeneration(1)
	widget.Object["spec"] = map[string]any{"size": "big"}
	return widget
}

// NewConfigMap returns a config map without a namespace and with a single key.
func NewConfigMap(name, value string) *unstructured.Unstructured {
	object := NewObject("v1", "ConfigMap", "", name)
	object.Object["data"] = map[string]any{"key": value}
	return object
}

// Lister finds objects in memory. It implements only the methods that package children uses.
type Lister struct {
	dynamiccontroller.SecondaryLister
	Found []*unstructured.Unstructured
}

// Objects returns the objects in a namespace that match the selector.
func (l Lister) Objects(namespace string, selector labels.Selector) (all []dynamiccontroller.Object, err error) {
	for _, object := range l.Found {
		if (namespace == "" || object.GetNamespace() == namespace) && selector.Matches(labels.Set(object.GetLabels())) {
			all = append(all, undecoded{object})
		}
	}
	return all, nil
}

// OwnedBy returns the objects whose controller has the given UID.
func (l Lister) OwnedBy(owner types.UID) (owned []dynamiccontroller.Object, err error) {
	for _, object := range l.Found {
		if controller := metav1.GetControllerOfNoCopy(object); controller != nil && controller.UID == owner {
			owned = append(owned, undecoded{object})
		}
	}
	return owned, nil
}

// undecoded is an object whose content must not be used.
type undecoded struct{ *unstructured.Unstructured }

func (undecoded) Object() runtime.Object { panic("the metadata is sufficient") }
