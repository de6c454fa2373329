package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// When a field with a default is added to a schema, every object changes, but no resourceVersion changes and the API
// server sends no watch events. The handler must still be called for each object.
func TestD1_SchemaChangeReconcilesEveryObject(t *testing.T) {
	t.Run("without writes", func(t *testing.T) { testSchemaChange(t, false) })
	// The API server closes a watch one second after the schema change. If the watch has delivered an event in the
	// meantime, the client can resume it without a relist, because the resourceVersion of that event is newer than the
	// initial state of the API server's new watch cache.
	t.Run("with a write", func(t *testing.T) { testSchemaChange(t, true) })
}

func testSchemaChange(t *testing.T, write bool) {
	h := newHarness(t)
	gvr := h.define(h.newType())
	objects := []string{"a", "b", "c"}
	for _, object := range objects {
		h.apply(gvr, object, 0)
	}
	c := h.controller(dynamiccontroller.Config{})
	colors := &seen{values: map[string]any{}}
	calls := newRecorder(t, func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		object, err := must(c.Lister(gvr)).ByNamespace(id.Namespace()).Get(id.Name())
		if err != nil {
			return err
		}
		colors.set(id.Name(), colorOf(object.(*unstructured.Unstructured)))
		return nil
	})
	h.serve(c, gvr, calls.handle)
	h.run(c)
	calls.waitForTotal(len(objects))

	h.addDefault(gvr, "color", "blue")
	if write {
		h.eventually("a write uses the new schema", func() error {
			h.apply(gvr, "written", 0)
			written, err := h.client.Resource(gvr).Namespace(h.namespace).Get(h.Context(), "written", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if color := colorOf(written); color != "blue" {
				return fmt.Errorf("got color %q, want blue", color)
			}
			return nil
		})
		h.apply(gvr, "written", 1)
		objects = append(objects, "written")
	}
	h.eventually("every object has been reconciled with the default", func() error {
		for _, object := range objects {
			if color := colors.get(object); color != "blue" {
				return fmt.Errorf("got color %q for %s, want blue", color, object)
			}
		}
		return nil
	})
}

func colorOf(object *unstructured.Unstructured) string {
	return must2(unstructured.NestedString(object.Object, "spec", "color"))
}

// In every cache mode, the engine must store an unchanged object identically whether the object arrives in a list or in
// a watch event. Otherwise, a relist would call the handler.
func TestD1_RelistOfUnchangedObjectsCallsNoHandler(t *testing.T) {
	for name, mode := range map[string]dynamiccontroller.CacheMode{
		"full":     dynamiccontroller.CacheFull,
		"metadata": dynamiccontroller.CacheMetadata,
		"keys":     dynamiccontroller.CacheKeys,
	} {
		t.Run(name, func(t *testing.T) { testRelist(t, mode) })
	}
}

func testRelist(t *testing.T, mode dynamiccontroller.CacheMode) {
	deployments := gvrType{Group: "apps", Version: "v1", Resource: "deployments"}
	h := newHarness(t)
	w := &wire{}
	c := w.through(h).controller(dynamiccontroller.Config{Workers: 1})
	calls := newRecorder(t, nil)
	h.serve(c, deployments, calls.handle,
		dynamiccontroller.WithCache(mode), dynamiccontroller.WithNamespaces(h.namespace))
	h.deploy("unchanged")
	h.run(c)
	calls.waitFor(h.id(deployments, "unchanged"), 1)

	for _, streaming := range []bool{false, true} {
		var relists atomic.Int64
		w.set(func(r *http.Request, send send) (*http.Response, error) {
			if !streaming {
				r = withoutStreaming(r)
			}
			answer, err := send(r)
			query := r.URL.Query()
			isList := !isWatch(r) && query.Get("limit") != "1" || query.Get("sendInitialEvents") != ""
			if err == nil && answer.StatusCode == http.StatusOK && isList {
				relists.Add(1)
			}
			return answer, err
		})
		if h.eventuallyWatches(w, deployments, 1); w.cut(deployments) != 1 {
			t.Fatal("no watch was closed")
		}
		h.eventually(fmt.Sprintf("the type is relisted (streaming: %t)", streaming), func() error {
			if relists.Load() == 0 {
				return errors.New("no relist")
			}
			return nil
		})
	}
	h.deploy("fence")
	calls.waitFor(h.id(deployments, "fence"), 1)
	if n := calls.count(h.id(deployments, "unchanged")); n != 1 {
		t.Errorf("got %d calls for an unchanged object, want 1", n)
	}
}

func (h *harness) deploy(name string) {
	h.Helper()
	labels := map[string]string{"app": name}
	_, err := h.clients.AppsV1().Deployments(h.namespace).Create(h.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"a": "b"}},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			},
		},
	}, metav1.CreateOptions{})
	h.noError(err)
}

// seen stores the last value of each key.
type seen struct {
	mu     sync.Mutex // Guards values.
	values map[string]any
}

func (s *seen) set(key string, value any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[key] = value
}

func (s *seen) get(key string) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.values[key]
}

// must2 returns the value of a nested field, or the zero value if the object does not have the field.
func must2[T any](v T, _ bool, err error) T { return must(v, err) }

// addDefault changes the type's schema. It adds a string field with a default value to the spec.
func (h *harness) addDefault(gvr gvrType, field, value string) {
	h.Helper()
	h.noError(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		crds := h.crds.ApiextensionsV1().CustomResourceDefinitions()
		crd, err := crds.Get(h.Context(), gvr.GroupResource().String(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties = map[string]apiextensionsv1.JSONSchemaProps{"spec": {
			Type: "object", XPreserveUnknownFields: ptr.To(true),
			Properties: map[string]apiextensionsv1.JSONSchemaProps{field: {
				Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"` + value + `"`)},
			}},
		}}
		_, err = crds.Update(h.Context(), crd, metav1.UpdateOptions{})
		return err
	}))
}
