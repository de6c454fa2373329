package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/children"
)

// parentsTest runs a controller that reconciles the children of parents.
type parentsTest struct {
	*setting
	writes     writeCounter
	controller *dynamiccontroller.DynamicController
	reconciler *children.Reconciler
	calls      *recorder
	stop       func() error
}

// serveParents starts a controller that serves the parents in the test's namespace and the given types of children.
func (s *setting) serveParents(
	desired func(parent *unstructured.Unstructured) children.Desired, types ...schema.GroupVersionResource,
) *parentsTest {
	s.Helper()
	f := &parentsTest{setting: s}
	own := *s.harness
	own.config = f.writes.wrap(s.config)
	f.controller = own.controller(dynamiccontroller.Config{
		MinRetryDelay: 10 * time.Millisecond, MaxRetryDelay: 100 * time.Millisecond,
	})
	f.reconciler = s.newReconciler(children.Config{
		Client: must(dynamic.NewForConfig(own.config)),
		Cache:  children.Cached(f.controller.Lister),
	})
	f.calls = newRecorder(s.T, handlers.Object(handlers.Cached(f.controller.Lister),
		func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured) error {
			_, err := f.reconciler.Reconcile(ctx, id, parent, desired(parent))
			return err
		}, nil))
	f.stop = s.run(f.controller)
	// An event for any child triggers a reconcile of all parents.
	enqueueParents := func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
		lister, err := f.controller.Lister(s.parents)
		if err != nil {
			return nil // the parents are not served yet
		}
		parents, err := lister.List(labels.Everything())
		for _, parent := range parents {
			f.controller.Enqueue(s.parent(parent.(*unstructured.Unstructured).GetName()))
		}
		if errors.Is(err, dynamiccontroller.ErrNotSynced) {
			return nil
		}
		return err
	}
	for _, gvr := range types {
		s.serve(f.controller, gvr, enqueueParents)
		s.synced(f.controller, gvr)
	}
	s.serve(f.controller, s.parents, f.calls.handle, dynamiccontroller.WithNamespaces(s.namespace))
	return f
}

// settle waits until two consecutive reconciles of the parent write nothing.
func (f *parentsTest) settle(name string) {
	f.Helper()
	f.eventually("no more writes for "+name, func() error {
		before := f.writes.Load()
		f.reconcileAgain(name)
		f.reconcileAgain(name)
		if after := f.writes.Load(); after != before {
			return fmt.Errorf("%d writes", after-before)
		}
		return nil
	})
}

// reconcileAgain reconciles the parent once more and waits until the call has returned.
func (f *parentsTest) reconcileAgain(name string) {
	f.Helper()
	id := f.parent(name)
	n := f.calls.count(id)
	f.controller.Enqueue(id)
	f.calls.waitFor(id, n+1)
	f.eventually("the call has returned", func() error {
		f.calls.mu.Lock()
		defer f.calls.mu.Unlock()
		if f.calls.inHand[id] {
			return errors.New("the call is running")
		}
		return nil
	})
}

// desiredBySpec returns a function that reads the desired children from a parent's spec. The map spec.configs maps the
// names of ConfigMaps to their values, and spec.gadgets maps the names of gadgets to their sizes.
func desiredBySpec(s *setting) func(*unstructured.Unstructured) children.Desired {
	return func(parent *unstructured.Unstructured) children.Desired {
		var desired children.Desired
		configs, _, _ := unstructured.NestedStringMap(parent.Object, "spec", "configs")
		gadgets, _, _ := unstructured.NestedStringMap(parent.Object, "spec", "gadgets")
		var first, second []*unstructured.Unstructured
		for _, name := range sortedKeys(configs) {
			first = append(first, newConfigMap("", name, configs[name]))
		}
		for _, name := range sortedKeys(gadgets) {
			second = append(second, newObject(s.gadgets, "Gadget", "", name, map[string]any{"size": gadgets[name]}))
		}
		desired.Stages = [][]children.Child{children.Stage(first...), children.Stage(second...)}
		return desired
	}
}

