package instances

import (
	"context"
	"fmt"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/events"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children"
	"github.com/dynamic-controller/engine/test/platformtest"
)

// recordedEvents collects the events from a Reconciler.
type recordedEvents struct{ all []events.Event }

func (e *recordedEvents) record(event events.Event) { e.all = append(e.all, event) }

// take returns the reasons and notes of the events since the last call.
func (e *recordedEvents) take() (texts []string) {
	for _, event := range e.all {
		texts = append(texts, string(event.Reason)+": "+event.Note)
	}
	e.all = nil
	return texts
}

// expect fails the test unless the events since the last call match.
func (e *recordedEvents) expect(t *testing.T, name string, want ...string) {
	t.Helper()
	if got := e.take(); !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", name, got, want)
	}
}

func newRecordedReconciler(
	t *testing.T, b *blueprint.Blueprint,
) (*Reconciler, *platformtest.Server, *recordedEvents) {
	t.Helper()
	r, server := newTestReconciler(t, b)
	recorded := &recordedEvents{}
	r.record = recorded.record
	return r, server, recorded
}

func TestEvents_NoneForRetriesAndRestarts(t *testing.T) {
	r, server, recorded := newRecordedReconciler(t, chain(1))
	self := newFlowers(t, server)
	attempts, fails := 0, true
	server.PrependReactor("patch", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		attempts++
		return fails, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "r0",
			fmt.Errorf("attempt %d", attempts))
	})
	for range 5 {
		if err := r.reconcile(t.Context(), flowers, self); err == nil {
			t.Error("no error")
		}
	}
	got := recorded.take()
	if len(got) != 1 || attempts < 5 || got[0][:len("Failed: Forbidden: ")] != "Failed: Forbidden: " {
		t.Errorf("after %d attempts: %q", attempts, got)
	}
	fails = false
	if err := r.reconcile(t.Context(), flowers, self); err != nil {
		t.Fatal(err)
	}
	recorded.expect(t, "recovery", "ChildrenApplied: created ConfigMap r0", "Ready: the resource is ready")

	// A new process has only the status and the children.
	again, err := newReconciler(Clients{
		Engine: r.engine, Client: server, Identities: r.identities, Record: recorded.record,
		Mapper: platformtest.NewMapper(append(r.Compiled.Kinds(), website)...),
	}, r.Revision)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := server.Tracker().Get(websites, "shop", "flowers")
	if err != nil {
		t.Fatal(err)
	}
	if err := again.reconcile(t.Context(), flowers, stored.(*unstructured.Unstructured)); err != nil {
		t.Fatal(err)
	}
	recorded.expect(t, "restart")
}

func TestEvents_FollowTheReadyCondition(t *testing.T) {
	r, _, recorded := newRecordedReconciler(t, chain(1))
	before := &unstructured.Unstructured{Object: map[string]any{}}
	write := func(reason, message string) {
		after := &unstructured.Unstructured{Object: map[string]any{}}
		ready := readyCondition(reason)
		ready.Message, ready.LastTransitionTime = message, metav1.Now()
		withReady(after, "", ready)
		r.recordCondition(t.Context(), before, after)
		before = after
	}
	for _, step := range []struct{ reason, message, want string }{
		{reasonWaiting, "waiting for a", ""},
		{reasonReady, "all", "Ready: all"},
		{reasonReady, "all but one child ready", ""},
		{reasonWaiting, "waiting for b", ""},
		{reasonInvalid, "a: no such key", "Failed: Invalid: a: no such key"},
		{reasonInvalid, "b: no such key", "Failed: Invalid: b: no such key"},
		{reasonFailed, "timeout after 1s", "Failed: ChildrenFailed: timeout after 1s"},
		{reasonFailed, "timeout after 2s", ""},
		{reasonDeleting, "waiting for c", ""},
		{reasonReady, "all", "Ready: all"},
	} {
		write(step.reason, step.message)
		var want []string
		if step.want != "" {
			want = []string{step.want}
		}
		recorded.expect(t, step.reason+" "+step.message, want...)
	}
}

