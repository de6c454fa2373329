package platform

import (
	"cmp"
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// keep is the leader's handler of Blueprints: it writes what follows from what this replica has decided. Of a Blueprint on
// which that has not been done yet nothing follows: the decision calls it.
func (p *Platform) keep(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured) error {
	d, known := p.registry.get(id.Name())
	if !known || d.uid != object.GetUID() || d.generation != object.GetGeneration() {
		return nil
	}
	b, err := blueprint.FromUnstructured(object)
	if err != nil {
		return dynamiccontroller.Terminal(err)
	}
	// If the generation cannot be stored, its type is not changed, and the served generation remains served.
	storeErr := p.storeRevision(ctx, b, d)
	var defineErr error
	if storeErr == nil {
		defineErr = p.define(ctx, b, d)
	}
	stands, err := p.standOf(b, d)
	if err != nil {
		return err
	}
	if defineErr != nil {
		stands.established = condition(blueprint.TypeEstablished, reasonRefusedByServer, cut(defineErr.Error()))
	}
	if storeErr != nil {
		stands.serving = notStored(d, stands.serving, storeErr)
	}
	stands.serving = stillServing(object, stands.serving)
	statusErr := p.setStatus(ctx, id, object, stands, d)
	return cmp.Or(storeErr, defineErr, soonest(p.trimHistory(ctx, b, d), statusErr, stands.again()))
}

// soonest returns the first error that is not a requeue request. Without such an error, it returns the requeue request
// with the shortest delay.
func soonest(errs ...error) (first error) {
	for _, err := range errs {
		wait, again := dynamiccontroller.RequeueDelay(err)
		if err != nil && !again {
			return err
		}
		if before, has := dynamiccontroller.RequeueDelay(first); again && (!has || wait < before) {
			first = err
		}
	}
	return first
}

// stands is how a Blueprint stands.
type stands struct {
	accepted, established, serving metav1.Condition
	// unsettled is how long it may take until that changes without any event, zero if it does not.
	unsettled time.Duration
}

func (s stands) again() error {
	if s.unsettled > 0 {
		return dynamiccontroller.RequeueAfter(s.unsettled)
	}
	return nil
}

// Reasons of a Blueprint's conditions.
const (
	reasonCompiled        = "Compiled"
	reasonEstablished     = "Established"
	reasonNoDefinition    = "NotDefined"
	reasonRefusedByServer = "RefusedByTheServer"
	reasonServing         = "Serving"
	reasonSyncing         = "Syncing"
	reasonSyncingLong     = "SyncingLong"
	reasonRefused         = "NothingAccepted"
	reasonNotStored       = "RevisionNotStored"
	reasonNoRevisions     = "RevisionsUnavailable"
	reasonDeleting        = "Deleting"
)

func condition(kind, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

func (p *Platform) standOf(b *blueprint.Blueprint, d decision) (s stands, err error) {
	s.accepted = metav1.Condition{Type: blueprint.Accepted, Status: metav1.ConditionTrue, Reason: reasonCompiled,
		Message: fmt.Sprintf("an instance becomes %s", objects(len(b.Spec.Resources)))}
	switch {
	case d.revisionsProblem != "":
		s.accepted = condition(blueprint.Accepted, reasonNoRevisions, d.revisionsProblem)
		s.accepted.Status = metav1.ConditionUnknown
	case d.refusal != nil:
		s.accepted = condition(blueprint.Accepted, d.refusal.reason, d.refusal.message)
	}
	crd, err := p.crdOf(blueprint.DefinitionName(b))
	if err != nil {
		return s, err
	}
	s.established = metav1.Condition{Type: blueprint.TypeEstablished, Status: metav1.ConditionTrue, Reason: reasonEstablished,
		Message: "the API server serves " + blueprint.DefinitionName(b)}
	if crd == nil {
		s.established = condition(blueprint.TypeEstablished, reasonNoDefinition, fmt.Sprintf("there is no CustomResourceDefinition %s", blueprint.DefinitionName(b)))
	} else if reason, message := notEstablished(crd); reason != "" {
		s.established = condition(blueprint.TypeEstablished, reason, message)
	}
	s.serving, s.unsettled = p.servingOf(d)
	return s, nil
}

func objects(n int) string {
	if n == 1 {
		return "1 object"
	}
	return fmt.Sprintf("%d objects", n)
}

// servingOf tells whether instances are reconciled, and when to look again.
func (p *Platform) servingOf(d decision) (metav1.Condition, time.Duration) {
	// How often it is looked at again, while the caches fill and while they cannot.
	const quick, slow = 100 * time.Millisecond, 2 * time.Second
	// An API server by default ends a list that takes longer, which is a failure then; one that is streamed it does not.
	const patience = time.Minute
	switch {
	case d.running == nil && d.revisionsProblem != "":
		return condition(blueprint.Serving, reasonNoRevisions, d.revisionsProblem), 0
	case d.running == nil && d.blocked:
		return condition(blueprint.Serving, reasonClaimed, "waiting for another Blueprint to release the type"), 0
	case d.running == nil && d.refusal == nil && d.program != nil:
		return condition(blueprint.Serving, reasonNotStored, "the accepted spec has not been stored yet"), 0
	case d.running == nil && d.refusal != nil:
		return condition(blueprint.Serving, reasonRefused, "no generation has been accepted"), 0
	case d.running == nil:
		return condition(blueprint.Serving, reasonNoDefinition, "waiting for the type"), 0
	case d.running.compiled == nil && d.lacksConsent():
		return condition(blueprint.Serving, reasonRefused, "only deletions are processed: the type no longer allows this Blueprint"), 0
	case d.running.compiled == nil && d.loadRefusal != nil:
		return condition(blueprint.Serving, reasonRefused, cut("only deletions are processed: the stored revision is no longer accepted: "+
			d.loadRefusal.message)), 0
	case d.running.compiled == nil:
		return condition(blueprint.Serving, reasonRefused, "no accepted revision is known; only deletions are processed"), 0
	}
	for _, t := range p.engines.Instances.Status() {
		if t.GVR != d.running.gvr {
			continue
		}
		switch t.State {
		case dynamiccontroller.TypeSynced:
			return p.served(d, t)
		case dynamiccontroller.TypeSyncing, dynamiccontroller.TypeStopped:
			if time.Since(t.Since) > patience {
				return condition(blueprint.Serving, reasonSyncingLong, "reading the instances takes more than a minute"), slow
			}
			return condition(blueprint.Serving, reasonSyncing, "reading the instances"), quick
		default:
			return condition(blueprint.Serving, string(t.State), t.Message), slow
		}
	}
	return condition(blueprint.Serving, reasonSyncing, "about to be served"), quick
}

// notStored adds to the Serving condition that an accepted generation is not served, because its spec cannot be stored.
func notStored(d decision, serving metav1.Condition, err error) metav1.Condition {
	message := cut(fmt.Sprintf("generation %d is accepted but not served: %s", d.generation, err))
	if serving.Status == metav1.ConditionTrue {
		serving.Message += "; " + message
		return serving
	}
	return condition(blueprint.Serving, reasonNotStored, message)
}

// stillServing lets stand what the status says while the caches fill: that a process has just begun is no news. If they
// cannot be filled, or not soon, that is.
func stillServing(object *unstructured.Unstructured, now metav1.Condition) metav1.Condition {
	status, _ := object.Object["status"].(map[string]any)
	said, _ := conditionsOf(status, []metav1.Condition{now})
	if now.Reason != reasonSyncing || len(said) == 0 || said[0].Status != metav1.ConditionTrue || said[0].ObservedGeneration != object.GetGeneration() {
		return now
	}
	return said[0]
}

// served is what is said of a type that has synced.
func (p *Platform) served(d decision, t dynamiccontroller.TypeStatus) (metav1.Condition, time.Duration) {
	const slow = 2 * time.Second
	c := metav1.Condition{Type: blueprint.Serving, Status: metav1.ConditionTrue, Reason: reasonServing,
		Message: fmt.Sprintf("generation %d is served", d.running.generation)}
	for _, secondary := range t.Secondaries {
		switch secondary.State {
		case dynamiccontroller.TypeSynced, dynamiccontroller.TypeSyncing, dynamiccontroller.TypeStopped:
		default:
			c.Message += fmt.Sprintf("; %s are not seen: %s", nameOf(secondary.GVR), secondary.Message)
			return c, slow
		}
	}
	return c, 0
}

// setStatus writes how the Blueprint stands and how many instances it has.
func (p *Platform) setStatus(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured, s stands, d decision) error {
	want := wantedStatus{
		generation: object.GetGeneration(), mergesConditions: true,
		conditions: []metav1.Condition{s.accepted, s.established, s.serving},
	}
	counted, wait := p.count(id.Name(), object, d)
	want.fields = map[string]any{"instances": counted, "served": nil}
	if served := servedField(d); served != nil {
		want.fields["served"] = served
	}
	if err := p.status.set(ctx, id, object, want); err != nil {
		return err
	}
	if wait > 0 && (s.unsettled == 0 || wait < s.unsettled) {
		return dynamiccontroller.RequeueAfter(wait)
	}
	return nil
}
