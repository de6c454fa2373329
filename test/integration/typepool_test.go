package integration

import (
	"context"
	"fmt"
	"os"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apitypes "k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/dynamic-controller/engine/internal/testkit"
	"github.com/dynamic-controller/engine/test/cluster"
)

// typePool contains types of tests that have ended. A new CRD is expensive: the API server builds its OpenAPI documents
// and its discovery again. A type in the pool has no objects, and its CRD has not been changed. A test has a type for
// itself until the test ends.
type typePool struct {
	mu   sync.Mutex // guards the fields below
	free map[string][]pooledType
	crds apiextensions.Interface // nil before a test has defined a type
}

// pooledType is a type with the identity of its CRD.
type pooledType struct {
	gvr        schema.GroupVersionResource
	uid        apitypes.UID
	generation int64
}

// sharedTypes contains types of the shared cluster.
var sharedTypes = &typePool{free: map[string][]pooledType{}}

func (p *typePool) take(key string) (t pooledType, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	free := p.free[key]
	if len(free) == 0 {
		return t, false
	}
	p.free[key] = free[:len(free)-1]
	return free[len(free)-1], true
}

func (p *typePool) put(key string, t pooledType, crds apiextensions.Interface) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free[key], p.crds = append(p.free[key], t), crds
}

// Main returns a Runner that runs m and then deletes the types, because the cluster can be an external one.
func (p *typePool) Main(m cluster.Runner) cluster.Runner { return &typesMain{pool: p, tests: m} }

type typesMain struct {
	pool  *typePool
	tests cluster.Runner
}

func (m *typesMain) Run() int {
	code := m.tests.Run()
	for _, free := range m.pool.free {
		for _, t := range free {
			err := m.pool.crds.ApiextensionsV1().CustomResourceDefinitions().Delete(context.Background(),
				t.gvr.GroupResource().String(), metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				fmt.Fprintln(os.Stderr, err)
				code = max(code, 1)
			}
		}
	}
	return code
}

// exclusiveType returns a type without objects that no other test uses. The type comes from the pool, or is defined by
// the CRD. Types with the same key must be interchangeable. The test can change or delete the CRD.
func (h *harness) exclusiveType(key string, crd *apiextensionsv1.CustomResourceDefinition) schema.GroupVersionResource {
	h.Helper()
	if h.types != nil {
		if t, ok := h.types.take(key); ok {
			h.giveBackType(key, t)
			h.noError(h.deleteObjects(t.gvr)) // a request of an earlier test can have been in flight when that test ended
			return t.gvr
		}
	}
	crd, err := h.crds.ApiextensionsV1().CustomResourceDefinitions().Create(h.Context(), crd, metav1.CreateOptions{})
	h.noError(err)
	gvr := schema.GroupVersionResource{
		Group: crd.Spec.Group, Version: crd.Spec.Versions[0].Name, Resource: crd.Spec.Names.Plural,
	}
	h.giveBackType(key, pooledType{gvr: gvr, uid: crd.UID, generation: crd.Generation})
	h.established(crd.Name)
	return gvr
}

// giveBackType returns the type to the pool when the test ends. It deletes the CRD instead if there is no pool, or if
// the test has failed or has changed the CRD.
func (h *harness) giveBackType(key string, t pooledType) {
	name := t.gvr.GroupResource().String()
	h.Cleanup(func() {
		crd, err := h.crds.ApiextensionsV1().CustomResourceDefinitions().Get(context.Background(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return
		}
		isReusable := err == nil && crd.UID == t.uid && crd.Generation == t.generation && crd.DeletionTimestamp == nil
		if h.types == nil || h.Failed() || !isReusable {
			h.removeFinalizers(t.gvr)
			h.deleteCRD(name)
			return
		}
		if err := h.deleteObjects(t.gvr); err != nil {
			h.Error(err)
			h.deleteCRD(name)
			return
		}
		h.types.put(key, t, h.crds)
	})
}

// deleteObjects deletes all objects of the type, and waits until none exists.
func (h *harness) deleteObjects(gvr schema.GroupVersionResource) error {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	err := testkit.Poll(ctx, func(ctx context.Context) error {
		objects, err := h.client.Resource(gvr).List(ctx, metav1.ListOptions{})
		if err != nil || len(objects.Items) == 0 {
			return err
		}
		h.removeFinalizers(gvr)
		namespaces := sets.New[string]()
		for _, object := range objects.Items {
			namespaces.Insert(object.GetNamespace())
		}
		for namespace := range namespaces {
			err := h.in(gvr, namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
		return fmt.Errorf("%d objects remain", len(objects.Items))
	})
	if err != nil {
		return fmt.Errorf("delete the objects of %s: %w", gvr.GroupResource(), err)
	}
	return nil
}
