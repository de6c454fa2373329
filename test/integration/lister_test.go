package integration

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// withoutStreamingLists rejects streaming lists, so that the reflector sends plain lists.
type withoutStreamingLists struct{ http.RoundTripper }

func (t withoutStreamingLists) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Query().Get("sendInitialEvents") != "" {
		return &http.Response{StatusCode: http.StatusBadRequest, Body: http.NoBody, Request: r}, nil
	}
	return t.RoundTripper.RoundTrip(r)
}

// Objects from streaming lists, plain lists and events must equal the objects that the dynamic client returns. In plain
// lists, the API server omits the kind of built-in objects.
func TestLister_EqualsDynamicClient(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	custom := h.define(h.newType())
	streaming, plain := rest.CopyConfig(h.config), rest.CopyConfig(h.config)
	plain.Wrap(func(next http.RoundTripper) http.RoundTripper { return withoutStreamingLists{next} })
	for name, config := range map[string]*rest.Config{"streaming": streaming, "plain": plain} {
		c := must(dynamiccontroller.NewForConfig(h.logger(), dynamiccontroller.Config{}, config))
		h.run(c)
		for _, gvr := range []schema.GroupVersionResource{custom, {Version: "v1", Resource: "configmaps"}} {
			object := fmt.Sprintf("%s-before", name)
			h.create(gvr, object)
			h.serve(c, gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil },
				dynamiccontroller.WithCache(dynamiccontroller.CacheFull), dynamiccontroller.WithManagedFields(),
				dynamiccontroller.WithNamespaces(h.namespace))
			h.synced(c, gvr)
			h.equalsDynamicClient(c, gvr, object)
			object = fmt.Sprintf("%s-after", name)
			h.create(gvr, object)
			h.equalsDynamicClient(c, gvr, object)
		}
	}
}

func (h *harness) create(gvr schema.GroupVersionResource, name string) {
	h.Helper()
	kind := map[string]string{"configmaps": "ConfigMap", "widgets": "Widget"}[gvr.Resource]
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": gvr.GroupVersion().String(), "kind": kind,
		"metadata": map[string]any{
			"name": name, "labels": map[string]any{"a": ""}, "annotations": map[string]any{"b": "\"世界\"\n<>&"},
		},
		"data": map[string]any{"empty": "", "text": "grüße\u2028\t\\"},
	}}
	_, err := h.client.Resource(gvr).Namespace(h.namespace).Create(h.Context(), object, metav1.CreateOptions{})
	h.noError(err)
}

func (h *harness) equalsDynamicClient(
	c *dynamiccontroller.DynamicController, gvr schema.GroupVersionResource, name string,
) {
	h.Helper()
	want, err := h.client.Resource(gvr).Namespace(h.namespace).Get(h.Context(), name, metav1.GetOptions{})
	h.noError(err)
	h.eventually(name+" in the cache equals the object from the dynamic client", func() error {
		got, err := must(c.Lister(gvr)).ByNamespace(h.namespace).Get(name)
		if err != nil {
			return err
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("%s", diff)
		}
		return nil
	})
}
