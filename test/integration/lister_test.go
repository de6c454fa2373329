package integration

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

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
	custom := h.widgets()
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

// encodings records the encodings of responses that contain metadata.
type encodings struct {
	mu   sync.Mutex
	seen map[string]bool
}

type recordEncodings struct {
	http.RoundTripper
	*encodings
}

func (e recordEncodings) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := e.RoundTripper.RoundTrip(r)
	if err == nil && response.StatusCode == http.StatusOK &&
		strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata") {
		e.mu.Lock()
		defer e.mu.Unlock()
		encoding, _, _ := strings.Cut(response.Header.Get("Content-Type"), ";")
		e.seen[encoding] = true
	}
	return response, err
}

// withoutProtobuf requests JSON, as if the server did not support protobuf.
type withoutProtobuf struct{ http.RoundTripper }

func (t withoutProtobuf) RoundTrip(r *http.Request) (*http.Response, error) {
	_, others, found := strings.Cut(r.Header.Get("Accept"), ",")
	if found {
		r = r.Clone(r.Context())
		r.Header.Set("Accept", others)
	}
	return t.RoundTripper.RoundTrip(r)
}

// Metadata from streaming lists, plain lists and events must equal the metadata that the metadata client returns. It is
// received as protobuf, or as JSON from servers that do not support protobuf.
func TestLister_EqualsMetadataClient(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	custom := h.widgets()
	plain := func(next http.RoundTripper) http.RoundTripper { return withoutStreamingLists{next} }
	asJSON := func(next http.RoundTripper) http.RoundTripper { return withoutProtobuf{next} }
	for name, test := range map[string]struct {
		wrappers []transport.WrapperFunc
		encoding string
	}{
		"streaming":      {nil, runtime.ContentTypeProtobuf},
		"plain":          {[]transport.WrapperFunc{plain}, runtime.ContentTypeProtobuf},
		"streaming-json": {[]transport.WrapperFunc{asJSON}, runtime.ContentTypeJSON},
		"plain-json":     {[]transport.WrapperFunc{plain, asJSON}, runtime.ContentTypeJSON},
	} {
		config, received := rest.CopyConfig(h.config), &encodings{seen: map[string]bool{}}
		for _, wrap := range test.wrappers {
			config.Wrap(wrap)
		}
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return recordEncodings{next, received} })
		c := must(dynamiccontroller.NewForConfig(h.logger(), dynamiccontroller.Config{}, config))
		h.run(c)
		for _, gvr := range []schema.GroupVersionResource{custom, {Version: "v1", Resource: "configmaps"}} {
			before, after := name+"-before", name+"-after"
			h.create(gvr, before)
			h.serve(c, gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil },
				dynamiccontroller.WithCache(dynamiccontroller.CacheMetadata), dynamiccontroller.WithNamespaces(h.namespace))
			h.synced(c, gvr)
			h.equalsMetadataClient(c, gvr, before)
			h.create(gvr, after)
			h.equalsMetadataClient(c, gvr, after)
		}
		received.mu.Lock()
		if diff := cmp.Diff(map[string]bool{test.encoding: true}, received.seen); diff != "" {
			t.Errorf("%s: encodings of the responses: %s", name, diff)
		}
		received.mu.Unlock()
	}
}

func (h *harness) equalsMetadataClient(
	c *dynamiccontroller.DynamicController, gvr schema.GroupVersionResource, name string,
) {
	h.Helper()
	client := must(metadata.NewForConfig(h.config))
	want, err := client.Resource(gvr).Namespace(h.namespace).Get(h.Context(), name, metav1.GetOptions{})
	h.noError(err)
	want.TypeMeta = metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"} // absent in protobuf
	want.ManagedFields = nil
	h.eventually(name+" in the cache equals the object from the metadata client", func() error {
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
