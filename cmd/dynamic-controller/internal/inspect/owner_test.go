package inspect

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/explain"
)

// website is the type of instances in tests.
var website = schema.GroupVersionResource{Group: "shop.example.com", Version: "v1", Resource: "websites"}

// blueprintOf returns a Blueprint that defines the type of websites.
func blueprintOf(name string, served bool) unstructured.Unstructured {
	object := unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{"type": map[string]any{"group": website.Group, "version": "v1", "kind": "Website"}},
	}}
	object.SetGroupVersionKind(blueprint.GroupVersionKind)
	object.SetName(name)
	if served {
		object.Object["status"] = map[string]any{"served": map[string]any{"generation": int64(1)}}
	}
	return object
}

// fakeClient returns a Client that has no permission to read CustomResourceDefinitions, and no other objects than those
// that the caller adds.
func fakeClient(listKinds map[schema.GroupVersionResource]string) (*Client, *dynamicfake.FakeDynamicClient) {
	objects := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), listKinds)
	metadatas := metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme())
	metadatas.PrependReactor("get", definitions.Resource,
		func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(definitions.GroupResource(), "", nil)
		})
	return &Client{
		dynamic: objects, metadata: metadatas, owners: map[schema.GroupResource]*explain.Owner{},
		requests: maxRequests,
	}, objects
}

// servePages makes the client list pages of Blueprints. Without pages, the list is forbidden.
func servePages(objects *dynamicfake.FakeDynamicClient, pages [][]unstructured.Unstructured) {
	next := 0
	objects.PrependReactor("list", blueprint.GroupVersionResource.Resource,
		func(clienttesting.Action) (bool, runtime.Object, error) {
			if len(pages) == 0 {
				return true, nil, apierrors.NewForbidden(blueprint.GroupVersionResource.GroupResource(), "", nil)
			}
			list := &unstructured.UnstructuredList{Items: pages[next]}
			list.SetGroupVersionKind(blueprint.GroupVersionKind.GroupVersion().WithKind("BlueprintList"))
			if next++; next < len(pages) {
				list.SetContinue("more")
			}
			return true, list, nil
		})
}

func TestOwnerOf_WithoutDefinition(t *testing.T) {
	served, unserved := blueprintOf("served", true), blueprintOf("unserved", false)
	const builtIn, unknown = "networking.k8s.io", "unknown"
	ofKubernetes := blueprintOf("kubernetes", true)
	if err := unstructured.SetNestedField(ofKubernetes.Object, builtIn, "spec", "type", "group"); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		pages [][]unstructured.Unstructured
		group string
		mark  func(*unstructured.Unstructured)
		want  string // the name of the owner, "unknown", or "" if the object is not an instance
	}{
		"the served Blueprint is preferred": {pages: [][]unstructured.Unstructured{{unserved, served}}, want: "served"},
		"a single Blueprint does not have to be served": {
			pages: [][]unstructured.Unstructured{{unserved}}, want: "unserved",
		},
		"all pages are read":          {pages: [][]unstructured.Unstructured{{}, {served}}, want: "served"},
		"no Blueprint":                {pages: [][]unstructured.Unstructured{{}}},
		"two unserved Blueprints":     {pages: [][]unstructured.Unstructured{{unserved, blueprintOf("other", false)}}},
		"Blueprints are not readable": {},
		"a built-in group":            {group: builtIn, pages: [][]unstructured.Unstructured{{ofKubernetes}}},
		"an inventory": {want: unknown, mark: func(o *unstructured.Unstructured) {
			o.SetAnnotations(map[string]string{"platform.example.com/inventory": "ConfigMap=v1/configmaps:0"})
		}},
		"the finalizer of the platform": {want: unknown, mark: func(o *unstructured.Unstructured) {
			o.SetFinalizers([]string{"platform.example.com/children"})
		}},
		"a status written by the platform": {want: unknown, mark: func(o *unstructured.Unstructured) {
			o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "platform.example.com/status"}})
		}},
		"fields written by the platform": {mark: func(o *unstructured.Unstructured) {
			o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "platform.example.com"}})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c, objects := fakeClient(map[schema.GroupVersionResource]string{blueprint.GroupVersionResource: "BlueprintList"})
			servePages(objects, test.pages)
			gvr := website
			if test.group != "" {
				gvr.Group = test.group
			}
			object := &unstructured.Unstructured{Object: map[string]any{}}
			if test.mark != nil {
				test.mark(object)
			}
			got := ""
			if owner := c.ownerOf(t.Context(), gvr, object); isUnknown(owner) {
				got = unknown
			} else if owner != nil {
				got = owner.Name
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestNotInstance_NamesTheMissingPermission(t *testing.T) {
	object := &unstructured.Unstructured{Object: map[string]any{}}
	err := notInstance(website.GroupResource(), object, &explain.Owner{Unread: "forbidden"})
	want := "cannot find out whether websites.shop.example.com is the type of a Blueprint: forbidden\nask for "
	if !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}
