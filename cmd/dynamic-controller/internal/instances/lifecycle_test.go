package instances

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children"
	"github.com/dynamic-controller/engine/test/platformtest"
)

func pendingChild(name, id string, deleting bool, finalizers ...string) children.PendingChild {
	return children.PendingChild{
		ObjectIdentifiers: dynamiccontroller.ObjectIdentifiers{NamespacedKey: "shop/" + name},
		Kind:              schema.GroupKind{Kind: "ConfigMap"}, Deleting: deleting, Finalizers: finalizers,
		Annotations: map[string]string{resourceAnnotation: id},
	}
}

func TestPendingMessage(t *testing.T) {
	for name, test := range map[string]struct {
		pending []children.PendingChild
		want    string
	}{
		"blocked": {
			[]children.PendingChild{pendingChild("a-page", "page", true, "example.com/x")},
			"page: waiting for ConfigMap shop/a-page to be deleted; blocked by finalizer example.com/x",
		},
		"two finalizers, no id": {
			[]children.PendingChild{pendingChild("a", "", true, "example.com/x", "example.com/y")},
			"waiting for ConfigMap shop/a to be deleted; blocked by finalizers example.com/x, example.com/y",
		},
		"a child in an earlier stage": {
			[]children.PendingChild{pendingChild("a", "a", true), pendingChild("b", "b", false)},
			"a: waiting for ConfigMap shop/a to be deleted; and 1 more",
		},
		"too many": {
			slices.Repeat([]children.PendingChild{pendingChild("a", "a", true)}, 5),
			strings.Repeat("a: waiting for ConfigMap shop/a to be deleted; ", 3) + "and 2 more",
		},
		"a child that the identity cannot read": {
			[]children.PendingChild{{Kind: schema.GroupKind{Kind: "ConfigMap"}, Deleting: true}},
			"waiting for a child of kind ConfigMap to be deleted",
		},
		"a forged id": {
			[]children.PendingChild{pendingChild("a", "x\ny", true)}, "waiting for ConfigMap shop/a to be deleted",
		},
		"a huge id": {
			[]children.PendingChild{pendingChild("a", strings.Repeat("a", 64), true)},
			"waiting for ConfigMap shop/a to be deleted",
		},
	} {
		if got := pendingMessage(test.pending); got != test.want {
			t.Errorf("%s: got  %s\nwant %s", name, got, test.want)
		}
	}
}

func TestReadyMessage_NamesExcludedResources(t *testing.T) {
	excluded := func(ids ...string) (all []blueprint.Excluded) {
		for _, id := range ids {
			all = append(all, blueprint.Excluded{ID: id})
		}
		return all
	}
	for want, step := range map[string]blueprint.Step{
		"the resource is ready":     {Rendered: make([]blueprint.Rendered, 1)},
		"all 3 resources are ready": {Rendered: make([]blueprint.Rendered, 3)},
		"3 of 4 resources are ready; excluded by includeWhen: route": {
			Rendered: make([]blueprint.Rendered, 3), Excluded: excluded("route"),
		},
		"all 3 resources are ready, with 5 objects": {
			Rendered: make([]blueprint.Rendered, 5), Collections: map[string]int{"pages": 4, "none": 0},
		},
		"1 of 2 resources is ready, with 4 objects; excluded by includeWhen: route": {
			Rendered: make([]blueprint.Rendered, 4), Collections: map[string]int{"pages": 4}, Excluded: excluded("route"),
		},
		"0 of 2 resources are ready; excluded by includeWhen: a, b": {Excluded: excluded("a", "b")},
		"0 of 11 resources are ready; excluded by includeWhen: a, a, a, a, a, a, a, a, a, a, and 1 more": {
			Excluded: excluded(slices.Repeat([]string{"a"}, 11)...),
		},
	} {
		step.Ready = true
		if got := readiness(nil, step, children.Result{}, nil); got.Message != want || got.Status != metav1.ConditionTrue {
			t.Errorf("got  %s\nwant %s", got.Message, want)
		}
	}
}

