package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// platformName is what the handlers of these tests write as.
const platformName = "platform.example.com"

// setting is the types that parents and children of a test are of: two kinds, for there is one that is no longer named.
type setting struct {
	*harness
	parents, gadgets schema.GroupVersionResource
	more             []handlers.ChildKind // of children, in addition to config maps and gadgets
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

// mapperOf returns a mapper that knows the types.
func (h *harness) mapperOf(types ...schema.GroupVersionResource) (meta.RESTMapper, func() error) {
	h.Helper()
	mapper, stop := h.mapper()
	h.eventually("the mapper knows the types", func() error {
		for _, gvr := range types {
			if _, err := mapper.KindFor(gvr); err != nil {
				return err
			}
		}
		return nil
	})
	return mapper, stop
}

// defineKind defines a type whose conditions are a list by type, as they should be.
func (h *harness) defineKind(kind string, scope apiextensionsv1.ResourceScope) schema.GroupVersionResource {
	h.Helper()
	singular := strings.ToLower(kind)
	crd := newCRD(utilrand.String(8)+".example.com", singular+"s", singular, kind, "v1")
	crd.Spec.Scope = scope
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	crd.Spec.Versions[0].Subresources = &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}
	crd.Spec.Versions[0].Schema.OpenAPIV3Schema = &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
		"spec": {Type: "object", XPreserveUnknownFields: ptr.To(true)},
		"status": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"conditions": {Type: "array", XListType: ptr.To("map"), XListMapKeys: []string{"type"}, Items: &apiextensionsv1.JSONSchemaPropsOrArray{
				Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Required: []string{"type"}, Properties: map[string]apiextensionsv1.JSONSchemaProps{
					"type": text, "status": text, "reason": text, "message": text, "lastTransitionTime": text, "observedGeneration": {Type: "integer"},
				}},
			}},
		}},
	}}
	h.createCRD(crd)
	gvr := schema.GroupVersionResource{Group: crd.Spec.Group, Version: "v1", Resource: crd.Spec.Names.Plural}
	h.eventually(kind+" is served", func() error {
		_, err := h.client.Resource(gvr).List(h.Context(), metav1.ListOptions{})
		return err
	})
	return gvr
}

func newObject(gvr schema.GroupVersionResource, kind, namespace, name string, spec map[string]any) *unstructured.Unstructured {
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

// put applies an object as a user.
func (h *harness) put(gvr schema.GroupVersionResource, object *unstructured.Unstructured) *unstructured.Unstructured {
	h.Helper()
	var now *unstructured.Unstructured
	h.eventually("apply "+object.GetName(), func() (err error) {
		now, err = h.in(gvr, object.GetNamespace()).Apply(h.Context(), object.GetName(), object, metav1.ApplyOptions{FieldManager: "user", Force: true})
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

// get returns nil if there is no such object.
func (h *harness) get(gvr schema.GroupVersionResource, namespace, name string) *unstructured.Unstructured {
	h.Helper()
	object, err := h.in(gvr, namespace).Get(context.WithoutCancel(h.Context()), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	h.noError(err)
	return object
}

// merge changes an object as a user.
func (h *harness) merge(gvr schema.GroupVersionResource, namespace, name, patch string, subresources ...string) *unstructured.Unstructured {
	h.Helper()
	now, err := h.in(gvr, namespace).Patch(h.Context(), name, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{FieldManager: "user"}, subresources...)
	h.noError(err)
	return now
}

// parent is the identifiers of a parent in the test's namespace.
func (s *setting) parent(name string) dynamiccontroller.ObjectIdentifiers {
	return s.id(s.parents, name)
}

// kinds are those of the children in these tests.
func (s *setting) kinds() []handlers.ChildKind {
	return append([]handlers.ChildKind{
		{GroupKind: schema.GroupKind{Kind: "ConfigMap"}, Elsewhere: true},
		{GroupKind: schema.GroupKind{Group: s.gadgets.Group, Kind: "Gadget"}, Elsewhere: true},
	}, s.more...)
}

// newChildren writes as the harness's user.
func (s *setting) newChildren(config handlers.ChildrenConfig) *handlers.Children {
	s.Helper()
	if config.Client == nil {
		config.Client = s.client
	}
	config.Mapper, config.Name = s.mapper, platformName
	if config.Kinds == nil {
		config.Kinds = s.kinds()
	}
	children, err := handlers.NewChildren(config)
	s.noError(err)
	return children
}

// stages are one of all these.
func stages(children ...*unstructured.Unstructured) handlers.Desired {
	return handlers.Desired{Stages: [][]*unstructured.Unstructured{children}}
}

// isController tells an error if the object is not controlled by the owner.
func isController(owner, object *unstructured.Unstructured) error {
	if object == nil {
		return errors.New("it is not there")
	}
	if !metav1.IsControlledBy(object, owner) {
		return fmt.Errorf("its owners are %v", object.GetOwnerReferences())
	}
	return nil
}

// tally counts what is written through a config.
type tally struct{ writes atomic.Int64 }

func (t *tally) through(config *rest.Config) *rest.Config {
	return wrapped(config, func(r *http.Request, send send) (*http.Response, error) {
		if isWrite(r) {
			t.writes.Add(1)
		}
		return send(r)
	})
}

func wrapped(config *rest.Config, meddle meddler) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) { return meddle(r, next.RoundTrip) })
	})
	return config
}

func isWrite(r *http.Request) bool { return r.Method != http.MethodGet && r.Method != http.MethodHead }

// late is a meddler that lets what watches of a type say arrive later, in order.
func late(gvr schema.GroupVersionResource, by time.Duration) meddler {
	return func(r *http.Request, send send) (*http.Response, error) {
		answer, err := send(r)
		if err == nil && isWatch(r) && isFor(r, gvr) {
			answer.Body = newLateBody(answer.Body, by)
		}
		return answer, err
	}
}

// lateBody reads at once and hands on later.
type lateBody struct {
	source io.ReadCloser
	parts  chan latePart
	closed chan struct{}
	once   sync.Once
	rest   bytes.Buffer
}

type latePart struct {
	content []byte
	due     time.Time
	err     error
}

func newLateBody(source io.ReadCloser, by time.Duration) *lateBody {
	b := &lateBody{source: source, parts: make(chan latePart, 1000), closed: make(chan struct{})}
	go func() {
		for {
			content := make([]byte, 64<<10)
			n, err := source.Read(content)
			select {
			case b.parts <- latePart{content: content[:n], due: time.Now().Add(by), err: err}:
			case <-b.closed:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return b
}

func (b *lateBody) Read(p []byte) (int, error) {
	if b.rest.Len() == 0 {
		select {
		case part := <-b.parts:
			wait := time.NewTimer(time.Until(part.due))
			defer wait.Stop()
			select {
			case <-wait.C:
			case <-b.closed:
				return 0, io.ErrClosedPipe
			}
			if part.err != nil {
				return 0, part.err
			}
			b.rest.Write(part.content)
		case <-b.closed:
			return 0, io.ErrClosedPipe
		}
	}
	return b.rest.Read(p)
}

func (b *lateBody) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.source.Close()
}
