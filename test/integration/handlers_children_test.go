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
)

// family is parents served by an engine of their own that keeps their children, of what the test says.
type family struct {
	*setting
	tally      tally
	controller *dynamiccontroller.DynamicController
	children   *handlers.Children
	calls      *recorder
	stop       func() error
}

// serveChildren starts an engine that serves the parents in the test's namespace and watches the types of children.
func (s *setting) serveChildren(want func(parent *unstructured.Unstructured) handlers.Desired, types ...schema.GroupVersionResource) *family {
	s.Helper()
	f := &family{setting: s}
	own := *s.harness
	own.config = f.tally.through(s.config)
	f.controller = own.controller(dynamiccontroller.Config{MinRetryDelay: 10 * time.Millisecond, MaxRetryDelay: 100 * time.Millisecond})
	f.children = s.newChildren(handlers.ChildrenConfig{
		Client: must(dynamic.NewForConfig(own.config)),
		Cache:  handlers.Cached(f.controller.Lister),
	})
	f.calls = newRecorder(s.T, handlers.Object(handlers.Cached(f.controller.Lister),
		func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured) error {
			_, err := f.children.Reconcile(ctx, id, parent, want(parent))
			return err
		}, nil))
	f.stop = s.run(f.controller)
	// All of a child's events are for all parents here.
	wake := func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
		lister, err := f.controller.Lister(s.parents)
		if err != nil {
			return nil // the parents come later
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
		s.serve(f.controller, gvr, wake)
		s.synced(f.controller, gvr)
	}
	s.serve(f.controller, s.parents, f.calls.handle, dynamiccontroller.WithNamespace(s.namespace))
	return f
}

// settle waits until a call for the parent, with the cache as it is now or later, wrote nothing.
func (f *family) settle(name string) {
	f.Helper()
	f.eventually("nothing more is written for "+name, func() error {
		before := f.tally.writes.Load()
		f.again(name)
		f.again(name)
		if after := f.tally.writes.Load(); after != before {
			return fmt.Errorf("%d writes", after-before)
		}
		return nil
	})
}

// again makes one more call for the parent and waits for it.
func (f *family) again(name string) {
	f.Helper()
	id := f.parent(name)
	n := f.calls.count(id)
	f.controller.Enqueue(id)
	f.calls.waitFor(id, n+1)
	f.eventually("the call ends", func() error {
		f.calls.mu.Lock()
		defer f.calls.mu.Unlock()
		if f.calls.inHand[id] {
			return errors.New("in hand")
		}
		return nil
	})
}

// wantsOf makes a config map and a gadget of what a parent's spec names: "config: value", "gadget: size".
func wantsOf(s *setting) func(*unstructured.Unstructured) handlers.Desired {
	return func(parent *unstructured.Unstructured) handlers.Desired {
		var desired handlers.Desired
		configs, _, _ := unstructured.NestedStringMap(parent.Object, "spec", "configs")
		gadgets, _, _ := unstructured.NestedStringMap(parent.Object, "spec", "gadgets")
		var first, second []*unstructured.Unstructured
		for _, name := range sortedKeys(configs) {
			first = append(first, newConfigMap("", name, configs[name]))
		}
		for _, name := range sortedKeys(gadgets) {
			second = append(second, newObject(s.gadgets, "Gadget", "", name, map[string]any{"size": gadgets[name]}))
		}
		desired.Stages = [][]*unstructured.Unstructured{first, second}
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

// A child that is changed or deleted is made again what it should be, a field of others stays, and a resync without a
// change writes nothing.
func TestHandlers_DriftIsCorrectedAndNothingElseIsWritten(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	f := s.serveChildren(wantsOf(s), configMaps, s.gadgets)
	parent := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", map[string]any{
		"configs": map[string]any{"a": "one"}, "gadgets": map[string]any{"g": "big"},
	}))
	h.eventually("the children are there", func() error {
		return errors.Join(isController(parent, h.get(configMaps, h.namespace, "a")), isController(parent, h.get(s.gadgets, h.namespace, "g")))
	})
	f.settle("p")

	versions := func() string {
		return strings.Join([]string{
			h.get(s.parents, h.namespace, "p").GetResourceVersion(),
			h.get(configMaps, h.namespace, "a").GetResourceVersion(),
			h.get(s.gadgets, h.namespace, "g").GetResourceVersion(),
		}, " ")
	}
	before, writes := versions(), f.tally.writes.Load()
	for range 20 {
		f.again("p")
	}
	if n := f.tally.writes.Load() - writes; n != 0 || versions() != before {
		t.Errorf("%d writes when nothing changed; the versions were %s and are %s", n, before, versions())
	}

	corrected := func(what string, done func() error) {
		t.Helper()
		h.eventually(what, done)
		f.settle("p")
	}
	valueOf := func(name string) string {
		value, _, _ := unstructured.NestedString(h.get(configMaps, h.namespace, name).Object, "data", "key")
		return value
	}
	h.merge(configMaps, h.namespace, "a", `{"data":{"key":"drifted","mine":"stays"}}`)
	corrected("a changed field is corrected", func() error {
		if value := valueOf("a"); value != "one" {
			return errors.New(value)
		}
		return nil
	})
	if mine, _, _ := unstructured.NestedString(h.get(configMaps, h.namespace, "a").Object, "data", "mine"); mine != "stays" {
		t.Error("a field of others did not stay")
	}
	h.merge(configMaps, h.namespace, "a", `{"data":{"key":null}}`)
	corrected("a removed field is corrected", func() error {
		if value := valueOf("a"); value != "one" {
			return errors.New(value)
		}
		return nil
	})
	h.merge(configMaps, h.namespace, "a", `{"metadata":{"ownerReferences":[]}}`)
	corrected("a removed owner reference is corrected", func() error { return isController(parent, h.get(configMaps, h.namespace, "a")) })
	h.noError(h.in(s.gadgets, h.namespace).Delete(t.Context(), "g", metav1.DeleteOptions{}))
	corrected("a deleted child comes back", func() error { return isController(parent, h.get(s.gadgets, h.namespace, "g")) })

	h.merge(s.parents, h.namespace, "p", `{"spec":{"configs":{"a":"two"}}}`)
	corrected("what is wanted changed", func() error {
		if value := valueOf("a"); value != "two" {
			return errors.New(value)
		}
		return nil
	})
}

