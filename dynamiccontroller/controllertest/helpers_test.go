package controllertest_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
)

var (
	widgets    = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	gadgets    = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gadgets"} // not served
)

func newServer() *controllertest.Server {
	return controllertest.NewServer(
		controllertest.Type{GVR: widgets, Kind: "Widget"},
		controllertest.Type{GVR: configMaps, Kind: "ConfigMap"},
		controllertest.Type{GVR: namespaces, Kind: "Namespace", ClusterScoped: true},
	)
}

func in(server *controllertest.Server, gvr schema.GroupVersionResource) dynamic.ResourceInterface {
	return server.Resource(gvr).Namespace("default")
}

// widget returns a widget in the namespace default.
func widget(name string, size int) *unstructured.Unstructured {
	return fromYAML(fmt.Sprintf(`
apiVersion: example.com/v1
kind: Widget
metadata: {name: %s, namespace: default}
spec: {size: %d}
`, name, size))
}

// configMap returns a config map in the namespace default. If owner is not empty, the widget "first" with this UID is
// its controller.
func configMap(name string, owner types.UID) *unstructured.Unstructured {
	object := fromYAML(fmt.Sprintf(
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: %s, namespace: default}, data: {key: value}}", name))
	if owner != "" {
		object.SetOwnerReferences([]metav1.OwnerReference{{
			APIVersion: "example.com/v1", Kind: "Widget", Name: "first", UID: owner, Controller: ptr.To(true),
		}})
	}
	return object
}

// fromYAML returns the object in a manifest.
func fromYAML(manifest string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), object); err != nil {
		panic(err)
	}
	return object
}

// recorder records the reconciles of a handler.
type recorder struct {
	mu    sync.Mutex // guards calls
	calls []call
}

type call struct {
	id  dynamiccontroller.ObjectIdentifiers
	err error
}

func (r *recorder) record(handler dynamiccontroller.Handler) dynamiccontroller.Handler {
	return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		err := handler(ctx, id)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.calls = append(r.calls, call{id, err})
		return err
	}
}

// take returns the calls since the last call to take.
func (r *recorder) take() []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return calls
}

// panicOf returns the message with which f panics, or an empty string.
func panicOf(f func()) (message string) {
	defer func() {
		if r := recover(); r != nil {
			message = fmt.Sprint(r)
		}
	}()
	f()
	return ""
}

// next returns a function that returns the next event of a watch, and reports whether the watch is open.
func next(w watch.Interface) func() (event string, open bool) {
	return func() (string, bool) {
		e, open := <-w.ResultChan()
		if !open {
			return "", false
		}
		return fmt.Sprintf("%s %s", e.Type, e.Object.(*unstructured.Unstructured).GetName()), true
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// with returns a copy of an object in which the field with the given path, such as "spec.size", is set.
func with(object *unstructured.Unstructured, path string, value any) *unstructured.Unstructured {
	object = object.DeepCopy()
	if err := unstructured.SetNestedField(object.Object, value, strings.Split(path, ".")...); err != nil {
		panic(err)
	}
	return object
}

// field returns the field with the given path, or nil.
func field(object *unstructured.Unstructured, path string) any {
	value, _, err := unstructured.NestedFieldNoCopy(object.Object, strings.Split(path, ".")...)
	if err != nil {
		panic(err)
	}
	return value
}

var (
	create = metav1.CreateOptions{}
	update = metav1.UpdateOptions{}
)

// failing is a test that is expected to fail.
type failing struct {
	testing.TB
	mu       sync.Mutex // guards failures
	failures []string
}

// failures calls f with a test that is expected to fail, and returns its messages.
func failures(t *testing.T, f func(t testing.TB)) []string {
	t.Helper()
	fake := &failing{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(fake)
	}()
	<-done
	fake.mu.Lock()
	defer fake.mu.Unlock()
	return fake.failures
}

func (f *failing) Helper() {}

func (f *failing) Errorf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures = append(f.failures, fmt.Sprintf(format, args...))
}

func (f *failing) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	runtime.Goexit()
}
