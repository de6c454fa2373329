package instances

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
	"github.com/dynamic-controller/engine/handlers/children"
	"github.com/dynamic-controller/engine/test/platformtest"
)

const conditionUp = "Up"

// reporting returns a Blueprint whose instances have a ConfigMap and a status that reads it.
func reporting() *blueprint.Blueprint {
	b := chain(1)
	b.Spec.Type.Status = map[string]any{
		"address": "${r0.data.a}", "page": map[string]any{"name": "${r0.metadata.name}"},
		"host": "${self.spec.?host}",
	}
	b.Spec.Type.Schema["properties"].(map[string]any)["spec"] = map[string]any{
		"type": "object", "x-kubernetes-preserve-unknown-fields": true,
		"properties": map[string]any{"text": map[string]any{"type": "string"}},
	}
	b.Spec.Type.Conditions = []blueprint.Condition{{Type: conditionUp, Status: "r0.data.a == 'false'", Reason: "Up"}}
	return b
}

// statusFields returns the status of the instance without its conditions and its observedGeneration.
func statusFields(t *testing.T, server *platformtest.Server) map[string]any {
	t.Helper()
	object, err := server.Tracker().Get(websites, "shop", "flowers")
	if err != nil {
		t.Fatal(err)
	}
	status, _, _ := unstructured.NestedMap(object.(*unstructured.Unstructured).Object, "status")
	delete(status, "conditions")
	delete(status, "observedGeneration")
	return status
}

func TestReport_WrittenWithConditions(t *testing.T) {
	r, server := newTestReconciler(t, reporting())
	self := newFlowers(t, server)
	if err := r.reconcile(t.Context(), flowers, self); err != nil {
		t.Fatal(err)
	}
	page := map[string]any{"name": "r0"}
	if d := cmp.Diff(map[string]any{"address": "false", "page": page}, statusFields(t, server)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if c := conditionOf(t, server, conditionUp); c.Status != metav1.ConditionTrue || c.Reason != "Up" {
		t.Errorf("got %+v", c)
	}
	if writes := server.Took(); !slices.Equal(writes, []string{
		"patch websites flowers", "patch configmaps r0", "patch websites flowers status",
	}) {
		t.Errorf("written: %q", writes)
	}
	if err := r.reconcile(t.Context(), flowers, self); err != nil || len(server.Took()) > 0 {
		t.Errorf("the second reconcile returned %v or sent a write", err)
	}

	// A field without a value is removed.
	ready := metav1.Condition{Type: conditionReady, Status: metav1.ConditionTrue, Reason: reasonReady}
	removed := &blueprint.Report{Fields: map[string]any{"address": nil, "page": page}}
	if err := r.report(t.Context(), flowers, self, ready, removed, nil); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]any{"page": page}, statusFields(t, server)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Without a new report, the status keeps the last one.
func TestReport_KeptWithoutResult(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Reconciler, *unstructured.Unstructured)
		want   metav1.ConditionStatus
	}{
		"identity rejected": {func(r *Reconciler, _ *unstructured.Unstructured) {
			r.identities = &fakeIdentities{err: &identity.Rejection{Reason: identity.ReasonConsentMissing, Message: "m"}}
		}, metav1.ConditionTrue},
		"an identity rejected after a change": {func(r *Reconciler, self *unstructured.Unstructured) {
			r.identities = &fakeIdentities{err: &identity.Rejection{Reason: identity.ReasonConsentMissing, Message: "m"}}
			self.SetGeneration(2)
		}, metav1.ConditionUnknown},
		"deleted": {func(_ *Reconciler, self *unstructured.Unstructured) {
			deleted := metav1.NewTime(metav1.Now().Add(-reportAfter))
			self.SetDeletionTimestamp(&deleted)
			self.SetFinalizers([]string{"example.com/hold"})
			self.SetGeneration(2)
		}, metav1.ConditionTrue},
		"paused": {func(r *Reconciler, _ *unstructured.Unstructured) { r.SetPaused(true) }, metav1.ConditionTrue},
		"budget": {func(_ *Reconciler, self *unstructured.Unstructured) {
			self.SetAnnotations(map[string]string{budgetAnnotation: "0"})
		}, metav1.ConditionTrue},
	} {
		t.Run(name, func(t *testing.T) {
			r, server := newTestReconciler(t, reporting())
			self := newFlowers(t, server)
			self.SetGeneration(1)
			if err := r.reconcile(t.Context(), flowers, self); err != nil {
				t.Fatal(err)
			}
			before := statusFields(t, server)
			test.change(r, self)
			server.Took()
			_ = r.reconcile(t.Context(), flowers, self)
			if writes := server.Took(); !slices.Contains(writes, "patch websites flowers status") {
				t.Errorf("written: %q", writes)
			}
			if d := cmp.Diff(before, statusFields(t, server)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if c := conditionOf(t, server, conditionUp); c.Status != test.want {
				t.Errorf("got %+v", c)
			}
		})
	}
}

