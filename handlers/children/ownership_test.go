package children

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/internal/fakeserver"
)

func getConfigMap(t *testing.T, server *controllertest.Server, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	object, err := server.Resource(configMaps).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return object
}

func TestReconcile_RetainedChildrenAreNeverDeleted(t *testing.T) {
	for name, object := range map[string]*unstructured.Unstructured{
		"in the parent's namespace": newConfigMap("a", "x"), "in another namespace": newRemoteConfigMap("a"),
	} {
		t.Run(name, func(t *testing.T) { testRetained(t, object) })
	}
}

func testRetained(t *testing.T, object *unstructured.Unstructured) {
	t.Helper()
	server := newFakeServer(newWidget())
	reconciler, parent := newReconciler(t, Config{Client: server}), newWidget()
	namespace := object.GetNamespace()
	if namespace == "" {
		namespace = "default"
	}
	reconcile := func(desired Desired) {
		t.Helper()
		for range 2 {
			_, err := reconciler.Reconcile(t.Context(), first, parent, desired)
			failUnlessRequeued(t, err)
		}
	}
	stages := func(retain bool) Desired {
		return Desired{Stages: [][]Child{{{Object: object, Retain: retain}}}}
	}
	for _, retain := range []bool{true, false, true} { // Retain can change
		reconcile(stages(retain))
		current := getConfigMap(t, server, namespace, "a")
		if hasOwner := len(current.GetOwnerReferences()) > 0; hasOwner != (!retain && namespace == "default") {
			t.Errorf("retain %t: got the owner references %v", retain, current.GetOwnerReferences())
		}
		if !Selector(parent, widgetKind.GroupKind, "platform.example.com").Matches(labels.Set(current.GetLabels())) {
			t.Errorf("got the labels %v", current.GetLabels())
		}
	}
	fresh := newWidget()
	_, err := reconciler.Reconcile(t.Context(), first, fresh, stages(true))
	if err != nil || fresh.GetFinalizers() != nil {
		t.Errorf("the parent has the finalizers %q: %v", fresh.GetFinalizers(), err)
	}
	server.TakeWrites()
	reconcile(stages(true))
	if writes := server.TakeWrites(); len(writes) > 0 {
		t.Errorf("wrote %q without a change", writes)
	}
	reconcile(Desired{Partial: true, Absent: []*unstructured.Unstructured{object}})
	reconcile(Desired{})
	now := metav1.Now()
	parent.SetDeletionTimestamp(&now)
	reconcile(Desired{})
	if writes := server.TakeWrites(); slices.Contains(writes, "delete configmaps a") {
		t.Errorf("wrote %q", writes)
	}
}

// Owner references from other field managers are removed too because Kubernetes would delete the object.
func TestReconcile_RetainRemovesOwnerReferenceOfOtherManager(t *testing.T) {
	owned := newConfigMap("a", "x")
	owned.SetNamespace("default")
	controller := metav1.NewControllerRef(newWidget(), newWidget().GroupVersionKind())
	owned.SetOwnerReferences([]metav1.OwnerReference{*controller})
	owned.SetLabels(map[string]string{"platform.example.com/parent": "widget-uid"})
	server := newFakeServer(newWidget(), owned)
	reconciler := newReconciler(t, Config{Client: server})
	desired := Desired{Stages: [][]Child{{{Object: newConfigMap("a", "x"), Retain: true}}}}
	if _, err := reconciler.Reconcile(t.Context(), first, newWidget(), desired); err != nil {
		t.Fatal(err)
	}
	if refs := getConfigMap(t, server, "default", "a").GetOwnerReferences(); len(refs) > 0 {
		t.Errorf("got the owner references %v", refs)
	}
}