// What the API server writes in another way than it was applied is no drift for long: it is applied once more after a
// start, to no effect, and then never again.
func TestHandlers_WhatTheServerWritesOtherwiseIsNoDrift(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	deployments := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	want := func(*unstructured.Unstructured) handlers.Desired {
		return stages(newObject(deployments, "Deployment", "", "d", map[string]any{
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
	for _, start := range []string{"first", "second"} {
		f := s.serveChildren(want, deployments)
		h.eventually("the child is there", func() error {
			if h.get(deployments, h.namespace, "d") == nil {
				return errors.New("it is not there")
			}
			return nil
		})
		f.settle("p")
		if n := f.tally.writes.Load(); start == "second" && n > 1 {
			t.Errorf("%d writes after a restart", n)
		}
		writes := f.tally.writes.Load()
		for range 10 {
			f.again("p")
		}
		if n := f.tally.writes.Load() - writes; n != 0 {
			t.Errorf("%d writes when nothing changed, after the %s start", n, start)
		}
		scale := h.merge(deployments, h.namespace, "d", fmt.Sprintf(`{"metadata":{"annotations":{"seen":%q}},"spec":{"template":{"spec":{"containers":[{"name":"c","image":"drifted"}]}}}}`, start))
		if scale.GetResourceVersion() == "" {
			t.Fatal("no version")
		}
		h.eventually("a drift in a list is corrected", func() error {
			containers, _, _ := unstructured.NestedSlice(h.get(deployments, h.namespace, "d").Object, "spec", "template", "spec", "containers")
			if len(containers) != 1 || containers[0].(map[string]any)["image"] != "i" {
				return fmt.Errorf("%v", containers)
			}
			return nil
		})
		f.settle("p")
		h.noError(f.stop())
	}
}

// What is no longer wanted is deleted, also by a process that knows nothing of it, and of a type that is no longer named.
func TestHandlers_WhatIsNoLongerWantedIsPruned(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	f := s.serveChildren(wantsOf(s), configMaps, s.gadgets)
	h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", map[string]any{
		"configs": map[string]any{"a": "one", "b": "one"}, "gadgets": map[string]any{"g": "big"},
	}))
	there := func(want ...string) func() error {
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
				return fmt.Errorf("there are %v, and not %v", got, want)
			}
			return nil
		}
	}
	h.eventually("all is there", there("a", "b", "g"))
	h.put(configMaps, newConfigMap(h.namespace, "c", "somebody's"))
	h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", map[string]any{
		"configs": map[string]any{"a": "one"}, "gadgets": map[string]any{"g": "big"},
	}))
	h.eventually("one is pruned", there("a", "c", "g"))

	// The process ends, and what it knew. The next one does not even watch gadgets.
	h.noError(f.stop())
	h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", map[string]any{"wants": "nothing"}))
	f = s.serveChildren(wantsOf(s), configMaps)
	h.eventually("what a process before made is pruned", there("c"))
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

