package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

const finalizerName = platformName + "/bucket"

func doNothing(context.Context, dynamiccontroller.ObjectIdentifiers, *unstructured.Unstructured) error {
	return nil
}

// Other controllers add and remove their finalizers while the handler is running. Each handler call receives an
// outdated object.
func TestHandlers_ConcurrentFinalizerChangesArePreserved(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	outdated := h.get(s.parents, h.namespace, "p")
	handler := handlers.Finalizer(handlers.FinalizerConfig{
		Client: h.client, Name: finalizerName, Reconcile: doNothing, Cleanup: doNothing,
	})

	var writers sync.WaitGroup
	const others = 4
	for i := range others {
		writers.Go(func() {
			name := fmt.Sprintf("others.example.com/%d", i)
			for n := 0; n < 21; {
				now, err := h.in(s.parents, h.namespace).Get(t.Context(), "p", metav1.GetOptions{})
				if err == nil {
					finalizers := slices.DeleteFunc(now.GetFinalizers(), func(f string) bool { return f == name })
					if n%2 == 0 {
						finalizers = append(finalizers, name)
					}
					now.SetFinalizers(finalizers)
					_, err = h.in(s.parents, h.namespace).Update(t.Context(), now, metav1.UpdateOptions{})
				}
				switch {
				case err == nil:
					n++
				case !apierrors.IsConflict(err):
					t.Error(err)
					return
				}
			}
		})
	}
	for range 20 {
		// If the handler's last retry also fails with a conflict, the handler returns the conflict error.
		if err := handler(t.Context(), s.parent("p"), outdated.DeepCopy()); err != nil && !apierrors.IsConflict(err) {
			t.Fatal(err)
		}
	}
	writers.Wait()
	h.eventually("the finalizer is added", func() error {
		return handler(t.Context(), s.parent("p"), outdated.DeepCopy())
	})
	now := h.get(s.parents, h.namespace, "p").GetFinalizers()
	slices.Sort(now)
	want := []string{
		"others.example.com/0", "others.example.com/1", "others.example.com/2", "others.example.com/3", finalizerName,
	}
	if !slices.Equal(now, want) {
		t.Errorf("the finalizers are %v, want %v", now, want)
	}

	h.noError(h.in(s.parents, h.namespace).Delete(t.Context(), "p", metav1.DeleteOptions{}))
	deleted := h.get(s.parents, h.namespace, "p")
	h.merge(s.parents, h.namespace, "p", `{"metadata":{"labels":{"a":"change"}}}`)
	h.noError(handler(t.Context(), s.parent("p"), deleted))
	now = h.get(s.parents, h.namespace, "p").GetFinalizers()
	slices.Sort(now)
	if !slices.Equal(now, want[:others]) {
		t.Errorf("the finalizers are %v, want %v", now, want[:others])
	}
	h.noError(handler(t.Context(), s.parent("p"), outdated.DeepCopy()))
	if now := h.get(s.parents, h.namespace, "p").GetFinalizers(); slices.Contains(now, finalizerName) {
		t.Error("the finalizer was added to an object that is being deleted")
	}
	h.merge(s.parents, h.namespace, "p", `{"metadata":{"finalizers":null}}`)
}