// An owner reference makes Kubernetes delete an object even if the owner is not its controller.
func TestReconcile_RetainRemovesAllOwnerReferencesToParent(t *testing.T) {
	ref := func(uid types.UID, controller *bool) metav1.OwnerReference {
		return metav1.OwnerReference{
			APIVersion: "example.com/v1", Kind: "Widget", Name: "first", UID: uid, Controller: controller,
		}
	}
	for name, marked := range map[string]bool{"a child": true, "an object to adopt": false} {
		existing := newConfigMap("a", "x")
		existing.SetNamespace("default")
		existing.SetOwnerReferences([]metav1.OwnerReference{ref("widget-uid", nil), ref("other", nil)})
		if marked {
			setMark(existing, "first", "widget-uid", "")
		}
		server := newFakeServer(newWidget(), existing)
		reconciler := newReconciler(t, Config{Client: server})
		desired := Desired{Stages: [][]Child{{{Object: newConfigMap("a", "x"), Retain: true, Adopt: true}}}}
		for range 2 {
			server.TakeWrites()
			if _, err := reconciler.Reconcile(t.Context(), first, newWidget(), desired); err != nil {
				t.Fatal(err)
			}
		}
		refs := getConfigMap(t, server, "default", "a").GetOwnerReferences()
		if len(refs) != 1 || refs[0].UID != "other" {
			t.Errorf("%s: got the owner references %v", name, refs)
		}
		if writes := server.TakeWrites(); len(writes) > 1 { // the outdated parent
			t.Errorf("%s: wrote %q without a change", name, writes)
		}
	}
	object := newConfigMap("a", "x")
	object.SetOwnerReferences([]metav1.OwnerReference{ref("widget-uid", nil)})
	server := newFakeServer(newWidget())
	desired := Desired{Stages: [][]Child{{{Object: object, Retain: true}}}}
	if _, err := newReconciler(t, Config{Client: server}).Reconcile(t.Context(), first, newWidget(), desired); err == nil {
		t.Error("a retained child with an owner reference to the parent was accepted")
	}
}

// setMark gives an object the mark of the widget with the given name and UID.
func setMark(object *unstructured.Unstructured, parent string, uid, namespace types.UID) {
	identity := "Widget.example.com/default/" + parent
	record := fmt.Sprintf(`{"parent":%q,"uid":%q,"namespaceUID":%q}`, identity, uid, namespace)
	object.SetLabels(map[string]string{"platform.example.com/parent": decide.IdentityLabel(identity)})
	object.SetAnnotations(map[string]string{
		"platform.example.com/parent": record,
		"platform.example.com/self":   object.GetNamespace() + "/" + object.GetName(),
	})
}

func TestReconcile_AdoptsOnlyObjectsWithoutAnOwner(t *testing.T) {
	const label, retained = "platform.example.com/parent", "platform.example.com/retained-by"
	controlledBy := func(uid types.UID) func(*unstructured.Unstructured) {
		return func(object *unstructured.Unstructured) {
			other := newWidget()
			other.SetUID(uid)
			object.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(other, other.GroupVersionKind())})
		}
	}
	markedBy := func(parent string, uid types.UID, isRetained bool) func(*unstructured.Unstructured) {
		return func(object *unstructured.Unstructured) {
			setMark(object, parent, uid, "")
			if isRetained {
				object.SetAnnotations(with(object.GetAnnotations(), retained, "Widget.example.com/default/"+parent))
			}
		}
	}
	for name, c := range map[string]struct {
		existing     func(*unstructured.Unstructured)
		adopted      bool // expected with Adopt
		withoutAdopt bool // whether it is adopted without Adopt
	}{
		"no labels":                      {func(*unstructured.Unstructured) {}, true, false},
		"another controller":             {controlledBy("other"), false, false},
		"the child of another parent":    {markedBy("second", "other", false), false, false},
		"the child of an earlier parent": {markedBy("first", "other", false), false, false},
		"retained by another parent":     {markedBy("second", "other", true), false, false},
		"retained by an earlier parent":  {markedBy("first", "other", true), true, false},
		"a mark without a record": {func(object *unstructured.Unstructured) {
			setMark(object, "first", "widget-uid", "")
			object.SetAnnotations(with(object.GetAnnotations(), label, ""))
		}, false, false},
		"orphaned by another parent": {func(object *unstructured.Unstructured) {
			object.SetLabels(map[string]string{label: "other"})
		}, true, false},
		"the parent's own mark": {markedBy("first", "widget-uid", false), true, true},
	} {
		for _, namespace := range []string{"default", "other"} {
			for _, adopt := range []bool{true, false} {
				existing := newConfigMap("a", "theirs")
				existing.SetNamespace(namespace)
				c.existing(existing)
				server := newFakeServer(newWidget(), existing)
				object := newConfigMap("a", "mine")
				object.SetNamespace(namespace)
				desired := Desired{Stages: [][]Child{{{Object: object, Adopt: adopt}}}}
				_, err := newReconciler(t, Config{Client: server}).Reconcile(t.Context(), first, newWidget(), desired)
				want := adopt && c.adopted || c.withoutAdopt
				value, _, _ := unstructured.NestedString(getConfigMap(t, server, namespace, "a").Object, "data", "key")
				if (err == nil) != want || err != nil && !errors.Is(err, ErrNotOwned) || (value == "mine") != want {
					t.Errorf("%s in %s, adopt %t: got the value %s, %v", name, namespace, adopt, value, err)
				}
				if would := !adopt && c.adopted && !c.withoutAdopt; errors.Is(err, ErrAdoptionNotEnabled) != would {
					t.Errorf("%s in %s, adopt %t: got %v", name, namespace, adopt, err)
				}
			}
		}
	}
}