// Children where no owner reference reaches, in another namespace or in none, go when their parent does.
func TestHandlers_ChildrenElsewhereAreCleanedUp(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	lands := h.defineKind("Land", apiextensionsv1.ClusterScoped)
	s.mapper, _ = h.mapperOf(s.parents, s.gadgets, lands)
	s.more = []handlers.ChildKind{{GroupKind: schema.GroupKind{Group: lands.Group, Kind: "Land"}, Elsewhere: true}}
	far := h.newNamespace()
	want := func(parent *unstructured.Unstructured) handlers.Desired {
		if _, ok, _ := unstructured.NestedString(parent.Object, "spec", "near"); ok {
			return stages(newConfigMap("", "near", "x"), newConfigMap(far, "far", "x"))
		}
		return stages(newConfigMap("", "near", "x"), newConfigMap(far, "far", "x"), newConfigMap(far, "further", "x"), newObject(lands, "Land", "", "land-"+h.namespace, nil))
	}
	f := s.serveChildren(want, configMaps)
	h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	all := func(want ...bool) func() error {
		return func() error {
			got := []bool{
				h.get(configMaps, h.namespace, "near") != nil, h.get(configMaps, far, "far") != nil,
				h.get(configMaps, far, "further") != nil, h.get(lands, "", "land-"+h.namespace) != nil,
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("there are %v, and not %v", got, want)
			}
			return nil
		}
	}
	h.eventually("all are there", all(true, true, true, true))
	for _, object := range []*unstructured.Unstructured{h.get(configMaps, far, "far"), h.get(lands, "", "land-"+h.namespace)} {
		if len(object.GetOwnerReferences()) != 0 {
			t.Errorf("%s has an owner reference, by which the garbage collector deletes it at once", object.GetName())
		}
	}
	f.settle("p")
	h.put(configMaps, newConfigMap(far, "theirs", "x"))
	h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", map[string]any{"near": "x"}))
	h.eventually("two are pruned", all(true, true, false, false))

	h.noError(h.in(s.parents, h.namespace).Delete(t.Context(), "p", metav1.DeleteOptions{}))
	h.eventually("all are gone", all(false, false, false, false))
	h.eventually("the parent is gone", func() error {
		if parent := h.get(s.parents, h.namespace, "p"); parent != nil {
			return fmt.Errorf("it has %v", parent.GetFinalizers())
		}
		return nil
	})
	if h.get(configMaps, far, "theirs") == nil {
		t.Error("somebody else's was deleted")
	}
}

// A child that is being deleted is waited for and then made again; a stage waits for the one before it.
func TestHandlers_AStageWaitsForADeletion(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	parent := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	children := s.newChildren(handlers.ChildrenConfig{})
	desired := handlers.Desired{Stages: [][]*unstructured.Unstructured{{newConfigMap("", "a", "x")}, {newConfigMap("", "b", "x")}}}
	held := newConfigMap("", "a", "x")
	held.SetFinalizers([]string{"test.example.com/hold"})
	_, err := children.Reconcile(t.Context(), s.parent("p"), parent, stages(held))
	h.noError(err)
	h.noError(h.in(configMaps, h.namespace).Delete(t.Context(), "a", metav1.DeleteOptions{}))
	before := h.get(configMaps, h.namespace, "a").GetResourceVersion()
	_, err = children.Reconcile(t.Context(), s.parent("p"), parent, desired)
	if err == nil || ignoreRequeue(err) != nil {
		t.Errorf("got %v", err)
	}
	if now := h.get(configMaps, h.namespace, "a").GetResourceVersion(); now != before {
		t.Error("what is being deleted was written")
	}
	if h.get(configMaps, h.namespace, "b") != nil {
		t.Error("the second stage did not wait")
	}
	h.merge(configMaps, h.namespace, "a", `{"metadata":{"finalizers":null}}`)
	_, err = children.Reconcile(t.Context(), s.parent("p"), parent, desired)
	h.noError(err)
	h.noError(errors.Join(isController(parent, h.get(configMaps, h.namespace, "a")), isController(parent, h.get(configMaps, h.namespace, "b"))))
}

// A parent in no namespace owns children in any, and Kubernetes deletes them with it: no finalizer is needed.
func TestHandlers_AClusterScopedParentOwnsWhatIsInNamespaces(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	realms := h.defineKind("Realm", apiextensionsv1.ClusterScoped)
	far := h.newNamespace()
	name := "realm-" + h.namespace
	parent := h.put(realms, newObject(realms, "Realm", "", name, nil))
	children := s.newChildren(handlers.ChildrenConfig{})
	id := dynamiccontroller.ObjectIdentifiers{GVR: realms, NamespacedKey: name}
	reconcile := func(wanted ...*unstructured.Unstructured) {
		t.Helper()
		_, err := children.Reconcile(t.Context(), id, h.get(realms, "", name), stages(wanted...))
		h.noError(ignoreRequeue(err))
	}
	reconcile(newConfigMap(h.namespace, "a", "x"), newConfigMap(far, "b", "x"), newConfigMap(far, "c", "x"))
	reconcile(newConfigMap(h.namespace, "a", "x"), newConfigMap(far, "b", "x"))
	if h.get(configMaps, far, "c") != nil {
		t.Error("c was not pruned")
	}
	h.noError(errors.Join(isController(parent, h.get(configMaps, h.namespace, "a")), isController(parent, h.get(configMaps, far, "b"))))
	if finalizers := h.get(realms, "", name).GetFinalizers(); len(finalizers) != 0 {
		t.Errorf("it has %v", finalizers)
	}
	h.noError(h.client.Resource(realms).Delete(t.Context(), name, metav1.DeleteOptions{}))
	h.eventually("the children go", func() error {
		if h.get(configMaps, h.namespace, "a") != nil || h.get(configMaps, far, "b") != nil {
			return errors.New("not yet")
		}
		return nil
	})
}
