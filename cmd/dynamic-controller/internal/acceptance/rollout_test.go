package acceptance

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/rollout"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/test/platformtest"
)

// using returns a generation of the Blueprint whose type has these fields and whose template uses the given field.
func using(generation int64, field string, fields ...string) *blueprint.Blueprint {
	b := withFields(generation, fields...)
	b.Spec.Resources[0].Template["data"] = "${self.spec." + field + "}"
	return b
}

// running returns the served revision.
func (c *cluster) running() *servedRevision {
	c.t.Helper()
	d, _ := c.registry.get("websites")
	if d.cleansUpOnly() {
		c.t.Fatalf("got decision %+v", d)
	}
	return d.running
}

// survey reports instances with these revisions to the gate, and reconciles.
func (c *cluster) survey(revisions ...string) {
	c.t.Helper()
	var all []rollout.Instance
	for _, revision := range revisions {
		all = append(all, rollout.Instance{Key: "shop/" + revision, Revision: revision, Health: rollout.Ready})
	}
	c.running().reconcilers.Survey(all)
	c.reconcile()
}

// history returns the cached revisions.
func (c *cluster) history() history {
	c.t.Helper()
	h, err := c.definitions.cache.history("websites")
	if err != nil {
		c.t.Fatal(err)
	}
	return h
}

// olderNames returns the names of the loaded older revisions.
func (c *cluster) olderNames() (names []string) {
	for _, r := range c.running().reconcilers.Older() {
		names = append(names, r.Name)
	}
	return names
}

func TestRollout_LoadsOlderRevisionsOfInstances(t *testing.T) {
	c := newCluster(t, using(1, "one", "one", "two"))
	c.reconcile()
	first := c.running().Name
	c.update(using(2, "two", "one", "two"))
	c.reconcile()
	second := c.running()
	if second.Name == first || second.generation != 2 || c.olderNames() != nil {
		t.Fatalf("got served revision %+v and older revisions %q", second, c.olderNames())
	}
	c.survey(first, second.Name)
	if got := c.olderNames(); !slices.Equal(got, []string{first}) {
		t.Fatalf("got older revisions %q", got)
	}
	if !c.running().reconcilers.Gate.IsOpen("shop/"+first, first, time.Time{}) {
		t.Error("an admitted instance is no longer allowed to move")
	}
	older := c.running().reconcilers.Older()[0]
	if older.Compiled == nil || older.Spec.Resources[0].Template["data"] != "${self.spec.one}" ||
		len(older.Followed) == 0 {
		t.Errorf("got older revision %+v", older)
	}
	if now := c.running(); now.started != second.started || now.Name != second.Name {
		t.Errorf("got running revision %+v", now)
	}
	c.survey(second.Name)
	if got := c.olderNames(); got != nil {
		t.Errorf("got older revisions %q after the rollout", got)
	}
}

// The statuses of instances contain four older revisions. The base and the newest older revision are loaded, however
// many instances have them, and displace others. Revisions from before the base are not loaded.
func TestRollout_ImportantOlderRevisionsAreLoaded(t *testing.T) {
	fields := []string{"one", "two", "three", "four", "five"}
	c := newCluster(t, using(1, "one", fields...))
	c.reconcile()
	names := []string{c.running().Name}
	for i, field := range fields[1:] {
		if i < 2 {
			c.survey(names[i]) // all instances have moved
			c.reconcile()
		}
		c.update(using(int64(i+2), field, fields...))
		c.reconcile()
		names = append(names, c.running().Name)
	}
	surveyed := func(revisions ...string) (older []string) {
		t.Helper()
		c.survey(revisions...)
		return c.olderNames()
	}
	sorted := func(names ...string) []string { slices.Sort(names); return names }
	if base, older := c.history().rollout("u"); base != names[1] ||
		!slices.Equal(older, []string{names[1], names[3], names[2]}) {
		t.Fatalf("got base %s and older revisions %q of %q", base, older, names)
	}
	if got := surveyed(names[2]); !slices.Equal(got, sorted(names[2])) {
		t.Errorf("got older revisions %q", got)
	}
	if got := surveyed(names[2], names[2], names[2], names[0]); !slices.Equal(got, sorted(names[1], names[2])) {
		t.Errorf("a revision from before the base does not stand for the base: %q", got)
	}
	if got := surveyed(names[2], names[2], names[2], names[3], names[1]); !slices.Equal(got, sorted(names[1], names[3])) {
		t.Errorf("got older revisions %q", got)
	}
	surveyed(names[2], names[2], names[2], names[3], names[1])
	if got := c.condition(blueprint.Progressing).Message; !strings.Contains(got, "no more than 2 older revisions") {
		t.Errorf("got message %q", got)
	}
}

