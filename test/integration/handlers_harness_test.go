package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children"
	"github.com/dynamic-controller/engine/test/apiproxy"
)

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// platformName is the field manager of the handlers in these tests.
const platformName = "platform.example.com"

// setting contains the types of the parents and children in a test.
type setting struct {
	*harness
	parents, gadgets schema.GroupVersionResource
	moreKinds        []children.Kind // kinds of children other than ConfigMaps and gadgets
	mapper           meta.RESTMapper
}

func newSetting(h *harness) *setting {
	h.Helper()
	s := &setting{harness: h}
	s.parents = s.defineKind("Platform", apiextensionsv1.NamespaceScoped)
	s.gadgets = s.defineKind("Gadget", apiextensionsv1.NamespaceScoped)
	s.mapper, _ = h.mapperOf(s.parents, s.gadgets)
	return s
}

// mapperOf returns a mapper that has discovered the types.
func (h *harness) mapperOf(types ...schema.GroupVersionResource) (meta.RESTMapper, func() error) {
	h.Helper()
	mapper, stop := h.mapper()
	h.eventually("the mapper has discovered the types", func() error {
		for _, gvr := range types {
			if _, err := mapper.KindFor(gvr); err != nil {
				return err
			}
		}
		return nil
	})
	return mapper, stop
}

// defineKind returns a type of the kind that no other test uses. In the schema, status.conditions is a list of type map
// with the key "type".
func (h *harness) defineKind(kind string, scope apiextensionsv1.ResourceScope) schema.GroupVersionResource {
	h.Helper()
	singular := strings.ToLower(kind)
	crd := newCRD(utilrand.String(8)+".example.com", singular+"s", singular, kind, "v1")
	crd.Spec.Scope = scope
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	condition := &apiextensionsv1.JSONSchemaProps{
		Type: "object", Required: []string{"type"},
		Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"type": text, "status": text, "reason": text, "message": text, "lastTransitionTime": text,
			"observedGeneration": {Type: "integer"},
		},
	}
	version := &crd.Spec.Versions[0]
	version.Subresources = &apiextensionsv1.CustomResourceSubresources{
		Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
	}
	version.Schema.OpenAPIV3Schema = &apiextensionsv1.JSONSchemaProps{
		Type: "object",
		Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"spec": {Type: "object", XPreserveUnknownFields: ptr.To(true)},
			"status": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
				"conditions": {
					Type: "array", XListType: ptr.To("map"), XListMapKeys: []string{"type"},
					Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: condition},
				},
			}},
		},
	}
	gvr := h.exclusiveType(kind+" "+string(scope), crd)
	h.eventually(kind+" is served", func() error {
		_, err := h.client.Resource(gvr).List(h.Context(), metav1.ListOptions{})
		return err
	})
	return gvr
}

func newObject(
	gvr schema.GroupVersionResource, kind, namespace, name string, spec map[string]any,
) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{}}
	object.SetAPIVersion(gvr.GroupVersion().String())
	object.SetKind(kind)
	object.SetName(name)
	if namespace != "" {
		object.SetNamespace(namespace)
	}
	if spec != nil {
		object.Object["spec"] = spec
	}
	return object
}

func newConfigMap(namespace, name, value string) *unstructured.Unstructured {
	object := newObject(configMaps, "ConfigMap", namespace, name, nil)
	object.Object["data"] = map[string]any{"key": value}
	return object
}

// put applies an object with the field manager "user".
func (h *harness) put(gvr schema.GroupVersionResource, object *unstructured.Unstructured) *unstructured.Unstructured {
	h.Helper()
	var now *unstructured.Unstructured
	h.eventually("apply "+object.GetName(), func() (err error) {
		options := metav1.ApplyOptions{FieldManager: "user", Force: true}
		now, err = h.in(gvr, object.GetNamespace()).Apply(h.Context(), object.GetName(), object, options)
		return err
	})
	return now
}

