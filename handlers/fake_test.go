package handlers

import (
	"fmt"
	"slices"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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

var (
	widgets    = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	first      = dynamiccontroller.ObjectIdentifiers{GVR: widgets, NamespacedKey: "default/first"}
)

// fakeServer is client-go's fake with server-side apply, and with the UIDs and resourceVersions that it lacks. It checks
// no preconditions: what conflicts do is tested on a real API server.
type fakeServer struct {
	*fake.FakeDynamicClient

	mu     sync.Mutex
	writes []string // verb, resource and name
	last   int
}

func newFakeServer(objects ...*unstructured.Unstructured) *fakeServer {
	scheme := runtime.NewScheme()
	lists := map[schema.GroupVersionResource]string{}
	for gvr, kind := range map[schema.GroupVersionResource]string{widgets: "Widget", configMaps: "ConfigMap", namespaces: "Namespace"} {
		scheme.AddKnownTypeWithName(gvr.GroupVersion().WithKind(kind), &unstructured.Unstructured{})
		lists[gvr] = kind + "List"
	}
	server := &fakeServer{FakeDynamicClient: fake.NewSimpleDynamicClientWithCustomListKinds(scheme, lists)}
	tracker := clienttesting.NewFieldManagedObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder(), managedfields.NewDeducedTypeConverter())
	react := clienttesting.ObjectReaction(tracker)
	server.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		handled, object, err := react(action)
		if err != nil || !isWrite(action) {
			return handled, object, err
		}
		return handled, server.stamp(tracker, action, object), nil
	})
	for _, object := range objects {
		gvr, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
		if err := tracker.Create(gvr, object, object.GetNamespace()); err != nil {
			panic(err)
		}
	}
	return server
}

func isWrite(action clienttesting.Action) bool {
	return slices.Contains([]string{"create", "update", "patch", "delete"}, action.GetVerb())
}

// stamp gives what was written the metadata that a server gives.
func (s *fakeServer) stamp(tracker clienttesting.ObjectTracker, action clienttesting.Action, written runtime.Object) runtime.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
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
	object.SetResourceVersion(strconv.Itoa(s.last))
	if object.GetUID() == "" {
		object.SetUID(types.UID(fmt.Sprintf("uid-%d", s.last)))
	}
	// By the tracker beneath, which does not look at managed fields.
	if err := tracker.Update(action.GetResource(), object, action.GetNamespace(), metav1.UpdateOptions{FieldManager: "stamp"}); err != nil {
		panic(err)
	}
	return object
}

// took returns what was written since it was last called.
func (s *fakeServer) took() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	writes := s.writes
	s.writes = nil
	return writes
}

func newObject(apiVersion, kind, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind}}
	object.SetName(name)
	if namespace != "" {
		object.SetNamespace(namespace)
	}
	return object
}

func newWidget() *unstructured.Unstructured {
	widget := newObject("example.com/v1", "Widget", "default", "first")
	widget.SetUID("widget-uid")
	widget.SetResourceVersion("1")
	widget.SetGeneration(1)
	return widget
}

func newConfigMap(name, value string) *unstructured.Unstructured {
	object := newObject("v1", "ConfigMap", "", name)
	object.Object["data"] = map[string]any{"key": value}
	return object
}

// newMapper knows the types of the fake server.
func newMapper() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{widgets.GroupVersion(), configMaps.GroupVersion()})
	mapper.Add(widgets.GroupVersion().WithKind("Widget"), meta.RESTScopeNamespace)
	mapper.Add(configMaps.GroupVersion().WithKind("ConfigMap"), meta.RESTScopeNamespace)
	mapper.Add(namespaces.GroupVersion().WithKind("Namespace"), meta.RESTScopeRoot)
	return mapper
}

var _ dynamic.Interface = &fakeServer{}