// The budget has room for the newest spec and for a larger older one.
func TestRollout_LoadsALargerOlderRevision(t *testing.T) {
	large := using(1, "one", "one", "two")
	large.Spec.Resources[0].Template["data"] = "${self.spec.one}" + strings.Repeat(" ", 10_000)
	c := newCluster(t, large)
	c.definitions.validator.memory.limit = 2 * large.Spec.Memory()
	c.reconcile()
	first := c.running().Name
	small := using(2, "two", "one", "two")
	c.update(small)
	c.reconcile()
	if small.Spec.Memory() >= large.Spec.Memory() || c.running().Name == first {
		t.Fatalf("got estimates of %d and %d bytes", large.Spec.Memory(), small.Spec.Memory())
	}
	c.survey(first)
	if got := c.olderNames(); !slices.Equal(got, []string{first}) {
		t.Errorf("got older revisions %q", got)
	}
}

func TestRollout_ReportsOlderRevisionsThatCannotBeLoaded(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(c *cluster, first string) *blueprint.Blueprint
		problem string
	}{
		"templates do not match the type": {func(c *cluster, _ string) *blueprint.Blueprint {
			b := using(2, "two", "two")
			b.Annotations = map[string]string{incompatibleAnnotation: "2"}
			return b
		}, `.template.data: ${self.spec.one}: unknown field "one"`},
		"revision deleted": {func(c *cluster, first string) *blueprint.Blueprint {
			if err := c.server.Tracker().Delete(controllerRevisions, "system", first); err != nil {
				c.t.Fatal(err)
			}
			return using(2, "two", "one", "two")
		}, "their revision is not stored for this Blueprint"},
		"memory budget too small": {func(c *cluster, _ string) *blueprint.Blueprint {
			b := using(2, "two", "one", "two")
			c.definitions.validator.memory.limit = b.Spec.Memory()
			return b
		}, "delete another Blueprint, or raise --max-blueprint-memory"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, using(1, "one", "one", "two"))
			c.reconcile()
			first := c.running().Name
			c.update(test.change(c, first))
			c.reconcile()
			c.survey(first)
			if now := c.running(); now.generation != 2 || c.olderNames() != nil ||
				!slices.Equal(now.reconcilers.Missing(), []string{first}) {
				t.Errorf("got served revision %+v and older revisions %q", now, c.olderNames())
			}
			waiting := "0 of 1 instances are updated; some instances are not reconciled until they are updated: "
			if got := c.condition(blueprint.Progressing); !strings.HasPrefix(got.Message, waiting) ||
				!strings.Contains(got.Message, test.problem) {
				t.Errorf("got condition %+v", got)
			}
			c.engine.Enqueue(instances.BlueprintID("websites"))
			requeues, err := c.engine.Run(t.Context())
			if err != nil || !slices.Contains(requeues, SchemaRetryPeriod) {
				t.Errorf("got requeues %v (%v), want a retry", requeues, err)
			}
		})
	}
}

// While an older revision cannot be read, the instances can be paused and newer generations are validated.
func TestRollout_ContinuesWhileAnOlderRevisionCannotBeRead(t *testing.T) {
	c := newCluster(t, using(1, "one", "one", "two"))
	c.reconcile()
	first := c.running().Name
	c.update(using(2, "two", "one", "two"))
	c.reconcile()
	c.server.Fails("get", first, apierrors.NewInternalError(errors.New("storage")))
	c.survey(first)
	paused := using(3, "two", "two")
	paused.Annotations = map[string]string{instances.PausedAnnotation: "true"}
	c.update(paused)
	c.reconcile()
	if c.running().reconcilers.SetPaused(true) {
		t.Error("the instances were not paused")
	}
	if got := c.condition(blueprint.Accepted); got == nil || got.Reason != reasonIncompatible {
		t.Errorf("got condition %+v", got)
	}
	if d, _ := c.registry.get("websites"); d.olderProblem != "revision "+first+" cannot be read" || !d.lacksOlder() {
		t.Errorf("got problem %q", d.olderProblem)
	}
}

