package instances

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/rollout"
	"github.com/dynamic-controller/engine/test/platformtest"
)

// withReady sets the status of an instance.
func withReady(self *unstructured.Unstructured, revision string, ready metav1.Condition, more ...metav1.Condition) {
	var conditions []any
	for _, c := range append([]metav1.Condition{ready}, more...) {
		c.ObservedGeneration = self.GetGeneration()
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&c)
		if err != nil {
			panic(err)
		}
		conditions = append(conditions, content)
	}
	self.Object["status"] = map[string]any{"revision": revision, "conditions": conditions}
}

func readyCondition(reason string) metav1.Condition {
	c := metav1.Condition{Type: conditionReady, Status: metav1.ConditionFalse, Reason: reason}
	if reason == reasonReady {
		c.Status = metav1.ConditionTrue
	}
	return c
}

// newTestReconcilers returns Reconcilers for the revision "new". Instances of the revision "old" move to it.
func newTestReconcilers(t *testing.T, changed func()) (*Reconcilers, *Reconciler, *platformtest.Server) {
	t.Helper()
	k, server := newTestReconciler(t, chain(1))
	revision := k.Revision
	revision.Name, revision.ReportsRevision = "new", true
	older := revision
	older.Name = "old"
	r, err := newReconcilers(Clients{
		Engine: k.engine, Client: server, Mapper: platformtest.NewMapper(append(revision.Compiled.Kinds(), website)...),
		Identities: k.identities,
	}, revision, Rollout{
		Revision: rollout.Revision{Since: time.Now(), Older: []string{"old"}}, Older: []Revision{older}, Changed: changed,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r, r.older["old"], server
}

func TestReconcilers_SelectTheRevisionOfAnInstance(t *testing.T) {
	r, older, server := newTestReconcilers(t, func() {})
	self := newFlowers(t, server)
	expect := func(name, revision string, want *Reconciler) {
		t.Helper()
		withReady(self, revision, readyCondition(reasonReady))
		if got := r.reconcilerFor(flowers, self); got != want {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	expect("a new instance", "", r.newest)
	expect("an instance that has moved", "new", r.newest)
	expect("an instance before its turn", "old", older)
	expect("an instance whose revision is not loaded", "gone", nil)
	if err := r.reconcile(t.Context(), flowers, self); err != nil || len(server.Took()) > 0 {
		t.Errorf("the instance was reconciled: %v", err)
	}
	engine := r.newest.engine.(*platformtest.Engine)
	if !slices.Contains(engine.Enqueued, BlueprintID(r.newest.Blueprint)) {
		t.Errorf("enqueued: %v, want the Blueprint", engine.Enqueued)
	}
	r.SetPaused(true)
	if older.pausedBy(self) == "" {
		t.Error("instances with the older revision are not paused")
	}
	expect("a paused instance whose revision is not loaded", "gone", r.newest)
	r.SetPaused(false)
	now := metav1.Now()
	self.SetDeletionTimestamp(&now)
	expect("a deleted instance whose revision is not loaded", "gone", r.newest)
	expect("a deleted instance", "old", older)
	self.SetDeletionTimestamp(nil)

	r.Survey([]rollout.Instance{{Key: flowers.NamespacedKey, Revision: "old", Health: rollout.Ready}})
	if !slices.Contains(engine.Enqueued, flowers) {
		t.Errorf("enqueued: %v, want the instance", engine.Enqueued)
	}
	expect("an instance that moves", "old", r.newest)
}

func TestReconcilers_WithoutStatusRevisionMoveAtOnce(t *testing.T) {
	k, server := newTestReconciler(t, chain(1))
	r, err := newReconcilers(Clients{Engine: k.engine, Client: server, Identities: k.identities,
		Mapper: platformtest.NewMapper(k.Compiled.Kinds()...)}, k.Revision, Rollout{})
	if err != nil {
		t.Fatal(err)
	}
	self := newFlowers(t, server)
	withReady(self, "old", readyCondition(reasonReady))
	if r.Gate != nil || r.reconcilerFor(flowers, self) != r.newest {
		t.Error("the instance waits")
	}
	r.Survey(nil)
}

func TestReconcilers_RequestMissingRevisions(t *testing.T) {
	requests := 0
	r, _, _ := newTestReconcilers(t, func() { requests++ })
	expect := func(missing []string, older, wantRequests int) {
		t.Helper()
		if got := r.Missing(); !slices.Equal(got, missing) || len(r.Older()) != older || requests != wantRequests {
			t.Errorf("got missing %q, %d loaded, %d requests", got, len(r.Older()), requests)
		}
	}
	expect(nil, 1, 0)
	before := []rollout.Instance{{Key: "a", Revision: "old"}, {Key: "b", Revision: "older"}, {Key: "c", Revision: "new"}}
	r.Survey(before)
	expect([]string{"older"}, 1, 1)
	r.Survey(before)
	expect([]string{"older"}, 1, 1)
	r.Survey([]rollout.Instance{{Key: "c", Revision: "new"}})
	expect(nil, 0, 2)
}

func TestRegressed(t *testing.T) {
	regressed := metav1.Condition{Type: ConditionRegressed, Status: metav1.ConditionTrue, Reason: "RevisionChanged"}
	for name, test := range map[string]struct {
		revision, before, now string
		since                 time.Duration // time between the start of the rollout and the change of the Ready condition
		was, edited, complete bool
		want                  bool
	}{
		"ready before, fails now":         {revision: "old", before: reasonReady, now: reasonRejected, want: true},
		"ready before, waits now":         {revision: "old", before: reasonReady, now: reasonWaiting, want: true},
		"waited before, fails now":        {revision: "old", before: reasonWaiting, now: reasonInvalid, want: true},
		"paused before, fails now":        {revision: "old", before: reasonPaused, now: reasonInvalid},
		"failed before, fails now":        {revision: "old", before: reasonRejected, now: reasonInvalid},
		"waited before, waits now":        {revision: "old", before: reasonWaiting, now: reasonWaiting},
		"ready now":                       {revision: "old", before: reasonReady, now: reasonReady},
		"ready after the move, fails now": {revision: "new", before: reasonReady, now: reasonRejected},
		"waited before the move, fails now": {
			revision: "new", before: reasonWaiting, now: reasonRejected, want: true,
		},
		"ready after the move, then waited, fails now": {
			revision: "new", before: reasonWaiting, since: time.Hour, now: reasonRejected,
		},
		"the spec changed after the failure": {
			revision: "new", before: reasonRejected, now: reasonRejected, was: true, edited: true,
		},
		"still fails": {
			revision: "new", before: reasonRejected, now: reasonRejected, was: true, want: true,
		},
		"no longer fails": {
			revision: "new", before: reasonRejected, now: reasonWaiting, was: true, want: true,
		},
		"ready again": {
			revision: "new", before: reasonRejected, now: reasonReady, was: true,
		},
		"failed with an earlier revision": {
			revision: "old", before: reasonRejected, now: reasonRejected, was: true,
		},
		"the spec changed":        {revision: "old", before: reasonReady, now: reasonRejected, edited: true},
		"the rollout is complete": {revision: "new", before: reasonReady, now: reasonRejected, complete: true},
	} {
		t.Run(name, func(t *testing.T) {
			r, _, server := newTestReconcilers(t, func() {})
			self := newFlowers(t, server)
			before := readyCondition(test.before)
			before.LastTransitionTime = metav1.NewTime(r.Gate.Since().Add(test.since))
			if withReady(self, test.revision, before); test.was {
				withReady(self, test.revision, before, regressed)
			}
			if test.edited {
				self.SetGeneration(self.GetGeneration() + 1)
			}
			if test.complete {
				r.Survey(nil)
			}
			got := r.newest.regressed(self, readyCondition(test.now))
			if (got != nil) != test.want {
				t.Errorf("got %+v", got)
			}
			now := metav1.Now()
			self.SetDeletionTimestamp(&now)
			if got := r.newest.regressed(self, readyCondition(test.now)); got != nil {
				t.Errorf("during deletion, got %+v", got)
			}
		})
	}
}

// The revision is written with the status, so another process can determine why an instance fails.
func TestReconcilers_RegressionIsReported(t *testing.T) {
	r, _, server := newTestReconcilers(t, func() {})
	self := newFlowers(t, server)
	withReady(self, "old", readyCondition(reasonReady))
	r.Survey([]rollout.Instance{{Key: flowers.NamespacedKey, Revision: "old", Health: rollout.Ready}})
	server.Fails("patch", "r0", apierrors.NewInvalid(schema.GroupKind{}, "r0", nil))
	if err := r.reconcile(t.Context(), flowers, self); err == nil {
		t.Fatal("the child was not rejected")
	}
	c := conditionOf(t, server, ConditionRegressed)
	if c.Status != metav1.ConditionTrue || c.Message != "the instance was ready before revision new was rolled out" {
		t.Errorf("got %+v", c)
	}
	if revision := revisionOf(self); revision != "new" {
		t.Errorf("got the revision %q", revision)
	}
}

// An instance that fails is reconciled again before its new status is in the cache. It must remain Regressed, because
// the rollout would continue otherwise.
func TestRegressed_OutdatedCache(t *testing.T) {
	r, _, server := newTestReconcilers(t, func() {})
	self := newFlowers(t, server)
	withReady(self, "old", readyCondition(reasonReady))
	cached := self.DeepCopy()
	r.Survey([]rollout.Instance{{Key: flowers.NamespacedKey, Revision: "old", Health: rollout.Ready}})
	server.Fails("patch", "r0", apierrors.NewInvalid(schema.GroupKind{}, "r0", nil))
	if err := r.reconcile(t.Context(), flowers, self); err == nil {
		t.Fatal("the child was not rejected")
	}
	if r.newest.regressed(self, readyCondition(reasonRejected)) == nil {
		t.Error("not regressed, according to the current status")
	}
	if r.newest.regressed(cached, readyCondition(reasonRejected)) == nil {
		t.Error("not regressed, according to the status before the move")
	}
}

func TestReconcilers_InstancesContinueAfterPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, _ := newTestReconcilers(t, func() {})
		instances := []rollout.Instance{{Key: flowers.NamespacedKey, Revision: "old", Health: rollout.Ready}}
		r.Survey(instances)
		r.SetPaused(true)
		time.Sleep(time.Hour)
		r.SetPaused(false)
		r.Survey(instances)
		if p, _ := r.Gate.Progress(); len(p.Stuck) > 0 {
			t.Errorf("%+v", p)
		}
	})
}

func TestWatches_OfAllRevisions(t *testing.T) {
	b := chain(1)
	k, _ := newTestReconciler(t, b)
	retaining := chain(1)
	retaining.Spec.Resources[0].DeletionPolicy = blueprint.Retain
	other, _ := newTestReconciler(t, retaining)
	if n := len(watches(k.within, k.Revision, other.Revision, k.Revision)); n != 2 {
		t.Errorf("got %d watches, want one by owner and one by annotation", n)
	}
}
