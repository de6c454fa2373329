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
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

var (
	crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	oneObject   = metav1.ListOptions{Limit: 1}
)

const namespace = "default"

// fixture is types of one group and their objects.
type fixture struct {
	Group   string
	Objects []int // by type
}

// manyTypes is so many types of so many objects each.
func manyTypes(types, objects int) fixture {
	f := fixture{Group: fmt.Sprintf("t%dx%d.bench.example.com", types, objects), Objects: make([]int, types)}
	for i := range f.Objects {
		f.Objects[i] = objects
	}
	return f
}

// quietObjects is enough for none of them to be written again before it was reconciled.
const quietObjects = 500

// quietAndBusy is a quiet type and a busy one.
func quietAndBusy(busy int) fixture {
	return fixture{Group: fmt.Sprintf("q%d.bench.example.com", busy), Objects: []int{quietObjects, busy}}
}

func (f fixture) String() string {
	if len(f.Objects) == 2 {
		return fmt.Sprintf("2 types of %d and %d objects", f.Objects[0], f.Objects[1])
	}
	return fmt.Sprintf("%d types of %d objects", len(f.Objects), f.Objects[0])
}

// types are the fixture's GVRs.
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

// kindOf is the kind of resourceOf's resource.
func kindOf(gvr schema.GroupVersionResource) string {
	return "T" + strings.TrimSuffix(gvr.Resource, "s")[1:]
}

// create makes what of the fixture is not there yet. It takes some 10 s for 200 types and 10,000 objects.
func (f fixture) create(ctx context.Context, config *rest.Config) error {
	const atOnce = 16
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	definitions, defining := errgroup.WithContext(ctx)
	definitions.SetLimit(atOnce)
	for _, gvr := range f.types() {
		definitions.Go(func() error {
			if err := define(defining, client, gvr); err != nil {
				return err
			}
			return waitEstablished(defining, client, gvr)
		})
	}
	if err := definitions.Wait(); err != nil {
		return fmt.Errorf("define types: %w", err)
	}

	objects, creating := errgroup.WithContext(ctx)
	objects.SetLimit(atOnce)
	for i, gvr := range f.types() {
		for n := range f.Objects[i] {
			objects.Go(func() error {
				_, err := client.Resource(gvr).Namespace(namespace).Create(creating, object(gvr, n), metav1.CreateOptions{})
				if apierrors.IsAlreadyExists(err) {
					return nil
				}
				return err
			})
		}
	}
	if err := objects.Wait(); err != nil {
		return fmt.Errorf("create objects: %w", err)
	}
	return nil
}

// define creates a CRD as small as can be.
func define(ctx context.Context, client dynamic.Interface, gvr schema.GroupVersionResource) error {
	_, err := client.Resource(crdResource).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": gvr.GroupResource().String()},
		"spec": map[string]any{
			"group": gvr.Group,
			"scope": "Namespaced",
			"names": map[string]any{"plural": gvr.Resource, "kind": kindOf(gvr)},
			"versions": []any{map[string]any{
				"name": gvr.Version, "served": true, "storage": true,
				"subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object",
					"properties": map[string]any{
						"spec":   map[string]any{"type": "object", "properties": map[string]any{"n": map[string]any{"type": "integer"}}},
						"status": map[string]any{"type": "object", "properties": map[string]any{"n": map[string]any{"type": "integer"}}},
					},
				}},
			}},
		},
	}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// waitEstablished waits until the type is established and answers.
func waitEstablished(ctx context.Context, client dynamic.Interface, gvr schema.GroupVersionResource) error {
	return wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		crd, err := client.Resource(crdResource).Get(ctx, gvr.GroupResource().String(), metav1.GetOptions{})
		if err != nil || !isEstablished(crd) {
			return false, err
		}
		_, err = client.Resource(gvr).List(ctx, oneObject)
		return err == nil, nil
	})
}

func isEstablished(crd *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Established" {
			return c["status"] == "True"
		}
	}
	return false
}

// object is the type's nth object.
func object(gvr schema.GroupVersionResource, n int) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": gvr.GroupVersion().String(),
		"kind":       kindOf(gvr),
		"metadata":   map[string]any{"namespace": namespace, "name": nameOf(n)},
		"spec":       map[string]any{"n": int64(0)},
	}}
}

func nameOf(n int) string { return fmt.Sprintf("object-%d", n) }