// A change to the schema alone does not delay any instance.
func TestRollout_SchemaChangeDoesNotDelayInstances(t *testing.T) {
	c := newCluster(t, using(1, "one", "one"))
	c.reconcile()
	first := c.running().Name
	c.update(using(2, "one", "one", "two"))
	c.reconcile()
	c.survey(first)
	progress, known := c.running().reconcilers.Gate.Progress()
	if c.running().Name == first || !known || !progress.Complete() || c.olderNames() != nil {
		t.Errorf("got progress %+v and older revisions %q", progress, c.olderNames())
	}
}

// The Blueprint was deleted with the deletion policy Retain and created again.
func TestRollout_TakesOverInstancesOfAnEarlierBlueprint(t *testing.T) {
	earlier := using(1, "one", "one")
	earlier.UID = "earlier"
	name, err := revisionName(earlier)
	if err != nil {
		t.Fatal(err)
	}
	object, err := newRevision("system", name, earlier, 1)
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, using(1, "one", "one"))
	if err := c.server.Tracker().Add(object); err != nil {
		t.Fatal(err)
	}
	c.reconcile()
	c.survey(name)
	if progress, known := c.running().reconcilers.Gate.Progress(); c.running().Name == name || !known ||
		!progress.Complete() || len(c.running().reconcilers.Missing()) > 0 {
		t.Errorf("%+v, missing: %q", progress, c.running().reconcilers.Missing())
	}
}

// Instances that were created between two rollouts of a revision do not count as updated.
func TestRollout_RevisionAcceptedAgain(t *testing.T) {
	c := newCluster(t, using(1, "one", "one", "two"))
	c.reconcile()
	first := c.running().Name
	c.update(using(2, "two", "one", "two"))
	c.reconcile()
	began := time.Now().Truncate(time.Second)
	c.update(using(3, "one", "one", "two"))
	c.reconcile()
	again := c.history().get("u", first)
	if c.running().Name != first || again.accepted.Before(began) || again.number != 3 {
		t.Errorf("got revision %+v", again)
	}
}

func TestRollout_RevisionInUseIsNotDeleted(t *testing.T) {
	limited := func(b *blueprint.Blueprint) *blueprint.Blueprint {
		b.Spec.RevisionHistoryLimit = ptr.To(int32(0))
		return b
	}
	c := newCluster(t, limited(using(1, "one", "one", "two")))
	c.reconcile()
	first := c.running().Name
	c.survey(first)
	c.update(limited(using(2, "two", "one", "two")))
	c.reconcile()
	c.survey(first)
	stored := func() bool {
		_, err := c.server.Tracker().Get(controllerRevisions, "system", first)
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return err == nil
	}
	if !stored() {
		t.Error("the revision was deleted while an instance was using it")
	}
	c.survey(c.running().Name)
	if stored() {
		t.Error("the revision is still stored")
	}
}

