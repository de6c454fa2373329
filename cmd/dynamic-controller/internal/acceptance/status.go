package acceptance

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

// Reasons in the conditions of Blueprints. The reasons for rejections are in validate.go.
const (
	reasonCompiled       = "Compiled"
	reasonEstablished    = "Established"
	reasonNoDefinition   = "NotDefined"
	reasonServerRejected = "RejectedByServer"
	reasonNotApplied     = "TypeNotApplied"
	reasonServing        = "Serving"
	reasonSyncing        = "Syncing"
	reasonSyncingLong    = "SyncingLong"
	reasonNotAccepted    = "NothingAccepted"
	reasonNotStored      = "RevisionNotStored"
	reasonNoRevisions    = "RevisionsUnavailable"
	reasonUndecided      = "NotValidated"
	reasonDeleting       = "Deleting"
	reasonLeftBehind     = "InstancesLeftBehind"
)

const (
	// While a cache is syncing, the Serving condition is updated at intervals of quickUpdate. If syncing fails or takes
	// longer than longSync, the interval is slowUpdate.
	quickUpdate = 100 * time.Millisecond
	slowUpdate  = 2 * time.Second
	// longSync equals the API server's default timeout for list requests. Streaming lists have no timeout.
	longSync = time.Minute
	// countInterval is the minimum time between two counts of a Blueprint's instances.
	countInterval = time.Second
	// During a rollout, the time between two counts is countFactor times the duration of the last count, but at least
	// stepInterval and at most countInterval.
	stepInterval = 50 * time.Millisecond
	countFactor  = 20
)

// statusReporter writes the status of Blueprints.
type statusReporter struct {
	writer *handlers.Conditions
	engine instances.Engine // serves the instances
	cache  cache
	counts instances.Throttle
}

// conditions are the conditions of a Blueprint.
type conditions struct {
	accepted, established, serving metav1.Condition
	paused                         *metav1.Condition // nil if the Blueprint was never paused
	// updateAfter is the delay after which the conditions must be computed again, because they can change without an
	// event. It is 0 if they cannot.
	updateAfter time.Duration
}

func (c conditions) requeue() error {
	if c.updateAfter > 0 {
		return dynamiccontroller.RequeueAfter(c.updateAfter)
	}
	return nil
}