// The handler adds the finalizer before it calls Reconcile. It keeps the finalizer as long as Cleanup fails or requests
// a requeue.
func TestHandlers_CleanupIsCalledUntilItSucceeds(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	client := must(dynamic.NewForConfig(h.config))
	controller := h.controller(dynamiccontroller.Config{})
	outcomes := []error{errors.New("the bucket is busy"), dynamiccontroller.RequeueAfter(1), nil}
	var mu sync.Mutex
	cleanups := 0
	cleanup := func(context.Context, dynamiccontroller.ObjectIdentifiers, *unstructured.Unstructured) error {
		mu.Lock()
		defer mu.Unlock()
		now := h.get(s.parents, h.namespace, "p")
		if now == nil || !slices.Contains(now.GetFinalizers(), finalizerName) {
			t.Error("the object or its finalizer was removed before Cleanup succeeded")
		}
		err := outcomes[min(cleanups, len(outcomes)-1)]
		cleanups++
		return err
	}
	reconcile := func(_ context.Context, _ dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured) error {
		now := h.get(s.parents, h.namespace, object.GetName())
		if now != nil && !slices.Contains(now.GetFinalizers(), finalizerName) {
			t.Error("Reconcile was called before the finalizer was added")
		}
		return nil
	}
	calls := newRecorder(t, handlers.Object(
		handlers.Cached(controller.Lister),
		handlers.Finalizer(handlers.FinalizerConfig{
			Client: client, Name: finalizerName, Reconcile: reconcile, Cleanup: cleanup,
		}),
		nil,
	))
	h.run(controller)
	h.serve(controller, s.parents, calls.handle, dynamiccontroller.WithNamespaces(h.namespace))
	h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	calls.waitFor(s.parent("p"), 1)
	h.eventually("the object has the finalizer", func() error {
		if !slices.Contains(h.get(s.parents, h.namespace, "p").GetFinalizers(), finalizerName) {
			return errors.New("not yet")
		}
		return nil
	})
	h.noError(h.in(s.parents, h.namespace).Delete(t.Context(), "p", metav1.DeleteOptions{}))
	h.eventually("the object is gone", func() error {
		if h.get(s.parents, h.namespace, "p") != nil {
			return errors.New("not yet")
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	if cleanups < len(outcomes) {
		t.Errorf("got %d calls to Cleanup, want at least %d", cleanups, len(outcomes))
	}
}

// Set keeps the conditions set by other managers. The object that the caller passes to Set can be outdated.
func TestHandlers_ConditionsAreWrittenOnlyIfTheyChange(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	var writes writeCounter
	conditions := must(handlers.NewConditions(handlers.ConditionsConfig{
		Client: must(dynamic.NewForConfig(writes.wrap(h.config))), FieldManager: platformName,
	}))
	id := s.parent("p")
	first := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", map[string]any{"n": int64(1)}))
	h.merge(s.parents, h.namespace, "p", `{"status":{"conditions":[{"type":"Other","status":"True",
		"reason":"R","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`, "status")
	ready := func(status metav1.ConditionStatus) metav1.Condition {
		return metav1.Condition{Type: "Ready", Status: status, Reason: "R", Message: "m"}
	}
	extra := metav1.Condition{Type: "Extra", Status: metav1.ConditionTrue, Reason: "R"}
	set := func(object *unstructured.Unstructured, wantWrite bool, all ...metav1.Condition) *unstructured.Unstructured {
		t.Helper()
		before := h.get(s.parents, h.namespace, "p").GetResourceVersion()
		n := writes.Load()
		changed, err := conditions.Set(t.Context(), id, object, all...)
		h.noError(err)
		now := h.get(s.parents, h.namespace, "p")
		if changed != wantWrite || (now.GetResourceVersion() != before) != wantWrite {
			t.Errorf("Set returned %t; the version was %s before and %s after", changed, before, now.GetResourceVersion())
		}
		if got := writes.Load() - n; !wantWrite && got != 0 {
			t.Errorf("got %d writes without a change, want none", got)
		}
		return now
	}
	types := func(object *unstructured.Unstructured) string {
		list, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
		var all []string
		for _, condition := range list {
			condition := condition.(map[string]any)
			all = append(all, fmt.Sprintf("%s=%s/%v", condition["type"], condition["status"], condition["observedGeneration"]))
		}
		slices.Sort(all)
		return strings.Join(all, " ")
	}

	// The object is outdated, because another manager has written the status.
	now := set(first.DeepCopy(), true, ready("True"), extra)
	if got := types(now); got != "Extra=True/1 Other=True/<nil> Ready=True/1" {
		t.Errorf("the conditions are %s", got)
	}
	set(now.DeepCopy(), false, ready("True"), extra)
	// This object is outdated and lacks the conditions. The API server rejects the write, and Set does not repeat it.
	before := now.GetResourceVersion()
	changed, err := conditions.Set(t.Context(), id, first.DeepCopy(), ready("True"), extra)
	h.noError(err)
	if after := h.get(s.parents, h.namespace, "p").GetResourceVersion(); changed || after != before {
		t.Errorf("Set returned %t; the version was %s before and %s after", changed, before, after)
	}
	now = set(now.DeepCopy(), true, ready("True"))
	if got := types(now); got != "Other=True/<nil> Ready=True/1" {
		t.Errorf("after a condition was removed, the conditions are %s", got)
	}

	// Set takes the observed generation from the caller's object.
	h.merge(s.parents, h.namespace, "p", `{"spec":{"n":2}}`)
	now = set(now.DeepCopy(), true, ready("False"))
	if got := types(now); got != "Other=True/<nil> Ready=False/1" {
		t.Errorf("the conditions are %s", got)
	}
	now = set(now.DeepCopy(), true, ready("False"))
	if got := types(now); got != "Other=True/<nil> Ready=False/2" {
		t.Errorf("the conditions are %s", got)
	}
	h.noError(h.in(s.parents, h.namespace).Delete(t.Context(), "p", metav1.DeleteOptions{}))
	if _, err := conditions.Set(t.Context(), id, now.DeepCopy(), ready("True")); !apierrors.IsNotFound(err) {
		t.Errorf("got error %v for an object that is gone, want NotFound", err)
	}
}

// Set must not replace conditions that were observed at a later generation. If Set is called without conditions, it
// must remove all conditions of its field manager.
func TestHandlers_ConditionsOfLaterGenerationsAreNotReplaced(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	outdated := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", map[string]any{"size": "small"}))
	h.merge(s.parents, h.namespace, "p", `{"spec":{"size":"big"}}`)
	conditions := must(handlers.NewConditions(handlers.ConditionsConfig{
		Client: h.client, FieldManager: platformName,
	}))
	observed := func() string {
		var all []string
		list, _, _ := unstructured.NestedSlice(h.get(s.parents, h.namespace, "p").Object, "status", "conditions")
		for _, item := range list {
			item := item.(map[string]any)
			all = append(all, fmt.Sprintf("%v=%v at %v", item["type"], item["status"], item["observedGeneration"]))
		}
		return strings.Join(all, ", ")
	}
	set := func(object *unstructured.Unstructured, status metav1.ConditionStatus) {
		t.Helper()
		condition := metav1.Condition{Type: "Ready", Status: status, Reason: "R"}
		_, err := conditions.Set(t.Context(), s.parent("p"), object, condition)
		h.noError(err)
	}
	set(h.get(s.parents, h.namespace, "p"), metav1.ConditionTrue)
	set(outdated, metav1.ConditionFalse)
	if got := observed(); got != "Ready=True at 2" {
		t.Errorf("the conditions are %s", got)
	}
	_, err := conditions.Set(t.Context(), s.parent("p"), h.get(s.parents, h.namespace, "p"))
	h.noError(err)
	if got := observed(); got != "" {
		t.Errorf("the conditions are %s, want none", got)
	}
}

// A status can be written even if the schema does not merge conditions by type, and if the rest of the object no longer
// matches the schema. An apply would fail in the second case.
func TestHandlers_ConditionsAreWrittenWithoutAMatchingSchema(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	object := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", map[string]any{"size": "small"}))
	h.merge(s.parents, h.namespace, "p", `{"status":{"conditions":[{"type":"Other","status":"True"}]}}`, "status")
	h.updateCRD(s.parents.GroupResource().String(), func(crd *apiextensionsv1.CustomResourceDefinition) {
		properties := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties
		properties["spec"] = apiextensionsv1.JSONSchemaProps{
			Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"size": {Type: "integer"}},
		}
		status := properties["status"]
		conditions := status.Properties["conditions"]
		conditions.XListType, conditions.XListMapKeys = nil, nil
		status.Properties["conditions"] = conditions
		status.Properties["phase"] = apiextensionsv1.JSONSchemaProps{Type: "string"}
	})
	apply := func() error {
		options := metav1.ApplyOptions{FieldManager: "user", Force: true, DryRun: []string{metav1.DryRunAll}}
		config := newObject(s.parents, "Platform", h.namespace, "p", nil)
		config.SetLabels(map[string]string{"a": "b"})
		_, err := h.in(s.parents, h.namespace).Apply(t.Context(), "p", config, options)
		return err
	}
	h.eventually("the new schema is used", func() error {
		if apply() == nil {
			return errors.New("the apply succeeded")
		}
		return nil
	})
	conditions := must(handlers.NewConditions(handlers.ConditionsConfig{Client: h.client, FieldManager: platformName}))
	ready := []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "R"}}
	for call, want := range []bool{true, false} {
		changed, err := conditions.SetStatus(t.Context(), s.parent("p"), object, ready, map[string]any{"phase": "Done"})
		h.noError(err)
		if changed != want {
			t.Errorf("call %d: changed is %t", call, changed)
		}
	}
	now := h.get(s.parents, h.namespace, "p")
	list, _, _ := unstructured.NestedSlice(now.Object, "status", "conditions")
	if phase, _, _ := unstructured.NestedString(now.Object, "status", "phase"); len(list) != 2 || phase != "Done" {
		t.Errorf("the status is %v", now.Object["status"])
	}
}

// The API server returns the same error if the status subresource or the object is missing.
func TestHandlers_ConditionsOfATypeWithoutStatusSubresource(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	object := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	h.updateCRD(s.parents.GroupResource().String(), func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Versions[0].Subresources = nil
	})
	conditions := must(handlers.NewConditions(handlers.ConditionsConfig{Client: h.client, FieldManager: platformName}))
	attempts := 0
	set := func() error {
		attempts++ // each attempt changes the status
		_, err := conditions.Set(t.Context(), s.parent("p"), object,
			metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: fmt.Sprintf("R%d", attempts)})
		return err
	}
	h.eventually("the subresource is missing", func() error {
		if err := set(); !errors.Is(err, handlers.ErrNoStatus) || apierrors.IsNotFound(err) {
			return errors.New(fmt.Sprint("got ", err))
		}
		return nil
	})
	h.noError(h.in(s.parents, h.namespace).Delete(t.Context(), "p", metav1.DeleteOptions{}))
	if err := set(); !apierrors.IsNotFound(err) || errors.Is(err, handlers.ErrNoStatus) {
		t.Errorf("got %v for an object that is gone", err)
	}
}
