package bench

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

var (
	crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}
	oneObject = metav1.ListOptions{Limit: 1}
)

const namespace = "default"

// fixture describes the types of one API group, and the objects of these types.
type fixture struct {
	Group   string
	Objects []int // The number of objects of each type.
	// Size is the size of each object's JSON in bytes, without managedFields. If it is zero, the objects have no payload.
	Size int `json:",omitempty"`
	// Unmanaged removes managedFields from the objects.
	Unmanaged bool `json:",omitempty"`
}

// manyTypes returns a fixture with the given number of types and the given number of objects of each type.
func manyTypes(types, objects int) fixture {
	f := fixture{Group: fmt.Sprintf("t%dx%d.bench.example.com", types, objects), Objects: make([]int, types)}
	for i := range f.Objects {
		f.Objects[i] = objects
	}
	return f
}

// quietObjects is so large that no object is written again before it has been reconciled.
const quietObjects = 500

// quietAndBusy returns a fixture of a quiet type and a busy one.
func quietAndBusy(busy int) fixture {
	return fixture{Group: fmt.Sprintf("q%d.bench.example.com", busy), Objects: []int{quietObjects, busy}}
}

// withPayload returns a fixture with one type whose objects have the given size. Fixtures with the same purpose and
// size share a type, and create adjusts the number of its objects.
func withPayload(purpose string, objects, size int) fixture {
	return fixture{Group: fmt.Sprintf("%s%d.bench.example.com", purpose, size), Objects: []int{objects}, Size: size}
}

// withoutManagedFields returns a copy of the fixture with a different type, whose objects have no managedFields.
func (f fixture) withoutManagedFields() fixture {
	f.Group, f.Unmanaged = "unmanaged-"+f.Group, true
	return f
}

func (f fixture) String() string {
	var text string
	switch {
	case len(f.Objects) == 2:
		return fmt.Sprintf("2 types of %d and %d objects", f.Objects[0], f.Objects[1])
	case len(f.Objects) == 1:
		text = fmt.Sprintf("%d objects", f.Objects[0])
	default:
		text = fmt.Sprintf("%d types of %d objects", len(f.Objects), f.Objects[0])
	}
	if f.Size > 0 {
		text += fmt.Sprintf(" of %g kB", float64(f.Size)/1000)
	}
	if f.Unmanaged {
		text += " without managedFields"
	}
	return text
}

// types returns the GVRs of the fixture.
func (f fixture) types() []schema.GroupVersionResource {
	gvrs := make([]schema.GroupVersionResource, len(f.Objects))
	for i := range gvrs {
		gvrs[i] = resourceOf(f.Group, i)
	}
	return gvrs
}

func resourceOf(group string, i int) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: "v1", Resource: fmt.Sprintf("type%ds", i)}
}

// kindOf returns the kind of a resource that was returned by resourceOf.
func kindOf(gvr schema.GroupVersionResource) string {
	return "T" + strings.TrimSuffix(gvr.Resource, "s")[1:]
}

// create creates the types and objects that do not exist yet, and deletes surplus objects. It takes about 10 s for 200
// types and 10,000 small objects, and about 2 minutes for 100,000 objects of 2.4 kB.
func (f fixture) create(ctx context.Context, config *rest.Config) error {
	const parallelTypes, parallelObjects = 16, 48
	config = rest.CopyConfig(config)
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	counts := make([]int, len(f.Objects))
	definitions, defining := errgroup.WithContext(ctx)
	definitions.SetLimit(parallelTypes)
	for i, gvr := range f.types() {
		definitions.Go(func() error {
			if err := define(defining, client, gvr, f.version()); err != nil {
				return err
			}
			if err := waitEstablished(defining, client, gvr); err != nil {
				return err
			}
			count, err := countObjects(defining, client, gvr)
			counts[i] = count
			return err
		})
	}
	if err := definitions.Wait(); err != nil {
		return fmt.Errorf("define types: %w", err)
	}
	writes, writing := errgroup.WithContext(ctx)
	writes.SetLimit(parallelObjects)
	for i, gvr := range f.types() {
		for n := 0; counts[i] < f.Objects[i] && n < f.Objects[i]; n++ {
			writes.Go(func() error { return f.createObject(writing, client, gvr, n) })
		}
		for n := f.Objects[i]; n < counts[i]; n++ {
			writes.Go(func() error { return f.deleteObject(writing, client, gvr, n) })
		}
	}
	if err := writes.Wait(); err != nil {
		return fmt.Errorf("create objects: %w", err)
	}
	return nil
}