func conditionOf(t *testing.T, server *platformtest.Server, conditionType string) metav1.Condition {
	t.Helper()
	object, err := server.Tracker().Get(websites, "shop", "flowers")
	if err != nil {
		t.Fatal(err)
	}
	if c := ConditionOf(object.(*unstructured.Unstructured), conditionType); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// A deletion is reported only if it takes longer than usual.
func TestDeletion_NamesFinalizers(t *testing.T) {
	for name, test := range map[string]struct {
		finalizers []string
		child      []string // finalizers of a child that is being deleted
		after      time.Duration
		unreadable bool
		want       string
	}{
		"a deletion that has just begun": {finalizers: []string{"example.com/hold"}},
		"a finalizer of another controller": {
			finalizers: []string{"example.com/hold"}, after: time.Minute,
			want: "waiting for the instance to be released; blocked by finalizer example.com/hold",
		},
		"children that Kubernetes deletes": {
			finalizers: []string{metav1.FinalizerDeleteDependents}, after: time.Minute,
			want: "waiting for Kubernetes to delete the children",
		},
		"a child with a finalizer": {
			finalizers: []string{metav1.FinalizerDeleteDependents}, child: []string{"example.com/x"}, after: time.Minute,
			want: "r0: waiting for ConfigMap shop/r0 to be deleted; blocked by finalizer example.com/x",
		},
		"a child with a finalizer that the identity cannot read": {
			finalizers: []string{metav1.FinalizerDeleteDependents}, child: []string{"example.com/x"}, after: time.Minute,
			unreadable: true, want: "waiting for a child of kind ConfigMap to be deleted",
		},
	} {
		t.Run(name, func(t *testing.T) {
			k, server := newTestReconciler(t, chain(1))
			self := newFlowers(t, server)
			if step, err := applyChildren(t, k, self); err != nil || !step.Ready {
				t.Fatalf("got %+v, %v", step, err)
			}
			deleted := metav1.NewTime(time.Now().Add(-test.after))
			self.SetDeletionTimestamp(&deleted)
			self.SetFinalizers(test.finalizers)
			if test.child != nil {
				child := childNamed(t, server, "r0").DeepCopy()
				child.SetDeletionTimestamp(&deleted)
				child.SetFinalizers(test.child)
				_ = k.engine.(*platformtest.Engine).Secondary.Update(child)
			}
			if test.unreadable {
				k.identities = &fakeIdentities{id: web, client: server, unreadable: true}
			}
			server.Took()
			err := k.reconcile(t.Context(), flowers, self)
			if _, again := dynamiccontroller.RequeueDelay(err); again != (test.want == "") {
				t.Errorf("got the error %v", err)
			}
			c := conditionOf(t, server, conditionReady)
			if c.Message != test.want || test.want != "" && c.Reason != reasonDeleting {
				t.Errorf("got  %+v\nwant %s", c, test.want)
			}
		})
	}
}

func TestDeletion_ErrorIsFailure(t *testing.T) {
	c := deletion(&unstructured.Unstructured{}, nil, nil, errors.New("e"))
	if c.Reason != reasonFailed || c.Message != "e" {
		t.Errorf("got %+v", c)
	}
	if c := deletion(&unstructured.Unstructured{}, nil, nil, nil); c.Message != "" {
		t.Errorf("without finalizers, got %+v", c)
	}
}

// A type that the platform did not create can lack a status.
func TestDeletion_NotReportedWithoutStatus(t *testing.T) {
	k, server := newTestReconciler(t, chain(1))
	self := newFlowers(t, server)
	deleted := metav1.NewTime(time.Now().Add(-time.Hour))
	self.SetDeletionTimestamp(&deleted)
	self.SetFinalizers([]string{"example.com/hold"})
	k.Compiled, k.Spec.Type.CRD = nil, "websites.shop.example.com"
	if err := k.reconcile(t.Context(), flowers, self); err != nil || len(server.Took()) > 0 {
		t.Errorf("got %v, or a write was sent", err)
	}
}

// If the platform does not know whether the type has a status, it tries to write why a deletion fails.
func TestDeletion_FailureIsReportedWithoutARevision(t *testing.T) {
	k, server := newTestReconciler(t, chain(1))
	self := newFlowers(t, server)
	deleted := metav1.NewTime(time.Now().Add(-time.Hour))
	self.SetDeletionTimestamp(&deleted)
	self.SetFinalizers([]string{ChildrenFinalizer})
	k.Compiled, k.Spec.Type.CRD = nil, "websites.shop.example.com"
	server.PrependReactor("patch", "websites", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return action.GetSubresource() == "", nil, errors.New("frozen")
	})
	if err := k.reconcile(t.Context(), flowers, self); err == nil {
		t.Error("the deletion succeeded")
	}
	if took := server.Took(); !slices.Contains(took, "patch websites flowers status") {
		t.Errorf("got requests %q", took)
	}
}

