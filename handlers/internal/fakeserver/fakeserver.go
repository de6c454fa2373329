// Package fakeserver is a fake API server for the tests and examples of package handlers.
package fakeserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Types that the server serves.
var (
	Widgets    = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	ConfigMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	Namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
)

var kinds = map[schema.GroupVersionResource]string{
	Widgets: "Widget", ConfigMaps: "ConfigMap", Namespaces: "Namespace",
}

// First identifies the object that NewWidget returns.
var First = dynamiccontroller.ObjectIdentifiers{GVR: Widgets, NamespacedKey: "default/first"}

// Server is client-go's fake client, extended with UIDs, resourceVersions and server-side apply. It does not check
// preconditions. Conflicts are tested against a real API server in test/integration.
type Server struct {
	*fake.FakeDynamicClient

	mu          sync.Mutex // guards the fields below
	writes      []string   // each with verb, resource and name
	lastVersion int
}

var _ dynamic.Interface = &Server{}

// New returns a server with the given objects.
func New(objects ...*unstructured.Unstructured) *Server {
	scheme := runtime.NewScheme()
	lists := map[schema.GroupVersionResource]string{}
	for gvr, kind := range kinds {
		scheme.AddKnownTypeWithName(gvr.GroupVersion().WithKind(kind), &unstructured.Unstructured{})
		lists[gvr] = kind + "List"
	}
	server := &Server{FakeDynamicClient: fake.NewSimpleDynamicClientWithCustomListKinds(scheme, lists)}
	tracker := clienttesting.NewFieldManagedObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder(),
		managedfields.NewDeducedTypeConverter())
	react := clienttesting.ObjectReaction(tracker)
	server.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		handled, object, err := react(action)
		setKind(object, action.GetResource())
		if err != nil || !isWrite(action) {
			return handled, object, err
		}
		return handled, server.record(tracker, action, object), nil
	})
	for _, object := range objects {
		gvr, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
		if err := tracker.Create(gvr, object, object.GetNamespace()); err != nil {
			panic(err)
		}
	}
	return server
}

// setKind restores the kind of an object, or of the items of a list. All types of the scheme have the same Go type, so
// a conversion sets an arbitrary kind of the group version.
func setKind(object runtime.Object, gvr schema.GroupVersionResource) {
	gvk := gvr.GroupVersion().WithKind(kinds[gvr])
	switch object := object.(type) {
	case *unstructured.Unstructured:
		object.SetGroupVersionKind(gvk)
	case *unstructured.UnstructuredList:
		for i := range object.Items {
			object.Items[i].SetGroupVersionKind(gvk)
		}
	}
}

func isWrite(action clienttesting.Action) bool {
	return slices.Contains([]string{"create", "update", "patch", "delete"}, action.GetVerb())
}

// record records a write and sets the metadata that an API server would set.
func (s *Server) record(
	tracker clienttesting.ObjectTracker, action clienttesting.Action, written runtime.Object,
) runtime.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastVersion++
	name := ""
	object, ok := written.(*unstructured.Unstructured)
	if ok {
		name = object.GetName()
	} else if named, ok := action.(interface{ GetName() string }); ok {
		name = named.GetName()
	}
	verb := action.GetVerb()
	if patch, ok := action.(clienttesting.PatchAction); ok && patch.GetPatchType() == types.ApplyPatchType {
		verb = "apply"
	}
	if subresource := action.GetSubresource(); subresource != "" {
		verb += " " + subresource + " of"
	}
	s.writes = append(s.writes, verb+" "+action.GetResource().Resource+" "+name)
	if !ok {
		return written
	}
	object = object.DeepCopy()
	object.SetResourceVersion(strconv.Itoa(s.lastVersion))
	if object.GetUID() == "" {
		object.SetUID(types.UID(fmt.Sprintf("uid-%d", s.lastVersion)))
	}
	options := metav1.UpdateOptions{FieldManager: "fakeserver"}
	if err := tracker.Update(action.GetResource(), object, action.GetNamespace(), options); err != nil {
		panic(err)
	}
	return object
}

// TakeWrites returns the writes since the last call, such as "apply configmaps a".
func (s *Server) TakeWrites() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	writes := s.writes
	s.writes = nil
	return writes
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
func NewMapper() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{Widgets.GroupVersion(), ConfigMaps.GroupVersion()})
	mapper.Add(Widgets.GroupVersion().WithKind("Widget"), meta.RESTScopeNamespace)
	mapper.Add(ConfigMaps.GroupVersion().WithKind("ConfigMap"), meta.RESTScopeNamespace)
	mapper.Add(Namespaces.GroupVersion().WithKind("Namespace"), meta.RESTScopeRoot)
	return mapper
}

// NewObject returns an object. If namespace is empty, the object has no namespace field.
func NewObject(apiVersion, kind, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind}}
	object.SetName(name)
	if namespace != "" {
		object.SetNamespace(namespace)
	}
	return object
}

// NewWidget returns the widget default/first.
func NewWidget() *unstructured.Unstructured {
	widget := NewObject("example.com/v1", "Widget", First.Namespace(), First.Name())
	widget.SetUID("widget-uid")
	widget.SetResourceVersion("1")
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