func falseCondition(conditionType, reason, message string) metav1.Condition {
	return metav1.Condition{Type: conditionType, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

func trueCondition(conditionType, reason, message string) metav1.Condition {
	return metav1.Condition{Type: conditionType, Status: metav1.ConditionTrue, Reason: reason, Message: message}
}

func (s *statusReporter) conditionsFor(b *blueprint.Blueprint, d decision) (c conditions, err error) {
	if c.accepted = d.accepted(); c.accepted.Status == metav1.ConditionTrue {
		c.accepted.Message = "each instance creates up to " + objects(len(b.Spec.Resources), "object")
	}
	name := blueprint.DefinitionName(b)
	crd, err := s.cache.crd(name)
	if err != nil {
		return c, err
	}
	c.established = trueCondition(blueprint.TypeEstablished, reasonEstablished, "the API server serves "+name)
	if crd == nil && d.rejection == nil && d.refusal != nil {
		c.established = falseCondition(blueprint.TypeEstablished, d.refusal.reason, d.refusal.message)
	} else if crd == nil {
		c.established = falseCondition(blueprint.TypeEstablished, reasonNoDefinition,
			fmt.Sprintf("the CustomResourceDefinition %s does not exist", name))
	} else if reason, message := notEstablished(crd); reason != "" {
		c.established = falseCondition(blueprint.TypeEstablished, reason, message)
	}
	if instances.IsPaused(b) {
		c.paused = ptr.To(trueCondition(instances.ConditionPaused, "BlueprintPaused",
			"instances are not reconciled while the Blueprint has the annotation "+instances.PausedAnnotation))
	} else if meta.FindStatusCondition(b.Status.Conditions, instances.ConditionPaused) != nil {
		c.paused = ptr.To(instances.NotPaused())
	}
	c.serving, c.updateAfter = s.serving(d)
	return c, nil
}

// serving returns the Serving condition, and the delay after which the condition must be computed again. The delay is 0
// if the condition cannot change without an event.
func (s *statusReporter) serving(d decision) (c metav1.Condition, updateAfter time.Duration) {
	if d.cleansUpOnly() {
		return notServing(d), 0
	}
	t, err := s.engine.TypeStatusOf(d.running.GVR)
	switch {
	case err != nil:
		return falseCondition(blueprint.Serving, reasonSyncing, "the type is not served yet"), quickUpdate
	case t.State == dynamiccontroller.TypeSynced:
		return synced(d, t)
	case isSyncing(t.State) && time.Since(t.Since) > longSync:
		return falseCondition(blueprint.Serving, reasonSyncingLong,
			"reading the instances has taken more than a minute"), slowUpdate
	case isSyncing(t.State):
		return falseCondition(blueprint.Serving, reasonSyncing, "reading the instances"), quickUpdate
	default:
		return falseCondition(blueprint.Serving, string(t.State), t.Message), slowUpdate
	}
}

// notServing returns the Serving condition of a Blueprint whose instances are not reconciled.
func notServing(d decision) metav1.Condition {
	reason, message := reasonNotAccepted, "no accepted revision is known; only deletions are processed"
	switch {
	case d.running == nil && d.undecided != nil:
		reason, message = d.undecided.reason, d.undecided.message
	case d.running == nil && d.blocked:
		reason, message = reasonClaimed, "waiting for another Blueprint to release the type"
	case d.running == nil && d.rejected() == nil && d.revision != nil:
		reason, message = reasonNotStored, "the accepted spec has not been stored yet"
	case d.running == nil && d.rejected() != nil:
		message = "no generation has been accepted"
	case d.running == nil:
		reason, message = reasonNoDefinition, "waiting for the CustomResourceDefinition to be created"
	case d.lacksConsent():
		message = "only deletions are processed: the type no longer allows this Blueprint"
	case d.loadRejection != nil:
		message = instances.Truncate("only deletions are processed: the stored revision is no longer accepted: " +
			d.loadRejection.message)
	}
	return falseCondition(blueprint.Serving, reason, message)
}

// Parts of the message of a Serving condition that is True. ServingProblems parses them.
const (
	separator     = "; "
	notWatched    = " cannot be watched"
	notServedText = " is accepted but not served: "
)

// ServingProblems returns the problems in a Serving condition that is True. unwatched describes types of children that
// cannot be watched. unserved describes why the newest generation is not served. Both can be empty.
func ServingProblems(serving *metav1.Condition) (unwatched, unserved string) {
	_, problems, _ := strings.Cut(serving.Message, separator)
	generation := fmt.Sprintf("generation %d%s", serving.ObservedGeneration, notServedText)
	if i := strings.LastIndex(problems, generation); i >= 0 {
		problems, unserved = strings.TrimSuffix(problems[:i], separator), problems[i:]
	}
	if strings.Contains(problems, notWatched+": ") {
		unwatched = problems
	}
	return unwatched, unserved
}

// synced returns the Serving condition of a type whose cache has synced.
func synced(d decision, t dynamiccontroller.TypeStatus) (c metav1.Condition, updateAfter time.Duration) {
	c = trueCondition(blueprint.Serving, reasonServing, fmt.Sprintf("generation %d is served", d.running.generation))
	for _, s := range t.Secondaries {
		if s.State != dynamiccontroller.TypeSynced && !isSyncing(s.State) {
			c.Message += fmt.Sprintf("%s%s%s: %s", separator, nameOf(s.GVR), notWatched, s.Message)
			return c, slowUpdate
		}
	}
	return c, 0
}

// notStored returns the Serving condition for an accepted generation that is not served because its spec cannot be
// stored.
func notStored(d decision, serving metav1.Condition, err error) metav1.Condition {
	message := instances.Truncate(fmt.Sprintf("generation %d%s%s", d.generation, notServedText, err))
	if serving.Status == metav1.ConditionTrue {
		serving.Message += separator + message
		return serving
	}
	return falseCondition(blueprint.Serving, reasonNotStored, message)
}

// keepWhileSyncing returns the current Serving condition if it is True and the caches of a new process are still
// syncing, and serving otherwise.
func keepWhileSyncing(object *unstructured.Unstructured, serving metav1.Condition) metav1.Condition {
	before := instances.ConditionOf(object, blueprint.Serving)
	if serving.Reason != reasonSyncing || before == nil || before.Status != metav1.ConditionTrue ||
		before.ObservedGeneration != object.GetGeneration() {
		return serving
	}
	return *before
}

// write writes the conditions, the served revision and the number of instances. It can return a requeue request.
func (s *statusReporter) write(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured, c conditions,
	d decision,
) error {
	counts, wait := s.count(id.Name(), object, d)
	fields := map[string]any{"observedGeneration": object.GetGeneration(), "instances": counts, "served": nil}
	if !d.cleansUpOnly() {
		fields["served"] = map[string]any{"generation": d.running.generation, "revision": d.running.Name}
	}
	all := []metav1.Condition{c.accepted, c.established, c.serving}
	if c.paused != nil {
		all = append(all, *c.paused)
	}
	if progressing := progressing(object, d); progressing != nil {
		all = append(all, *progressing)
	}
	_, err := s.writer.SetStatus(ctx, id, object, all, fields)
	if err == nil && wait > 0 && (c.updateAfter == 0 || wait < c.updateAfter) {
		return dynamiccontroller.RequeueAfter(wait)
	}
	return earliest(err, d.recheck())
}

// count counts the instances, which also advances the rollout. While the cache is syncing, or if the last count was
// recent, it returns the numbers from the current status. If wait is positive, the caller must count again after that
// time.
func (s *statusReporter) count(
	name string, object *unstructured.Unstructured, d decision,
) (counts map[string]any, wait time.Duration) {
	counts, _, _ = unstructured.NestedMap(object.Object, "status", "instances")
	if counts == nil {
		counts = map[string]any{"total": int64(0), "ready": int64(0), "failing": int64(0)}
	}
	if d.running == nil {
		return counts, 0
	}
	if wait := s.counts.Wait(name, d.countInterval()); wait > 0 {
		return counts, wait
	}
	if now, ok := d.running.reconcilers.Count(); ok {
		counts = map[string]any{"total": now.Total, "ready": now.Ready, "failing": now.Failing}
	}
	return counts, 0
}
