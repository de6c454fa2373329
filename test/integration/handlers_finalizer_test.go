package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

const finalizerName = platformName + "/bucket"

func nothing(context.Context, dynamiccontroller.ObjectIdentifiers, *unstructured.Unstructured) error {
	return nil
}

// Others add and remove finalizers all the while, and the handler sees an old object each time: none is ever lost, and
// none is brought back.
func TestHandlers_AFinalizerOfOthersIsNeverLost(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	stale := h.get(s.parents, h.namespace, "p")
	handler := handlers.Finalizer(h.client, finalizerName, nothing, nothing)

	var theirs sync.WaitGroup
	const others = 4
	for i := range others {
		theirs.Go(func() {
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
		// A conflict that outlasts its retries is what the engine is given.
		if err := handler(t.Context(), s.parent("p"), stale.DeepCopy()); err != nil && !apierrors.IsConflict(err) {
			t.Fatal(err)
		}
	}
	theirs.Wait()
	h.eventually("ours is added", func() error { return handler(t.Context(), s.parent("p"), stale.DeepCopy()) })
	now := h.get(s.parents, h.namespace, "p").GetFinalizers()
	slices.Sort(now)
	want := []string{"others.example.com/0", "others.example.com/1", "others.example.com/2", "others.example.com/3", finalizerName}
	if !slices.Equal(now, want) {
		t.Errorf("there are %v, and not %v", now, want)
	}

	h.noError(h.in(s.parents, h.namespace).Delete(t.Context(), "p", metav1.DeleteOptions{}))
	deleted := h.get(s.parents, h.namespace, "p")
	h.merge(s.parents, h.namespace, "p", `{"metadata":{"labels":{"a":"change"}}}`)
	h.noError(handler(t.Context(), s.parent("p"), deleted))
	now = h.get(s.parents, h.namespace, "p").GetFinalizers()
	slices.Sort(now)
	if !slices.Equal(now, want[:others]) {
		t.Errorf("there are %v, and not %v", now, want[:others])
	}
	h.noError(handler(t.Context(), s.parent("p"), stale.DeepCopy()))
	if now := h.get(s.parents, h.namespace, "p").GetFinalizers(); slices.Contains(now, finalizerName) {
		t.Error("it was added to an object that is being deleted")
	}
	h.merge(s.parents, h.namespace, "p", `{"metadata":{"finalizers":null}}`)
}

// The finalizer is there before next runs; a cleanup that asks to be called again, or fails, keeps it.
func TestHandlers_CleanupRunsUntilItIsDone(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	client := must(dynamic.NewForConfig(h.config))
	controller := h.controller(dynamiccontroller.Config{})
	outcomes := []error{errors.New("the bucket is busy"), dynamiccontroller.RequeueAfter(1), nil}
	var mu sync.Mutex
	cleanups := 0
	handler := handlers.Object(handlers.Cached(controller.Lister), handlers.Finalizer(client, finalizerName,
		func(context.Context, dynamiccontroller.ObjectIdentifiers, *unstructured.Unstructured) error {
			mu.Lock()
			defer mu.Unlock()
			if now := h.get(s.parents, h.namespace, "p"); now == nil || !slices.Contains(now.GetFinalizers(), finalizerName) {
				t.Error("the object went before its cleanup")
			}
			err := outcomes[min(cleanups, len(outcomes)-1)]
			cleanups++
			return err
		},
		func(_ context.Context, _ dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured) error {
			if now := h.get(s.parents, h.namespace, object.GetName()); now != nil && !slices.Contains(now.GetFinalizers(), finalizerName) {
				t.Error("the handler runs before there is a finalizer")
			}
			return nil
		}), nil)
	calls := newRecorder(t, handler)
	h.run(controller)
	h.serve(controller, s.parents, calls.handle, dynamiccontroller.WithNamespace(h.namespace))
	h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	calls.waitFor(s.parent("p"), 1)
	h.eventually("it has the finalizer", func() error {
		if !slices.Contains(h.get(s.parents, h.namespace, "p").GetFinalizers(), finalizerName) {
			return errors.New("not yet")
		}
		return nil
	})
	h.noError(h.in(s.parents, h.namespace).Delete(t.Context(), "p", metav1.DeleteOptions{}))
	h.eventually("it is gone", func() error {
		if h.get(s.parents, h.namespace, "p") != nil {
			return errors.New("not yet")
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	if cleanups < len(outcomes) {
		t.Errorf("%d cleanups", cleanups)
	}
}

// Conditions of others live on, what did not change is not written, and an object that is stale is no reason for either.
func TestHandlers_ConditionsWriteOnlyWhatChanged(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	written := &tally{}
	conditions := handlers.Conditions{Client: must(dynamic.NewForConfig(written.through(h.config))), FieldManager: platformName}
	id := s.parent("p")
	first := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", map[string]any{"n": int64(1)}))
	h.merge(s.parents, h.namespace, "p", `{"status":{"conditions":[{"type":"Theirs","status":"True","reason":"R","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`, "status")
	ready := func(status metav1.ConditionStatus) metav1.Condition {
		return metav1.Condition{Type: "Ready", Status: status, Reason: "R", Message: "m"}
	}
	extra := metav1.Condition{Type: "Extra", Status: metav1.ConditionTrue, Reason: "R"}
	set := func(object *unstructured.Unstructured, want int64, all ...metav1.Condition) *unstructured.Unstructured {
		t.Helper()
		before := h.get(s.parents, h.namespace, "p").GetResourceVersion()
		n := written.writes.Load()
		changed, err := conditions.Set(t.Context(), id, object, all...)
		h.noError(err)
		now := h.get(s.parents, h.namespace, "p")
		if changed != (want > 0) || (now.GetResourceVersion() != before) != (want > 0) {
			t.Errorf("changed: %t, from %s to %s", changed, before, now.GetResourceVersion())
		}
		if got := written.writes.Load() - n; want == 0 && got != 0 {
			t.Errorf("%d writes", got)
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

	// The first object is stale: others have written the status.
	now := set(first.DeepCopy(), 1, ready("True"), extra)
	if got := types(now); got != "Extra=True/1 Ready=True/1 Theirs=True/<nil>" {
		t.Errorf("there are %s", got)
	}
	set(now.DeepCopy(), 0, ready("True"), extra)
	// As stale as a cache that does not show the conditions yet. A write is tried, refused, and not repeated.
	before := now.GetResourceVersion()
	changed, err := conditions.Set(t.Context(), id, first.DeepCopy(), ready("True"), extra)
	h.noError(err)
	if after := h.get(s.parents, h.namespace, "p").GetResourceVersion(); changed || after != before {
		t.Errorf("changed: %t, from %s to %s", changed, before, after)
	}
	now = set(now.DeepCopy(), 1, ready("True"))
	if got := types(now); got != "Ready=True/1 Theirs=True/<nil>" {
		t.Errorf("what is no longer set did not go, or others' did: %s", got)
	}

	// What was observed is the old generation, whatever the object is by now.
	h.merge(s.parents, h.namespace, "p", `{"spec":{"n":2}}`)
	now = set(now.DeepCopy(), 1, ready("False"))
	if got := types(now); got != "Ready=False/1 Theirs=True/<nil>" {
		t.Errorf("there are %s", got)
	}
	now = set(now.DeepCopy(), 1, ready("False"))
	if got := types(now); got != "Ready=False/2 Theirs=True/<nil>" {
		t.Errorf("there are %s", got)
	}
	h.noError(h.in(s.parents, h.namespace).Delete(t.Context(), "p", metav1.DeleteOptions{}))
	if _, err := conditions.Set(t.Context(), id, now.DeepCopy(), ready("True")); !apierrors.IsNotFound(err) {
		t.Errorf("of an object that is gone: %v", err)
	}
}

// No conditions at all are none of this manager's, and those of a later generation are not overwritten by who saw an earlier one.
func TestHandlers_ConditionsMayBeNoneAndNeverGoBack(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	old := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", map[string]any{"size": "small"}))
	h.merge(s.parents, h.namespace, "p", `{"spec":{"size":"big"}}`)
	conditions := handlers.Conditions{Client: h.client, FieldManager: platformName}
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
		_, err := conditions.Set(t.Context(), s.parent("p"), object, metav1.Condition{Type: "Ready", Status: status, Reason: "R"})
		h.noError(err)
	}
	set(h.get(s.parents, h.namespace, "p"), metav1.ConditionTrue)
	set(old, metav1.ConditionFalse)
	if have := observed(); have != "Ready=True at 2" {
		t.Errorf("there is %s", have)
	}
	_, err := conditions.Set(t.Context(), s.parent("p"), h.get(s.parents, h.namespace, "p"))
	h.noError(err)
	if have := observed(); have != "" {
		t.Errorf("there is %s", have)
	}
}
