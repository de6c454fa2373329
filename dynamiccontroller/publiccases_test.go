package dynamiccontroller_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
)

// publicCase is a handler that reads only caches, and repeats its last step if a cache lacks the writes of that step.
type publicCase struct {
	existing  []*unstructured.Unstructured
	lags      schema.GroupVersionResource // the type whose cache lags
	reconcile func(ctx context.Context, l *lagging, name string) error
	counts    schema.GroupVersionResource // the type whose objects are counted at the end
	want      int
	fault     int // the count without the promise
}

// Faults of operators that were reported in public do not occur with the promise. They occur without it.
func TestD12_PublicCases(t *testing.T) {
	for name, test := range map[string]publicCase{
		// scylla-operator #2492: the operator did not find the namespace of a datacenter in a stale cache, and created
		// a second one with another generated name. It later removed one of the two, with the datacenter in it. The
		// namespaces were in remote clusters. Here, they are in the cluster of the controller.
		"scylla-operator 2492, a namespace is created twice": {
			lags: lagChildren, reconcile: createNamespace, counts: lagChildren, want: 1, fault: 2,
		},
		// opensearch-k8s-operator #1471: a node pool was scaled down twice, because the cache still contained its former
		// number of replicas. The second step removed a node that was still needed.
		"opensearch-k8s-operator 1471, a pool is scaled down twice": {
			existing: []*unstructured.Unstructured{
				pool(3), lagObject(lagOthers, "a", nil), lagObject(lagOthers, "b", nil), lagObject(lagOthers, "c", nil),
			},
			lags: lagChildren, reconcile: scaleDown, counts: lagOthers, want: 2, fault: 1,
		},
		// crossplane #7062: a composed resource was created twice, because the reference to the first one, in the
		// composite itself, had not reached the cache of the composite's type.
		"crossplane 7062, a composed resource is created twice": {
			lags: lagParents, reconcile: compose, counts: lagChildren, want: 1, fault: 2,
		},
	} {
		t.Run(name, func(t *testing.T) { test.run(t, dynamiccontroller.Config{}, test.want) })
		t.Run(name+" without the promise", func(t *testing.T) {
			test.run(t, dynamiccontroller.Config{MaxWriteLag: -1}, test.fault)
		})
	}
}

// run causes two calls while the cache lags.
func (c publicCase) run(t *testing.T, config dynamiccontroller.Config, want int) {
	synctest.Test(t, func(t *testing.T) {
		l := newLagging(t, config, readOnly(lagChildren), readOnly(lagOthers))
		for _, object := range append(c.existing, lagObject(lagParents, "first", nil)) {
			l.server.Apply(object)
		}
		controllertest.WaitIdle(t, l.controller)
		l.called()
		release := l.server.HoldWatches(c.lags)
		defer release()
		l.write = func(ctx context.Context, name string) error { return c.reconcile(ctx, l, name) }
		l.controller.Enqueue(l.id("first"))
		l.wantCalls("the first step", "first")
		l.controller.Enqueue(l.id("first"))
		controllertest.WaitIdle(t, l.controller)
		release()
		controllertest.WaitIdle(t, l.controller)
		if len(l.called()) == 0 {
			t.Error("the handler was not called again")
		}
		list, err := l.in(c.counts).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != want {
			t.Errorf("got %d %s, error %v, want %d", len(list.Items), c.counts.Resource, err, want)
		}
	})
}

// createNamespace creates a child if there is none.
func createNamespace(ctx context.Context, l *lagging, name string) error {
	if len(l.cached(lagChildren)) > 0 {
		return nil
	}
	namespace := lagObject(lagChildren, "", nil)
	namespace.SetGenerateName(name + "-")
	_, err := l.in(lagChildren).Create(ctx, namespace, metav1.CreateOptions{})
	return err
}

// scaleDown removes one node if the pool has more than two replicas.
func scaleDown(ctx context.Context, l *lagging, _ string) error {
	replicas, _, err := unstructured.NestedInt64(l.cached(lagChildren)[0].Object, "spec", "replicas")
	if err != nil || replicas <= 2 {
		return err
	}
	node := l.cached(lagOthers)[0].GetName()
	if err := patch(ctx, l.in(lagChildren), "pool", fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas-1)); err != nil {
		return err
	}
	return l.in(lagOthers).Delete(ctx, node, metav1.DeleteOptions{})
}

// compose generates a name, stores it in the status of its object, and creates a child with this name.
func compose(ctx context.Context, l *lagging, name string) error {
	_, composed, err := unstructured.NestedString(l.cached(lagParents)[0].Object, "status", "ref")
	if err != nil || composed {
		return err
	}
	ref := name + "-" + utilrand.String(5)
	if err := patch(ctx, l.in(lagParents), name, fmt.Sprintf(`{"status":{"ref":%q}}`, ref), "status"); err != nil {
		return err
	}
	_, err = l.in(lagChildren).Create(ctx, lagObject(lagChildren, ref, nil), metav1.CreateOptions{})
	return err
}

// cached returns the objects in a cache that the handler reads.
func (l *lagging) cached(gvr schema.GroupVersionResource) []*unstructured.Unstructured {
	var lister dynamiccontroller.Lister
	if gvr == lagParents {
		lister = must(l.controller.Lister(gvr))
	} else {
		lister = must(l.controller.SecondaryLister(lagParents, readOnly(gvr).Key()))
	}
	var objects []*unstructured.Unstructured
	for _, object := range must(lister.List(labels.Everything())) {
		objects = append(objects, object.(*unstructured.Unstructured))
	}
	return objects
}

func (l *lagging) in(gvr schema.GroupVersionResource) dynamic.ResourceInterface {
	return l.server.Resource(gvr).Namespace("default")
}

// readOnly returns a watch whose events cause no calls.
func readOnly(gvr schema.GroupVersionResource) dynamiccontroller.Watch {
	none := func(context.Context, dynamiccontroller.Object) []string { return nil }
	return dynamiccontroller.Watches(gvr, none, dynamiccontroller.WithCache(dynamiccontroller.CacheFull))
}

func pool(replicas int64) *unstructured.Unstructured {
	object := lagObject(lagChildren, "pool", nil)
	object.Object["spec"] = map[string]any{"replicas": replicas}
	return object
}

func patch(ctx context.Context, in dynamic.ResourceInterface, name, data string, subresources ...string) error {
	_, err := in.Patch(ctx, name, types.MergePatchType, []byte(data), metav1.PatchOptions{}, subresources...)
	return err
}
