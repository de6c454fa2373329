package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/explain"
	"github.com/dynamic-controller/engine/handlers/children"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNotInstance_NamesTheInstanceOfAChild(t *testing.T) {
	child := &unstructured.Unstructured{Object: map[string]any{"kind": "ConfigMap"}}
	child.SetName("page")
	resource := schema.GroupResource{Resource: "configmaps"}
	want := "configmaps is not the type of a Blueprint"
	if err := notInstance(resource, child, nil); !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
	child.SetLabels(map[string]string{"platform.example.com/instance-kind": "Site"})
	for key, want := range map[string]string{
		"shop/s": "page is a child of Site s in namespace shop", "s": "page is a child of Site s: ",
	} {
		child.SetAnnotations(map[string]string{
			"platform.example.com/resource": "page", "platform.example.com/instance": key,
		})
		if err := notInstance(resource, child, nil); !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestScopes(t *testing.T) {
	kind := children.RecordedKind{Namespaces: []string{"far"}}
	for name, test := range map[string]struct {
		namespace string // of the instance
		scope     meta.RESTScope
		want      []string
	}{
		"a namespaced kind":                          {"shop", meta.RESTScopeNamespace, []string{"far", "shop"}},
		"a namespaced kind in another namespace":     {"far", meta.RESTScopeNamespace, []string{"far"}},
		"a namespaced kind of a cluster-scoped type": {"", meta.RESTScopeNamespace, []string{"far"}},
		"a cluster-scoped kind":                      {"shop", meta.RESTScopeRoot, []string{""}},
	} {
		o := &explain.Object{Unstructured: &unstructured.Unstructured{Object: map[string]any{}}}
		o.SetNamespace(test.namespace)
		if got := scopes(o, &meta.RESTMapping{Scope: test.scope}, kind); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
	if len(kind.Namespaces) != 1 {
		t.Errorf("the inventory has changed: %v", kind)
	}
}

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// readingOf returns a reading with a type of children. The handler returns the objects of a list, and whether there are
// more. It counts the requests.
func readingOf(list func(request int) (count int, more bool)) (r *reading, requests *int) {
	c, objects := fakeClient(map[schema.GroupVersionResource]string{configMaps: "ConfigMapList"})
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{configMaps.GroupVersion()})
	mapper.AddSpecific(configMaps.GroupVersion().WithKind("ConfigMap"), configMaps, configMaps, meta.RESTScopeNamespace)
	c.mapper = meta.ToRESTMapperWithContext(mapper)
	requests = new(int)
	objects.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		*requests++
		count, more := list(*requests)
		page := &unstructured.UnstructuredList{Items: make([]unstructured.Unstructured, count)}
		for i := range page.Items {
			page.Items[i].Object = map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}
			page.Items[i].SetLabels(map[string]string{"platform.example.com/parent": "u"})
		}
		if more {
			page.SetContinue("more")
		}
		return true, page, nil
	})
	return &reading{Client: c, left: maxObjects}, requests
}

func instanceWithInventory(inventory string) *explain.Object {
	o := &explain.Object{Unstructured: &unstructured.Unstructured{Object: map[string]any{}}}
	o.SetNamespace("shop")
	o.SetUID("u")
	o.SetAnnotations(map[string]string{"platform.example.com/inventory": inventory})
	return o
}

func TestReadChildren_IsLimited(t *testing.T) {
	var namespaces strings.Builder
	for i := range 5 * maxRequests {
		fmt.Fprintf(&namespaces, "@n%d", i)
	}
	endless := func(int) (int, bool) { return pageSize, true }
	none := func(int) (int, bool) { return 0, false }
	for name, test := range map[string]struct {
		inventory string
		list      func(int) (int, bool)
		requests  int
		unread    []string
	}{
		"an inventory with many namespaces": {
			"ConfigMap=v1/configmaps:0" + namespaces.String(), none, maxRequests,
			[]string{"more objects: not read: the limit of 200 requests has been reached"},
		},
		"a long list": {
			"ConfigMap=v1/configmaps:0@far", endless, maxObjects / pageSize,
			[]string{"more objects: not read, because at most 1000 are read"},
		},
		"two pages": {
			"ConfigMap=v1/configmaps:0", func(request int) (int, bool) { return 1, request == 1 }, 2, nil,
		},
		"a version that the API server does not serve": {"ConfigMap=v0/configmaps:0", none, 1, nil},
		"an entry without a resource":                  {"ConfigMap", none, 0, nil},
	} {
		r, requests := readingOf(test.list)
		o := instanceWithInventory(test.inventory)
		r.readChildren(t.Context(), o, maxDepth)
		if *requests != test.requests || !slices.Equal(o.Unread, test.unread) {
			t.Errorf("%s: got %d requests, and %q", name, *requests, o.Unread)
		}
	}
}

func TestReadChildren_StopsAtTheDeadline(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("too late"))
	r, requests := readingOf(func(int) (int, bool) { return 0, false })
	o := instanceWithInventory("ConfigMap=v1/configmaps:0@far")
	r.readChildren(ctx, o, maxDepth)
	if *requests != 0 || !slices.Equal(o.Unread, []string{"more objects: not read: too late"}) {
		t.Errorf("got %d requests, and %q", *requests, o.Unread)
	}
}

func TestReadChildren_ReportsTheDepthLimit(t *testing.T) {
	r, _ := readingOf(nil)
	r.owners[configMaps.GroupResource()] = &explain.Owner{Name: "nested"}
	nested := instanceWithInventory("ConfigMap=v1/configmaps:0")
	nested.SetLabels(map[string]string{"platform.example.com/parent": "u"})
	annotations := nested.GetAnnotations()
	annotations["platform.example.com/instance"] = "shop/s"
	nested.SetAnnotations(annotations)
	nested.SetAPIVersion("v1")
	nested.SetKind("ConfigMap")
	r.dynamic.(*dynamicfake.FakeDynamicClient).PrependReactor("list", "*",
		func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, &unstructured.UnstructuredList{Items: []unstructured.Unstructured{*nested.Unstructured}}, nil
		})
	o := instanceWithInventory("ConfigMap=v1/configmaps:0")
	o.SetName("s")
	r.readChildren(t.Context(), o, 0)
	want := []string{"children: not read, because only 8 levels are read"}
	if len(o.Children) != 1 || !slices.Equal(o.Children[0].Unread, want) {
		t.Errorf("got %+v", o.Children)
	}
}