func sortedKeys(m map[string]string) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// When the reconciler corrects drift, it must not change fields owned by other managers. A reconcile without drift must
// write nothing.
func TestHandlers_DriftIsCorrected(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	f := s.serveParents(desiredBySpec(s), configMaps, s.gadgets)
	parent := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", map[string]any{
		"configs": map[string]any{"a": "one"}, "gadgets": map[string]any{"g": "big"},
	}))
	childrenExist := func() error {
		return errors.Join(
			isController(parent, h.get(configMaps, h.namespace, "a")),
			isController(parent, h.get(s.gadgets, h.namespace, "g")),
		)
	}
	h.eventually("the children exist", childrenExist)
	f.settle("p")

	versions := func() string {
		return strings.Join([]string{
			h.get(s.parents, h.namespace, "p").GetResourceVersion(),
			h.get(configMaps, h.namespace, "a").GetResourceVersion(),
			h.get(s.gadgets, h.namespace, "g").GetResourceVersion(),
		}, " ")
	}
	before, writes := versions(), f.writes.Load()
	for range 20 {
		f.reconcileAgain("p")
	}
	if n := f.writes.Load() - writes; n != 0 || versions() != before {
		t.Errorf("got %d writes without a change, want none; the versions were %s and are %s", n, before, versions())
	}

	corrected := func(change string, done func() error) {
		t.Helper()
		h.eventually(change+" is corrected", done)
		f.settle("p")
	}
	dataOf := func(key string) string {
		value, _, _ := unstructured.NestedString(h.get(configMaps, h.namespace, "a").Object, "data", key)
		return value
	}
	hasValue := func(want string) func() error {
		return func() error {
			if value := dataOf("key"); value != want {
				return fmt.Errorf("the value is %q, want %q", value, want)
			}
			return nil
		}
	}
	h.merge(configMaps, h.namespace, "a", `{"data":{"key":"drifted","other":"kept"}}`)
	corrected("a changed field", hasValue("one"))
	if other := dataOf("other"); other != "kept" {
		t.Errorf("the field of another manager is %q, want kept", other)
	}
	h.merge(configMaps, h.namespace, "a", `{"data":{"key":null}}`)
	corrected("a removed field", hasValue("one"))
	h.merge(configMaps, h.namespace, "a", `{"metadata":{"ownerReferences":[]}}`)
	corrected("a removed owner reference", childrenExist)
	h.noError(h.in(s.gadgets, h.namespace).Delete(t.Context(), "g", metav1.DeleteOptions{}))
	corrected("a deleted child", childrenExist)
	h.merge(s.parents, h.namespace, "p", `{"spec":{"configs":{"a":"two"}}}`)
	corrected("a changed spec", hasValue("two"))
}

// The API server normalizes some applied values. Each new process may send one more apply request for a child with such
// values. This request changes nothing.
func TestHandlers_NormalizedValuesAreNotDrift(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	s.moreKinds = []children.Kind{{GroupKind: schema.GroupKind{Group: "apps", Kind: "Deployment"}}}
	desired := func(*unstructured.Unstructured) children.Desired {
		return oneStage(newObject(deployments, "Deployment", "", "d", map[string]any{
			"selector": map[string]any{"matchLabels": map[string]any{"app": "d"}},
			"template": map[string]any{
				"metadata": map[string]any{"labels": map[string]any{"app": "d"}},
				"spec": map[string]any{"containers": []any{map[string]any{
					"name": "c", "image": "i", "resources": map[string]any{"requests": map[string]any{"cpu": "1000m"}},
					"ports": []any{map[string]any{"containerPort": int64(80)}},
				}}},
			},
		}))
	}
	h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", map[string]any{}))
	for _, process := range []string{"first", "second"} {
		f := s.serveParents(desired, deployments)
		h.eventually("the child exists", func() error {
			if h.get(deployments, h.namespace, "d") == nil {
				return errors.New("the child does not exist")
			}
			return nil
		})
		f.settle("p")
		if n := f.writes.Load(); process == "second" && n > 1 {
			t.Errorf("got %d writes after a restart, want at most 1", n)
		}
		writes := f.writes.Load()
		for range 10 {
			f.reconcileAgain("p")
		}
		if n := f.writes.Load() - writes; n != 0 {
			t.Errorf("got %d writes without a change in the %s process, want none", n, process)
		}
		h.merge(deployments, h.namespace, "d",
			`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"drifted"}]}}}}`)
		h.eventually("drift in a list is corrected", func() error {
			deployment := h.get(deployments, h.namespace, "d")
			containers, _, _ := unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "containers")
			if len(containers) != 1 || containers[0].(map[string]any)["image"] != "i" {
				return fmt.Errorf("%v", containers)
			}
			return nil
		})
		f.settle("p")
		h.noError(f.stop())
	}
}