// Otherwise, the instance could not report why it is not ready.
func TestReport_RejectedFieldsDoNotPreventConditions(t *testing.T) {
	r, server := newTestReconciler(t, reporting())
	self := newFlowers(t, server)
	invalid := apierrors.NewInvalid(website.GroupKind(), "flowers", field.ErrorList{
		field.TypeInvalid(field.NewPath("status", "address"), "false", "must be of type integer"),
	})
	server.PrependReactor("patch", "websites", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		return patch.GetSubresource() == "status" && strings.Contains(string(patch.GetPatch()), `"address":`), nil, invalid
	})
	for range 2 {
		if err := r.reconcile(t.Context(), flowers, self); err != nil {
			t.Fatal(err)
		}
	}
	c := conditionOf(t, server, conditionReady)
	if c.Reason != reasonInvalid || !strings.HasPrefix(c.Message, "spec.type.status: ") ||
		!strings.Contains(c.Message, "status.address: Invalid value") {
		t.Errorf("got %+v", c)
	}
	if c := conditionOf(t, server, conditionUp); c.Status != metav1.ConditionTrue {
		t.Errorf("got %+v", c)
	}
}

func TestReport_ProblemIsInvalid(t *testing.T) {
	step := blueprint.Step{
		Unready: []blueprint.Reason{{ID: "web", Reason: "does not exist yet"}},
		Report:  &blueprint.Report{Problems: blueprint.Problems{{Path: "spec.type.status.a", Reason: "r"}}},
	}
	c := readiness(nil, step, children.Result{}, nil)
	if c.Reason != reasonInvalid || c.Message != "spec.type.status.a: r" {
		t.Errorf("got %+v", c)
	}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "a", nil)
	if c := readiness(nil, step, children.Result{}, forbidden); c.Reason != reasonForbidden {
		t.Errorf("the child's error must come first, got %+v", c)
	}
}

// Fields of other controllers are kept.
func TestReport_RemovesStaleFields(t *testing.T) {
	r, server := newTestReconciler(t, reporting())
	r.Name, r.ReportsRevision = "websites-2", true
	self := newFlowers(t, server)
	self.Object["status"] = map[string]any{"revision": "websites-1", "old": "a", "theirs": "b"}
	stored := self.DeepCopy()
	stored.SetManagedFields([]metav1.ManagedFieldsEntry{
		{Manager: StatusManager, FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:old":{},"f:revision":{}}}`)},
		{Manager: "other", FieldsV1: metav1.NewFieldsV1(`{"f:status":{".":{},"f:theirs":{}}}`)},
	})
	if err := server.Tracker().Update(websites, stored, "shop"); err != nil {
		t.Fatal(err)
	}
	// The fields of the old revision are removed even if those of the new one cannot be computed.
	able := r.identities
	r.identities = &fakeIdentities{err: &identity.Rejection{Reason: identity.ReasonConsentMissing, Message: "m"}}
	_ = r.reconcile(t.Context(), flowers, self.DeepCopy())
	want := map[string]any{"revision": "websites-2", "theirs": "b"}
	if d := cmp.Diff(want, statusFields(t, server)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	r.identities = able
	if err := r.reconcile(t.Context(), flowers, self); err != nil {
		t.Fatal(err)
	}
	want["address"], want["page"] = "false", map[string]any{"name": "r0"}
	if d := cmp.Diff(want, statusFields(t, server)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// An existing type can lack status.revision. The field owners are then read until no stale fields are left.
func TestReport_RemovesStaleFieldsWithoutStatusRevision(t *testing.T) {
	r, server := newTestReconciler(t, reporting())
	self := newFlowers(t, server)
	stored := self.DeepCopy()
	stored.Object["status"] = map[string]any{"old": "a", "theirs": "b"}
	stored.SetManagedFields([]metav1.ManagedFieldsEntry{
		{Manager: StatusManager, FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:old":{}}}`)},
		{Manager: "other", FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:theirs":{}}}`)},
	})
	if err := server.Tracker().Update(websites, stored, "shop"); err != nil {
		t.Fatal(err)
	}
	reads := 0
	server.PrependReactor("get", "websites", func(clienttesting.Action) (bool, runtime.Object, error) {
		reads++
		return false, nil, nil
	})
	for i, want := range []int{1, 2, 2, 2} {
		object, err := server.Tracker().Get(websites, "shop", "flowers")
		if err != nil {
			t.Fatal(err)
		}
		if err := r.reconcile(t.Context(), flowers, object.(*unstructured.Unstructured).DeepCopy()); err != nil {
			t.Fatal(err)
		}
		if reads != want {
			t.Errorf("reconcile %d: %d reads, want %d", i, reads, want)
		}
	}
	want := map[string]any{"address": "false", "page": map[string]any{"name": "r0"}, "theirs": "b"}
	if d := cmp.Diff(want, statusFields(t, server)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