func (h *harness) in(gvr schema.GroupVersionResource, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return h.client.Resource(gvr)
	}
	return h.client.Resource(gvr).Namespace(namespace)
}

// get returns an object, or nil if it does not exist.
func (h *harness) get(gvr schema.GroupVersionResource, namespace, name string) *unstructured.Unstructured {
	h.Helper()
	object, err := h.in(gvr, namespace).Get(context.WithoutCancel(h.Context()), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	h.noError(err)
	return object
}

// merge changes an object with a merge patch and the field manager "user".
func (h *harness) merge(gvr schema.GroupVersionResource, namespace, name, patch string, subresources ...string) {
	h.Helper()
	options := metav1.PatchOptions{FieldManager: "user"}
	_, err := h.in(gvr, namespace).Patch(h.Context(), name, types.MergePatchType, []byte(patch), options, subresources...)
	h.noError(err)
}

// parent returns the identifiers of a parent in the namespace of the test.
func (s *setting) parent(name string) dynamiccontroller.ObjectIdentifiers {
	return s.id(s.parents, name)
}

// kinds returns the kinds of children in these tests.
func (s *setting) kinds() []children.Kind {
	return append([]children.Kind{
		{GroupKind: schema.GroupKind{Kind: "ConfigMap"}, CrossNamespace: true},
		{GroupKind: schema.GroupKind{Group: s.gadgets.Group, Kind: "Gadget"}, CrossNamespace: true},
	}, s.moreKinds...)
}

// newReconciler returns a Reconciler with the given config. It sets the required fields. If the config has no client,
// it uses the harness's client.
func (s *setting) newReconciler(config children.Config) *children.Reconciler {
	s.Helper()
	if config.Client == nil {
		config.Client = s.client
	}
	config.Mapper, config.Name = s.mapper, platformName
	if config.Kinds == nil {
		config.Kinds = s.kinds()
	}
	reconciler, err := children.New(config)
	s.noError(err)
	return reconciler
}

// oneStage returns the desired children in a single stage.
func oneStage(stage ...*unstructured.Unstructured) children.Desired {
	return children.Desired{Stages: [][]children.Child{children.Stage(stage...)}}
}

// partial returns the desired children in a single stage, with Partial set.
func partial(stage ...*unstructured.Unstructured) children.Desired {
	return children.Desired{Stages: [][]children.Child{children.Stage(stage...)}, Partial: true}
}

// isController returns an error if owner is not the controlling owner of the object.
func isController(owner, object *unstructured.Unstructured) error {
	if object == nil {
		return errors.New("the object does not exist")
	}
	if !metav1.IsControlledBy(object, owner) {
		return fmt.Errorf("the owners of %s are %v", object.GetName(), object.GetOwnerReferences())
	}
	return nil
}

// writeCounter counts the write requests of all clients that use a config returned by wrap.
type writeCounter struct{ atomic.Int64 }

func (c *writeCounter) wrap(config *rest.Config) *rest.Config {
	return intercepted(config, func(r *http.Request, send send) (*http.Response, error) {
		if isWrite(r) {
			c.Add(1)
		}
		return send(r)
	})
}

// intercepted returns a copy of a config. Clients that use the copy send their requests through intercept.
func intercepted(
	config *rest.Config, intercept func(r *http.Request, send send) (*http.Response, error),
) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) { return intercept(r, next.RoundTrip) })
	})
	return config
}

func isWrite(r *http.Request) bool { return r.Method != http.MethodGet && r.Method != http.MethodHead }

// delayWatches returns an interceptor that delays the watch events of a type.
func delayWatches(
	gvr schema.GroupVersionResource, delay time.Duration,
) func(*http.Request, send) (*http.Response, error) {
	return func(r *http.Request, send send) (*http.Response, error) {
		return apiproxy.DelayWatches(func(watch apiproxy.Call) time.Duration {
			if watch.Group != gvr.Group {
				return 0
			}
			return delay
		})(roundTripper(send)).RoundTrip(r)
	}
}
