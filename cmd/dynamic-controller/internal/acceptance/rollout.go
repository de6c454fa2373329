package acceptance

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/rollout"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Reasons for the Progressing condition.
const (
	reasonRollingOut       = "RollingOut"
	reasonRolloutStopped   = "RolloutStopped"
	reasonDeadlineExceeded = "ProgressDeadlineExceeded"
	reasonRolloutComplete  = "RolloutComplete"
	reasonNotReported      = "RevisionNotReported"
)

// maxOlder is the maximum number of older revisions that are loaded for a Blueprint during a rollout. While a single
// rollout is in progress, instances have only one older revision. If a revision is accepted during a rollout, they have
// two.
const maxOlder = 2

// newRollout creates a rollout that moves instances to a revision. It starts without older revisions. They are loaded
// when instances that still use them are found.
func (r *definitionReconciler) newRollout(
	b *blueprint.Blueprint, revision *servedRevision, stored history,
) instances.Rollout {
	plan := instances.Rollout{
		Changed: func() { r.definitions.Enqueue(instances.BlueprintID(b.Name)) },
	}
	newest := stored.get(b.UID, revision.Name)
	if newest == nil {
		return plan
	}
	plan.Revision.Since = newest.accepted
	plan.Revision.Base, plan.Revision.Older = stored.rollout(b.UID)
	for _, other := range stored { // including those of earlier Blueprints with this name
		plan.HasPredecessor = plan.HasPredecessor || other != newest
		if other.templates == newest.templates {
			plan.Revision.Same = append(plan.Revision.Same, other.Name)
		}
	}
	return plan
}

// olderRevisions returns the older revisions to serve, and whether it has loaded one of them. If all of them are loaded
// but there are more important ones, the least important ones are replaced. If a revision that instances still use is
// not returned, problem describes why, and the caller must retry.
func (r *definitionReconciler) olderRevisions(
	ctx context.Context, b *blueprint.Blueprint, own claim, running *servedRevision, stored history,
) (all []instances.Revision, changed bool, problem string) {
	if running.reconcilers.Gate == nil {
		return nil, false, ""
	}
	loaded := map[string]instances.Revision{}
	for _, older := range running.reconcilers.Older() {
		loaded[older.Name] = older
	}
	_, usable := stored.rollout(b.UID)
	for _, name := range running.reconcilers.Gate.Outdated() {
		older, has := loaded[name]
		why := ""
		switch missing := stored.get(b.UID, name); {
		case len(all) == maxOlder:
			why = fmt.Sprintf("no more than %d older revisions can be loaded", maxOlder)
		case has:
			all = append(all, older)
		case missing == nil || !slices.Contains(usable, name): // a status can contain any name
			why = "their revision is not stored for this Blueprint, or all instances had a later one"
		default:
			var compiled *instances.Revision
			var err error
			if compiled, why, err = r.compileOlder(ctx, b, own, running, missing, all); err != nil {
				why = fmt.Sprintf("revision %s cannot be read", name)
				r.log.Info("Cannot read an older revision, will retry", keyBlueprint, b.Name, keyProblem, err.Error())
			}
			if compiled != nil {
				all, changed = append(all, *compiled), true
			}
		}
		problem = cmp.Or(problem, why)
	}
	return all, changed, problem
}

// compileOlder compiles the templates of a stored revision with the type of the running revision, because the type has
// already changed for all instances. It returns nil and a problem if the templates are no longer accepted or if the
// memory budget is too small. kept lists the older revisions that remain loaded.
func (r *definitionReconciler) compileOlder(
	ctx context.Context, b *blueprint.Blueprint, own claim, running *servedRevision, stored *revision,
	kept []instances.Revision,
) (older *instances.Revision, problem string, err error) {
	restored, err := r.store.restore(ctx, b, stored)
	if err != nil {
		return nil, "", err
	}
	restored.Generation = running.generation
	restored.Spec.Type = running.Compiled.OlderType(running.Spec.Type, restored.Spec.Type)
	budget := func(b *blueprint.Blueprint) (*rejection, error) { return r.validator.memory.rejectOlder(b, kept) }
	result, _, err := r.validator.validate(ctx, restored, own, validation{}, budget)
	if err != nil {
		return nil, "", fmt.Errorf("load revision %s: %w", stored.Name, err)
	}
	if result.revision == nil {
		rejected := ptr.Deref(result.rejection, rejection{message: "the type is not known yet"})
		return nil, fmt.Sprintf("revision %s: %s", stored.Name, rejected.message), nil
	}
	older = &result.revision.Revision
	older.Name, older.Followed = stored.Name, running.Followed
	return older, "", nil
}

// olderMemory estimates the memory used by the loaded older revisions of all Blueprints except the named one.
func (r *registry) olderMemory(except string) (total int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, d := range r.decisions {
		if name == except || d.running == nil || d.running.reconcilers == nil {
			continue
		}
		total += memoryOf(d.running.reconcilers.Older())
	}
	return total
}