func TestEvents_ListChildren(t *testing.T) {
	r, server, recorded := newRecordedReconciler(t, chain(1))
	self := newFlowers(t, server)
	var changes []childChange
	for i := range 12 {
		changes = append(changes, childChange{created, "ConfigMap", dynamiccontroller.ObjectIdentifiers{
			NamespacedKey: fmt.Sprintf("shop/page-%d", i)}})
	}
	changes = append(changes, childChange{updated, "Secret", dynamiccontroller.ObjectIdentifiers{NamespacedKey: "far/s"}},
		childChange{deleted, "Service", dynamiccontroller.ObjectIdentifiers{NamespacedKey: "shop/web"}})
	access, err := r.accessFor(t.Context(), self)
	if err != nil {
		t.Fatal(err)
	}
	access.client.changes = slices.Clone(changes)
	r.recordChildren(t.Context(), self, access)
	recorded.expect(t, "all verbs", "ChildrenApplied: created ConfigMap page-0, ConfigMap page-1, ConfigMap page-2, "+
		"ConfigMap page-3, ConfigMap page-4, ConfigMap page-5, ConfigMap page-6, ConfigMap page-7, ConfigMap page-8, "+
		"ConfigMap page-9, and 2 more; updated Secret far/s", "ChildrenDeleted: deleted Service web")
	r.recordChildren(t.Context(), self, access)
	recorded.expect(t, "a second call for the same access")

	// The identity cannot read the deleted child, which was found with the platform's permissions.
	access.client.changes = changes[len(changes)-1:]
	access.reader.canRead = func(context.Context, schema.GroupVersionResource, string) bool { return false }
	r.recordChildren(t.Context(), self, access)
	recorded.expect(t, "an unreadable child", "ChildrenDeleted: deleted Service")
}

func TestEvents_ListPrunedChildren(t *testing.T) {
	r, server, recorded := newRecordedReconciler(t, chain(2))
	self := newFlowers(t, server)
	if err := r.reconcile(t.Context(), flowers, self); err != nil {
		t.Fatal(err)
	}
	recorded.expect(t, "two children", "ChildrenApplied: created ConfigMap r0, ConfigMap r1",
		"Ready: all 2 resources are ready")
	next, _ := newTestReconciler(t, chain(1))
	r.Compiled, r.Spec, r.stageOf = next.Compiled, next.Spec, next.stageOf
	if err := r.reconcile(t.Context(), flowers, self); err != nil && !isRequeue(err) {
		t.Fatal(err)
	}
	if got := recorded.take(); !slices.Contains(got, "ChildrenDeleted: deleted ConfigMap r1") {
		t.Errorf("got %q", got)
	}
}

// A deletion that follows a refused update is not reported as the end of the child.
func TestEvents_ReportRecreations(t *testing.T) {
	r, server, recorded := newRecordedReconciler(t, chain(1))
	self := newFlowers(t, server)
	access, err := r.accessFor(t.Context(), self)
	if err != nil {
		t.Fatal(err)
	}
	id := dynamiccontroller.ObjectIdentifiers{GVR: gvrOf("configmaps"), NamespacedKey: "shop/page"}
	access.client.refuses(id, true)
	access.client.deleted(id)
	id.NamespacedKey = "shop/other"
	access.client.deleted(id)
	r.recordChildren(t.Context(), self, access)
	recorded.expect(t, "a recreation", "ChildrenRecreated: recreating ConfigMap page, because the API server refuses "+
		"the change", "ChildrenDeleted: deleted ConfigMap other")
}

func TestApplied_IgnoresChildrenWithoutChanges(t *testing.T) {
	client, result := &childClient{requests: newRequests()}, children.Result{}
	for _, outcome := range []children.Outcome{
		children.OutcomeCreated, children.OutcomeApplied, children.OutcomeUnchanged, children.OutcomeFailed,
	} {
		result.Children = append(result.Children, children.ChildResult{Outcome: outcome})
	}
	client.applied(result)
	var got []string
	for _, change := range client.changes {
		got = append(got, change.verb)
	}
	if want := []string{created, updated}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The next leader parks the object again although nothing has changed.
func TestRecordParked_KeyChangesOnlyWithStatus(t *testing.T) {
	// An object is also parked after a single failure if the error is terminal.
	const note = "reconciling failed and is not retried until the object changes; see the conditions of the object"
	engine, recorded := platformtest.NewEngine(), &recordedEvents{}
	self := newFlowers(t, platformtest.NewServer([]schema.GroupVersionKind{website}))
	withReady(self, "", metav1.Condition{Type: conditionReady, Status: metav1.ConditionFalse, Reason: reasonFailed,
		LastTransitionTime: metav1.Unix(1, 0)})
	key := func() string {
		t.Helper()
		_ = engine.Objects.Add(self)
		RecordParked(engine.Lister, flowers, recorded.record)
		if len(recorded.all) != 1 || recorded.all[0].Reason != events.Parked || recorded.all[0].Key == "" ||
			recorded.all[0].Regarding.GetUID() != self.GetUID() || recorded.all[0].Note != note {
			t.Fatalf("got %+v", recorded.all)
		}
		defer recorded.take()
		return recorded.all[0].Key
	}
	first := key()
	if key() != first {
		t.Error("the key changed although the state did not")
	}
	withReady(self, "", metav1.Condition{Type: conditionReady, Status: metav1.ConditionFalse, Reason: reasonFailed,
		LastTransitionTime: metav1.Unix(2, 0)})
	if key() == first {
		t.Error("the key did not change with a later failure")
	}
	_ = engine.Objects.Delete(self)
	RecordParked(engine.Lister, flowers, recorded.record)
	recorded.expect(t, "a deleted instance")
}