func TestReconcile_WritesAsTheIdentity(t *testing.T) {
	platform := newFakeServer(newWidget())
	a, b := newIdentityServer(platform), newFakeServer()
	reconciler, parent := newReconciler(t, Config{Client: platform}), newWidget()
	clients := map[string]*controllertest.Server{"a": a, "b": b}
	reconcile := func(identity string, stage ...*unstructured.Unstructured) {
		t.Helper()
		desired := oneStage(stage...)
		desired.As = Identity{Name: identity, Client: clients[identity]}
		_, err := reconciler.Reconcile(t.Context(), first, parent, desired)
		failUnlessRequeued(t, err)
	}
	want := func(server *controllertest.Server, want ...string) {
		t.Helper()
		if writes := server.TakeWrites(); !slices.Equal(writes, want) {
			t.Errorf("wrote %q, want %q", writes, want)
		}
	}
	reconcile("a", newConfigMap("x", "1"), newConfigMap("y", "1"))
	want(a, "apply configmaps x", "apply configmaps y")
	want(platform, "patch widgets first")
	reconcile("a", newConfigMap("x", "1"), newConfigMap("y", "1"))
	reconcile("a", newConfigMap("x", "1"))
	want(a, "delete configmaps y")
	reconcile("b", newConfigMap("x", "1"))
	want(b, "apply configmaps x")
	for _, action := range platform.Actions() {
		if action.GetResource() == configMaps && action.GetVerb() != "list" {
			t.Errorf("requests with the platform's client: %v", action)
		}
	}
}

// The cached child is as desired, but the cache does not show whether the new identity can read or write it.
func TestReconcile_CachedStateIsPerIdentity(t *testing.T) {
	server, cache := newFakeServer(newWidget()), fakeserver.Cache{}
	reconciler, parent := newReconciler(t, Config{Client: server, Cache: cache}), newWidget()
	for i, identity := range []string{"a", "a", "b", "a", "", ""} {
		desired := oneStage(newConfigMap("x", "1"))
		desired.As.Name = identity
		result, err := reconciler.Reconcile(t.Context(), first, parent, desired)
		children := result.Existing()
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			server.TakeWrites()
			cache["x"] = children[0] // the cache lags from here on
			continue
		}
		wrote := strings.Join(server.TakeWrites(), ", ")
		if want := map[bool]string{true: "", false: "apply configmaps x"}[i == 1 || i == 5]; wrote != want {
			t.Errorf("call %d as %q: wrote %q, want %q", i, identity, wrote, want)
		}
	}
}