func memoryOf(revisions []instances.Revision) (total int64) {
	for _, r := range revisions {
		total += r.Spec.Memory()
	}
	return total
}

// gate returns the gate of the rollout, or nil if instances are not updated in steps.
func (d decision) gate() *rollout.Gate {
	if d.running == nil || d.running.reconcilers == nil {
		return nil
	}
	return d.running.reconcilers.Gate
}

// isInUse reports whether any instance might still be reconciled with the named revision.
func (d decision) isInUse(name string) bool {
	gate := d.gate()
	return gate != nil && gate.InUse(name)
}

// lacksOlder reports whether instances are waiting because their revision has not been loaded.
func (d decision) lacksOlder() bool {
	return d.running != nil && d.running.reconcilers != nil && len(d.running.reconcilers.Missing()) > 0
}

// countInterval returns the minimum time between two counts of the instances.
func (d decision) countInterval() time.Duration {
	gate := d.gate()
	if gate == nil || !gate.RollsOut(d.running.Name) {
		return countInterval
	}
	return min(max(stepInterval, countFactor*d.running.reconcilers.CountDuration()), countInterval)
}

// recheck returns a requeue request if the state of the rollout can change without an event, and nil otherwise.
func (d decision) recheck() error {
	gate := d.gate()
	if gate == nil {
		return nil
	}
	if p, _ := gate.Progress(); !p.Recheck.IsZero() {
		return dynamiccontroller.RequeueAfter(max(time.Until(p.Recheck), countInterval))
	}
	return nil
}

// progressing returns the Progressing condition, or nil if nothing is served. As with a Deployment, the condition stays
// True after the rollout is complete.
func progressing(object *unstructured.Unstructured, d decision) *metav1.Condition {
	if d.cleansUpOnly() || d.running.reconcilers == nil {
		return nil
	}
	c := trueCondition(blueprint.Progressing, reasonRolloutComplete, "all instances are updated")
	switch {
	case instances.IsPaused(object):
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, "BlueprintPaused", "the Blueprint is paused"
		return &c
	case d.gate() == nil:
		c.Status, c.Reason = metav1.ConditionUnknown, reasonNotReported
		c.Message = "all instances are updated at once because the schema of the type does not declare status.revision"
		return &c
	case d.refusal != nil && d.rejection == nil:
		c.Status, c.Reason = metav1.ConditionFalse, reasonServerRejected
		c.Message = fmt.Sprintf("generation %d is not rolled out: the API server rejects its CustomResourceDefinition; "+
			"generation %d remains served", d.generation, d.running.generation)
		return &c
	case d.rejection == nil && d.running.generation != d.generation:
		c.Reason, c.Message = reasonRollingOut, fmt.Sprintf("generation %d is not served yet", d.generation)
		return &c
	}
	if p, known := d.gate().Progress(); known && d.lacksOlder() {
		return rolloutCondition(p, d.olderProblem)
	} else if known {
		return rolloutCondition(p, "")
	}
	// A new process keeps the condition until it has read the instances.
	before := instances.ConditionOf(object, blueprint.Progressing)
	if before != nil && before.Reason != reasonRollingOut && before.ObservedGeneration == object.GetGeneration() {
		return before
	}
	c.Reason, c.Message = reasonRollingOut, "reading the instances"
	return &c
}

// rolloutCondition returns the Progressing condition for the state of a rollout. If an older revision cannot be loaded,
// olderProblem describes why.
func rolloutCondition(p rollout.Progress, olderProblem string) *metav1.Condition {
	c := trueCondition(blueprint.Progressing, reasonRollingOut,
		fmt.Sprintf("%d of %d instances are updated", p.Updated, p.Total))
	switch {
	case p.Complete():
		c.Reason, c.Message = reasonRolloutComplete, "all instances are updated"
		if p.Paused > 0 {
			c.Message += ", except those that are paused"
		}
		return &c
	case p.Stopped:
		c.Status, c.Reason = metav1.ConditionFalse, reasonRolloutStopped
	case p.Stalled:
		c.Status, c.Reason = metav1.ConditionFalse, reasonDeadlineExceeded
	}
	c.Message += listed("failing since the update", p.Failing) + listed("not ready since the update", p.Waiting) +
		listed("not updated within a minute", p.Stuck)
	if olderProblem != "" {
		c.Message += "; some instances are not reconciled until they are updated: " + olderProblem
		c.Message = instances.Truncate(c.Message)
	}
	return &c
}

// listed formats the names of the first few instances with the reasons of their Ready conditions, followed by the
// number of remaining instances. It returns "" if there are no instances.
func listed(what string, all []rollout.Instance) string {
	const most = 3
	var names []string
	for _, i := range all[:min(len(all), most)] {
		name := i.Key
		if i.Reason != "" {
			name += " (" + i.Reason + ")"
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return ""
	}
	text := "; " + what + ": " + strings.Join(names, ", ")
	if more := len(all) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