func TestProgressing_FollowsTheRollout(t *testing.T) {
	c := newCluster(t, using(1, "one", "one", "two"))
	c.reconcile()
	first := c.running().Name
	expect := func(reason, message string) {
		t.Helper()
		if got := c.condition(blueprint.Progressing); got == nil || got.Status != metav1.ConditionTrue ||
			got.Reason != reason || got.Message != message {
			t.Errorf("got condition %+v", got)
		}
	}
	expect(reasonRollingOut, "reading the instances")
	c.survey(first)
	expect(reasonRolloutComplete, "all instances are updated")
	c.forgetDecisions() // the condition is kept until the new process has read the instances
	if err := c.Serve(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.reconcile()
	expect(reasonRolloutComplete, "all instances are updated")
	c.update(using(2, "two", "one", "two"))
	c.reconcile()
	expect(reasonRollingOut, "reading the instances")
	c.survey(first) // loads the older revision
	c.survey(first)
	expect(reasonRollingOut, "0 of 1 instances are updated")
}

func TestRolloutCondition(t *testing.T) {
	failing := []rollout.Instance{
		{Key: "shop/a", Reason: "Rejected"}, {Key: "shop/b", Reason: "Invalid"}, {Key: "shop/c", Reason: "Rejected"},
		{Key: "shop/d", Reason: "Rejected"},
	}
	waiting := []rollout.Instance{{Key: "shop/c", Reason: "Waiting"}}
	for name, test := range map[string]struct {
		progress        rollout.Progress
		status          metav1.ConditionStatus
		reason, message string
	}{
		"complete": {rollout.Progress{Total: 3, Updated: 3, Failing: failing}, metav1.ConditionTrue, reasonRolloutComplete,
			"all instances are updated"},
		"complete, with paused instances": {rollout.Progress{Total: 3, Updated: 3, Paused: 1}, metav1.ConditionTrue,
			reasonRolloutComplete, "all instances are updated, except those that are paused"},
		"in progress": {rollout.Progress{Total: 100, Updated: 12}, metav1.ConditionTrue, reasonRollingOut,
			"12 of 100 instances are updated"},
		"waiting": {rollout.Progress{Total: 100, Updated: 12, Waiting: waiting}, metav1.ConditionTrue, reasonRollingOut,
			"12 of 100 instances are updated; not ready since the update: shop/c (Waiting)"},
		"waiting for a long time": {rollout.Progress{Total: 100, Updated: 12, Stalled: true, Waiting: waiting},
			metav1.ConditionFalse, reasonDeadlineExceeded,
			"12 of 100 instances are updated; not ready since the update: shop/c (Waiting)"},
		"stopped": {rollout.Progress{Total: 100, Updated: 12, Stopped: true, Failing: failing, Waiting: waiting},
			metav1.ConditionFalse, reasonRolloutStopped, "12 of 100 instances are updated; failing since the update: " +
				"shop/a (Rejected), shop/b (Invalid), shop/c (Rejected) and 1 more; not ready since the update: shop/c (Waiting)"},
		"stuck": {rollout.Progress{Total: 100, Updated: 12, Stuck: []rollout.Instance{{Key: "shop/d"}}}, metav1.ConditionTrue,
			reasonRollingOut, "12 of 100 instances are updated; not updated within a minute: shop/d"},
	} {
		got := rolloutCondition(test.progress, "")
		if got.Status != test.status || got.Reason != test.reason || got.Message != test.message {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

// The deadline causes no event.
func TestProgressing_IsUpdatedAtTheDeadline(t *testing.T) {
	c := newCluster(t, using(1, "one", "one"))
	c.reconcile()
	c.running().reconcilers.Survey([]rollout.Instance{
		{Key: "shop/a", Revision: c.running().Name, Health: rollout.Waiting, Regressed: true, Changed: time.Now()},
		{Key: "shop/b", Revision: "old", Health: rollout.Ready},
	})
	c.blueprints.status.counts.Forget("websites")
	c.instances.Statuses = []dynamiccontroller.TypeStatus{
		{GVR: websites, WatchStatus: dynamiccontroller.WatchStatus{State: dynamiccontroller.TypeSynced}},
	}
	c.instances.Enqueue(instances.BlueprintID("websites"))
	requeues, err := c.instances.Run(t.Context())
	if err != nil || len(requeues) != 1 || requeues[0] > 10*time.Minute || requeues[0] < 9*time.Minute {
		t.Errorf("requeued after %s: %v", requeues, err)
	}
}

func TestProgressing_ReportsPausesAndUnservedGenerations(t *testing.T) {
	object := &unstructured.Unstructured{}
	if got := progressing(object, decision{running: cleaningUp}); got != nil {
		t.Errorf("only deletions are processed: got %+v", got)
	}
	c := newCluster(t, using(1, "one", "one"))
	c.reconcile()
	d, _ := c.registry.get("websites")
	object.SetAnnotations(map[string]string{instances.PausedAnnotation: "true"})
	if got := progressing(object, d); got.Status != metav1.ConditionUnknown || got.Reason != "BlueprintPaused" {
		t.Errorf("paused: got %+v", got)
	}
	object.SetAnnotations(nil)
	d.running.reconcilers.Survey(nil)
	accepted := d
	accepted.generation = 2
	if got := progressing(object, accepted); got.Reason != reasonRollingOut ||
		got.Message != "generation 2 is not served yet" {
		t.Errorf("newest generation not served yet: got %+v", got)
	}
	accepted.rejection = &rejection{}
	if got := progressing(object, accepted); got.Reason != reasonRolloutComplete {
		t.Errorf("newest generation rejected: got %+v", got)
	}
	running := *d.running
	running.ReportsRevision = false
	var err error
	running.reconcilers, err = instances.Start(t.Context(), instances.Clients{
		Engine: platformtest.NewEngine(), Client: c.server, Mapper: c.mapper,
	}, running.Revision, instances.Rollout{}, false)
	if err != nil {
		t.Fatal(err)
	}
	d.running = &running
	if got := progressing(object, d); got.Status != metav1.ConditionUnknown || got.Reason != reasonNotReported {
		t.Errorf("without status.revision: got %+v", got)
	}
	if d.countInterval() != countInterval {
		t.Errorf("got count interval %s", d.countInterval())
	}
}

// A new leader continues where the earlier one has stopped. The statuses of instances do not affect how many instances
// it believes to have moved.
func TestRollout_AdmittedInstancesAreRecorded(t *testing.T) {
	c := newCluster(t, using(1, "one", "one", "two"))
	c.reconcile()
	first := c.running().Name
	c.update(using(2, "two", "one", "two"))
	c.reconcile()
	second := c.running().Name
	expect := func(admitted int) {
		t.Helper()
		if got := c.history().get("u", second).admitted; got != admitted {
			t.Errorf("got a record of %d admitted instances, want %d", got, admitted)
		}
	}
	expect(0)
	c.survey(first)
	c.reconcile()
	expect(1)
	forge := func(n, olds int) (admitted int) {
		t.Helper()
		var all []rollout.Instance
		for i := range n + olds {
			state := rollout.Instance{Key: fmt.Sprintf("shop/%d", i), Revision: second, Health: rollout.Ready}
			if i >= n {
				state.Revision = first
			}
			all = append(all, state)
		}
		c.forgetDecisions()
		if err := c.Serve(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.reconcile()
		gate := c.running().reconcilers.Gate
		before, _ := gate.Admitted()
		c.running().reconcilers.Survey(all)
		after, _ := gate.Admitted()
		return after - before
	}
	if got := forge(30, 30); got != 1 {
		t.Errorf("a new leader admitted %d instances after 1 and 30 forged ones", got)
	}
	c.reconcile()
	expect(2)
	c.survey(second)
	c.reconcile()
	expect(rollout.Everyone)
	if got := forge(30, 40); got != 30 {
		t.Errorf("after the rollout, a new leader admitted %d instances at once, want 30", got)
	}
}

// The number of instances that the platform has allowed to move to a revision determines its importance.
func TestHistory_OlderRevisionsOfARollout(t *testing.T) {
	revisions := history{
		{blueprintUID: "u", number: 1, admitted: 500},
		{blueprintUID: "u", number: 2, rolledOut: true, admitted: rollout.Everyone},
		{blueprintUID: "u", number: 3, admitted: 400},
		{blueprintUID: "other", number: 4, admitted: 900},
		{blueprintUID: "u", number: 5},
		{blueprintUID: "u", number: 6, admitted: 1},
		{blueprintUID: "u", number: 7},
		{blueprintUID: "u", number: 8, admitted: 20},
	}
	for _, r := range revisions {
		r.Name = strconv.FormatInt(r.number, 10)
	}
	base, older := revisions.rollout("u")
	if want := []string{"2", "3", "6", "7", "5"}; base != "2" || !slices.Equal(older, want) {
		t.Errorf("got base %s and older revisions %q, want %q", base, older, want)
	}
}

func TestReadRevision_AdmittedInstances(t *testing.T) {
	for annotation, want := range map[string]int{"3/16": 16, "2/16": 0, "3/-1": 0, "3/x": 0, "16": 0, "": 0} {
		object, err := newRevision("system", "x", using(1, "one", "one"), 3)
		if err != nil {
			t.Fatal(err)
		}
		object.SetAnnotations(map[string]string{admittedAnnotation: annotation})
		read, err := readRevision(object)
		if err != nil {
			t.Fatal(err)
		}
		if got := read.(*revision).admitted; got != want {
			t.Errorf("%q: got %d", annotation, got)
		}
	}
}