// The second process does not serve gadgets, but it must still prune the gadget that the first process created.
func TestHandlers_UndesiredChildrenArePrunedByAnotherProcess(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	f := s.serveParents(desiredBySpec(s), configMaps, s.gadgets)
	h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", map[string]any{
		"configs": map[string]any{"a": "one", "b": "one"}, "gadgets": map[string]any{"g": "big"},
	}))
	exist := func(want ...string) func() error {
		return func() error {
			var got []string
			for _, name := range []string{"a", "b", "c"} {
				if h.get(configMaps, h.namespace, name) != nil {
					got = append(got, name)
				}
			}
			if h.get(s.gadgets, h.namespace, "g") != nil {
				got = append(got, "g")
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("found %v, want %v", got, want)
			}
			return nil
		}
	}
	h.eventually("all children exist", exist("a", "b", "g"))
	h.put(configMaps, newConfigMap(h.namespace, "c", "other"))
	h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", map[string]any{
		"configs": map[string]any{"a": "one"}, "gadgets": map[string]any{"g": "big"},
	}))
	h.eventually("one child is pruned", exist("a", "c", "g"))

	h.noError(f.stop())
	h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", map[string]any{"configs": map[string]any{}}))
	f = s.serveParents(desiredBySpec(s), configMaps)
	h.eventually("the children of the first process are pruned", exist("c"))
	inventory := func() string {
		return h.get(s.parents, h.namespace, "p").GetAnnotations()[platformName+"/inventory"]
	}
	h.eventually("the inventory is empty", func() error {
		if i := inventory(); i != "" {
			return errors.New(i)
		}
		return nil
	})
	f.settle("p")
}

// When a namespaced parent is deleted, Kubernetes does not delete its cluster-scoped children or its children in other
// namespaces. The reconciler must delete them.
func TestHandlers_CrossNamespaceChildrenAreCleanedUp(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	lands := h.defineKind("Land", apiextensionsv1.ClusterScoped)
	s.mapper, _ = h.mapperOf(s.parents, s.gadgets, lands)
	s.moreKinds = []children.Kind{{GroupKind: schema.GroupKind{Group: lands.Group, Kind: "Land"}, CrossNamespace: true}}
	other := h.newNamespace()
	desired := func(parent *unstructured.Unstructured) children.Desired {
		local, remote := newConfigMap("", "local", "x"), newConfigMap(other, "remote", "x")
		if _, fewer, _ := unstructured.NestedString(parent.Object, "spec", "fewer"); fewer {
			return oneStage(local, remote)
		}
		land := newObject(lands, "Land", "", "land-"+h.namespace, nil)
		return oneStage(local, remote, newConfigMap(other, "remote-2", "x"), land)
	}
	f := s.serveParents(desired, configMaps)
	h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	exist := func(want ...bool) func() error {
		return func() error {
			got := []bool{
				h.get(configMaps, h.namespace, "local") != nil, h.get(configMaps, other, "remote") != nil,
				h.get(configMaps, other, "remote-2") != nil, h.get(lands, "", "land-"+h.namespace) != nil,
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("the children exist: %v, want %v", got, want)
			}
			return nil
		}
	}
	h.eventually("all children exist", exist(true, true, true, true))
	for _, object := range []*unstructured.Unstructured{
		h.get(configMaps, other, "remote"), h.get(lands, "", "land-"+h.namespace),
	} {
		if len(object.GetOwnerReferences()) != 0 {
			t.Errorf("%s has an owner reference, so the garbage collector will delete it", object.GetName())
		}
	}
	f.settle("p")
	h.put(configMaps, newConfigMap(other, "unrelated", "x"))
	h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", map[string]any{"fewer": "true"}))
	h.eventually("two children are pruned", exist(true, true, false, false))

	h.noError(h.in(s.parents, h.namespace).Delete(t.Context(), "p", metav1.DeleteOptions{}))
	h.eventually("all children are gone", exist(false, false, false, false))
	h.eventually("the parent is gone", func() error {
		if parent := h.get(s.parents, h.namespace, "p"); parent != nil {
			return fmt.Errorf("the parent has the finalizers %v", parent.GetFinalizers())
		}
		return nil
	})
	if h.get(configMaps, other, "unrelated") == nil {
		t.Error("an object that is not a child was deleted")
	}
}