func (f fixture) createObject(ctx context.Context, c dynamic.Interface, gvr schema.GroupVersionResource, n int) error {
	objects, o := c.Resource(gvr).Namespace(namespace), object(gvr, n)
	if f.Size > 0 {
		o = payload(gvr, n, f.Size)
	}
	// Server-side apply would result in the same managedFields, but would cost the API server more.
	_, err := objects.Create(ctx, o, metav1.CreateOptions{FieldManager: "bench-controller"})
	if apierrors.IsAlreadyExists(err) {
		err = nil
	}
	if err != nil || !f.Unmanaged {
		return err
	}
	// The request that creates an object cannot remove its managedFields.
	remove := []byte(`{"metadata":{"managedFields":[{}]}}`)
	_, err = objects.Patch(ctx, o.GetName(), types.MergePatchType, remove, metav1.PatchOptions{})
	return err
}

func (f fixture) deleteObject(ctx context.Context, c dynamic.Interface, gvr schema.GroupVersionResource, n int) error {
	err := c.Resource(gvr).Namespace(namespace).Delete(ctx, f.name(n), metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// name returns the name of the nth object of each type.
func (f fixture) name(n int) string {
	if f.Size > 0 {
		return payloadName(n)
	}
	return nameOf(n)
}

// version returns the CRD version of the fixture's types.
func (f fixture) version() map[string]any {
	if f.Size > 0 {
		return payloadVersion
	}
	return smallVersion
}

// countObjects returns the number of objects of the type.
func countObjects(ctx context.Context, client dynamic.Interface, gvr schema.GroupVersionResource) (int, error) {
	list, err := client.Resource(gvr).List(ctx, oneObject)
	if err != nil {
		return 0, err
	}
	count := len(list.Items)
	if remaining := list.GetRemainingItemCount(); remaining != nil {
		count += int(*remaining)
	}
	return count, nil
}

// smallVersion is the CRD version of types whose objects have no payload. Its schema is minimal.
var smallVersion = map[string]any{
	"name": "v1", "served": true, "storage": true,
	"subresources": map[string]any{"status": map[string]any{}},
	"schema": map[string]any{"openAPIV3Schema": map[string]any{
		"type": "object",
		"properties": map[string]any{
			"spec":   map[string]any{"type": "object", "properties": map[string]any{"n": map[string]any{"type": "integer"}}},
			"status": map[string]any{"type": "object", "properties": map[string]any{"n": map[string]any{"type": "integer"}}},
		},
	}},
}

// define creates the type's CRD.
func define(ctx context.Context, c dynamic.Interface, gvr schema.GroupVersionResource, version map[string]any) error {
	_, err := c.Resource(crdResource).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": gvr.GroupResource().String()},
		"spec": map[string]any{
			"group":    gvr.Group,
			"scope":    "Namespaced",
			"names":    map[string]any{"plural": gvr.Resource, "kind": kindOf(gvr)},
			"versions": []any{version},
		},
	}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// waitEstablished waits until the type is established and can be listed.
func waitEstablished(ctx context.Context, client dynamic.Interface, gvr schema.GroupVersionResource) error {
	return wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			crd, err := client.Resource(crdResource).Get(ctx, gvr.GroupResource().String(), metav1.GetOptions{})
			if err != nil || !isTrue(crd, "Established") {
				return false, err
			}
			_, err = client.Resource(gvr).List(ctx, oneObject)
			return err == nil, nil
		})
}

// isTrue reports whether the object has the condition and its status is True.
func isTrue(obj *unstructured.Unstructured, condition string) bool {
	conditions, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == condition {
			return c["status"] == "True"
		}
	}
	return false
}

// object returns the nth object of the type.
func object(gvr schema.GroupVersionResource, n int) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": gvr.GroupVersion().String(),
		"kind":       kindOf(gvr),
		"metadata":   map[string]any{"namespace": namespace, "name": nameOf(n)},
		"spec":       map[string]any{"n": int64(0)},
	}}
}

func nameOf(n int) string { return fmt.Sprintf("object-%d", n) }