func TestPaused_WritesNoChildren(t *testing.T) {
	for name, test := range map[string]struct {
		pause  func(k *Reconciler, self *unstructured.Unstructured, paused bool)
		reason string
	}{
		"instance": {func(_ *Reconciler, self *unstructured.Unstructured, paused bool) {
			self.SetAnnotations(map[string]string{PausedAnnotation: map[bool]string{true: "true", false: "false"}[paused]})
		}, "InstancePaused"},
		"Blueprint": {
			func(k *Reconciler, _ *unstructured.Unstructured, paused bool) { k.SetPaused(paused) }, "BlueprintPaused",
		},
	} {
		t.Run(name, func(t *testing.T) {
			k, server := newTestReconciler(t, chain(2))
			k.Name, k.ReportsRevision = "websites-1", true
			self := newFlowers(t, server)
			engine := k.engine.(*platformtest.Engine)
			_ = engine.Objects.Add(self)
			test.pause(k, self, true)
			deleted := metav1.Now()
			while := " while the " + strings.ToLower(name) + " has the annotation " + PausedAnnotation
			for _, step := range []struct {
				at         *metav1.Time
				finalizers []string
				want       string
				writes     []string
			}{
				{nil, nil, "no changes are made", []string{"patch websites flowers status"}},
				{&deleted, []string{"example.com/hold"}, "no changes are made", nil}, // other controllers delay the deletion
				{&deleted, []string{ChildrenFinalizer}, "the instance is not deleted", []string{"patch websites flowers status"}},
			} {
				self.SetDeletionTimestamp(step.at)
				self.SetFinalizers(step.finalizers)
				if err := k.reconcile(t.Context(), flowers, self); err != nil {
					t.Fatal(err)
				}
				if got := server.Took(); !slices.Equal(got, step.writes) {
					t.Errorf("written: %q, want %q", got, step.writes)
				}
				checkPaused(t, server, test.reason, step.want+while)
			}
			self.SetDeletionTimestamp(nil)
			self.SetFinalizers(nil)
			engine.Enqueued = nil
			test.pause(k, self, false)
			if name == "Blueprint" && !slices.Contains(engine.Enqueued, flowers) {
				t.Errorf("enqueued: %v, want the instance", engine.Enqueued)
			}
			checkUnpaused(t, k, server, self)
		})
	}
}

// checkPaused checks the status of an instance that has been paused since its creation.
func checkPaused(t *testing.T, server *platformtest.Server, reason, message string) {
	t.Helper()
	for conditionType, want := range map[string]string{
		ConditionPaused: "True " + reason, conditionReady: "Unknown Paused",
	} {
		c := conditionOf(t, server, conditionType)
		if string(c.Status)+" "+c.Reason != want || c.Message != message {
			t.Errorf("got %+v, want %s: %s", c, want, message)
		}
	}
}

func TestPaused_ReadyStillDescribesTheLastReconcile(t *testing.T) {
	k, server := newTestReconciler(t, chain(1))
	self := newFlowers(t, server)
	reconcile := func() metav1.Condition {
		t.Helper()
		if err := k.reconcile(t.Context(), flowers, self); err != nil {
			t.Fatal(err)
		}
		return conditionOf(t, server, conditionReady)
	}
	before := reconcile()
	k.SetPaused(true)
	if got := reconcile(); got != before || got.Reason == reasonPaused {
		t.Errorf("got %+v, want %+v", got, before)
	}
}

// checkUnpaused reconciles an instance that is no longer paused and checks its status.
func checkUnpaused(t *testing.T, k *Reconciler, server *platformtest.Server, self *unstructured.Unstructured) {
	t.Helper()
	if err := k.reconcile(t.Context(), flowers, self); err != nil {
		t.Fatal(err)
	}
	if c := conditionOf(t, server, ConditionPaused); c.Status != metav1.ConditionFalse {
		t.Errorf("got %+v", c)
	}
	if c := conditionOf(t, server, conditionReady); c.Status != metav1.ConditionTrue {
		t.Errorf("got %+v", c)
	}
	object, err := server.Tracker().Get(websites, "shop", "flowers")
	if err != nil {
		t.Fatal(err)
	}
	status := object.(*unstructured.Unstructured).Object["status"].(map[string]any)
	if status["revision"] != "websites-1" {
		t.Errorf("got the status %v", status)
	}
}

func TestStatus_OmitsUndeclaredRevision(t *testing.T) {
	k, server := newTestReconciler(t, chain(1))
	k.Name = "websites-1"
	self := newFlowers(t, server)
	if err := k.reconcile(t.Context(), flowers, self); err != nil {
		t.Fatal(err)
	}
	if revision, has, _ := unstructured.NestedString(self.Object, "status", "revision"); has {
		t.Errorf("got the revision %s", revision)
	}
}