// While a child is being deleted, later stages wait. Once the child is gone, the reconciler recreates it.
func TestHandlers_StageWaitsForChildDeletion(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	parent := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	reconciler := s.newReconciler(children.Config{})
	desired := children.Desired{Stages: [][]children.Child{
		children.Stage(newConfigMap("", "a", "x")), children.Stage(newConfigMap("", "b", "x")),
	}}
	held := newConfigMap("", "a", "x")
	held.SetFinalizers([]string{"test.example.com/hold"})
	_, err := reconciler.Reconcile(t.Context(), s.parent("p"), parent, oneStage(held))
	h.noError(err)
	h.noError(h.in(configMaps, h.namespace).Delete(t.Context(), "a", metav1.DeleteOptions{}))
	before := h.get(configMaps, h.namespace, "a").GetResourceVersion()
	_, err = reconciler.Reconcile(t.Context(), s.parent("p"), parent, desired)
	if err == nil || ignoreRequeue(err) != nil {
		t.Errorf("got error %v, want a requeue request", err)
	}
	if now := h.get(configMaps, h.namespace, "a").GetResourceVersion(); now != before {
		t.Error("the child that is being deleted was written")
	}
	if h.get(configMaps, h.namespace, "b") != nil {
		t.Error("the second stage did not wait")
	}
	h.merge(configMaps, h.namespace, "a", `{"metadata":{"finalizers":null}}`)
	_, err = reconciler.Reconcile(t.Context(), s.parent("p"), parent, desired)
	h.noError(err)
	h.noError(errors.Join(
		isController(parent, h.get(configMaps, h.namespace, "a")),
		isController(parent, h.get(configMaps, h.namespace, "b")),
	))
}

// When a cluster-scoped parent is deleted, Kubernetes also deletes its children, so the parent needs no finalizer.
func TestHandlers_ClusterScopedParentOwnsChildrenInAllNamespaces(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	realms := h.defineKind("Realm", apiextensionsv1.ClusterScoped)
	other := h.newNamespace()
	name := "realm-" + h.namespace
	parent := h.put(realms, newObject(realms, "Realm", "", name, nil))
	reconciler := s.newReconciler(children.Config{})
	id := dynamiccontroller.ObjectIdentifiers{GVR: realms, NamespacedKey: name}
	reconcile := func(desired ...*unstructured.Unstructured) {
		t.Helper()
		_, err := reconciler.Reconcile(t.Context(), id, h.get(realms, "", name), oneStage(desired...))
		h.noError(ignoreRequeue(err))
	}
	reconcile(newConfigMap(h.namespace, "a", "x"), newConfigMap(other, "b", "x"), newConfigMap(other, "c", "x"))
	reconcile(newConfigMap(h.namespace, "a", "x"), newConfigMap(other, "b", "x"))
	if h.get(configMaps, other, "c") != nil {
		t.Error("c was not pruned")
	}
	h.noError(errors.Join(
		isController(parent, h.get(configMaps, h.namespace, "a")), isController(parent, h.get(configMaps, other, "b")),
	))
	if finalizers := h.get(realms, "", name).GetFinalizers(); len(finalizers) != 0 {
		t.Errorf("the parent has the finalizers %v", finalizers)
	}
	h.noError(h.client.Resource(realms).Delete(t.Context(), name, metav1.DeleteOptions{}))
	h.eventually("the children are gone", func() error {
		if h.get(configMaps, h.namespace, "a") != nil || h.get(configMaps, other, "b") != nil {
			return errors.New("some children still exist")
		}
		return nil
	})
}
