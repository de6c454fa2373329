package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/acceptance"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/events"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

const (
	// maxNested is the number of levels of nested instances whose causes are reported.
	maxNested = 5
	// maxShown is the maximum number of causes, notes and table rows in a short text.
	maxShown = 10
)

// Finding is something that keeps an object from being healthy, or that is worth knowing.
type Finding struct {
	// Object is the object with the problem. It can be a child of the explained object, or its Blueprint.
	Object string `json:"object"`
	// Reason is the reason of a condition, or one of the constants below.
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Action is what to do.
	Action string `json:"action"`
}

// Reasons of findings that are not reasons of conditions.
const (
	reasonNotReconciled    = "NotReconciled"
	reasonBlueprintMissing = "BlueprintNotFound"
	reasonUnread           = "NotReadable"
	reasonBlocked          = "BlockedByFinalizer"
	reasonParked           = string(events.Parked)
	reasonNotReady         = "ChildNotReady"
	reasonDeleting         = "Deleting"
	reasonNotServed        = "RevisionNotStored" // also a reason of a condition
	reasonNotWatched       = "ChildrenNotWatched"
	reasonInstances        = "InstancesNotReady"
	reasonMore             = "More"
)

// Report explains the state of an object.
type Report struct {
	Object  string `json:"object"`
	State   State  `json:"state"`
	Message string `json:"message,omitempty"`
	Healthy bool   `json:"healthy"`
	// Causes lists the reasons why the object is not healthy, most probable first.
	Causes []Finding `json:"causes,omitempty"`
	// Notes are findings that do not affect the health of the object.
	Notes      []Finding          `json:"notes,omitempty"`
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Children are the children of an instance, by stage. Those of a Blueprint are its instances.
	Children []*Node `json:"children,omitempty"`
	Events   []Event `json:"events,omitempty"`
	// Unread lists the objects that could not be read, and why.
	Unread []string `json:"unread,omitempty"`
}

// Explain returns a report about a Blueprint or an instance.
func Explain(o *Object, now time.Time) *Report {
	state, message := o.State()
	r := &Report{Object: o.Name(), State: state, Message: message, Conditions: conditionsOf(o)}
	if o.IsBlueprint() {
		r.Causes, r.Notes = blueprintCauses(o), instanceNotes(o)
	} else {
		r.Causes, r.Notes = instanceCauses(o, maxNested)
	}
	r.Causes, r.Notes = distinct(r.Causes), distinct(r.Notes)
	r.Healthy = len(r.Causes) == 0
	r.Children = Tree(o, now).Children // their states take readyWhen into account
	r.Events = eventsOf(o, now)
	o.walk(func(each *Object) {
		for _, unread := range each.Unread {
			if !slices.Contains(r.Unread, unread) { // for example the events of several children
				r.Unread = append(r.Unread, unread)
			}
		}
	})
	return r
}

// distinct removes duplicates: several nested instances can have the same Blueprint.
func distinct(all []Finding) (found []Finding) {
	for _, f := range all {
		if !slices.Contains(found, f) {
			found = append(found, f)
		}
	}
	return found
}

// walk calls f for the object and for all of its descendants.
func (o *Object) walk(f func(*Object)) {
	f(o)
	for _, child := range o.Children {
		child.walk(f)
	}
}

// instanceCauses returns why an instance is not healthy. Causes of children are included for the given number of
// levels.
func instanceCauses(o *Object, levels int) (causes, notes []Finding) {
	if by := o.pausedBy(); by != "" {
		causes = append(causes, pause(o, by))
	}
	ofBlueprint, isServed := ownerFindings(o)
	if isServed {
		notes = append(notes, ofBlueprint...)
	} else {
		causes = append(causes, ofBlueprint...)
	}
	own := ownFindings(o)
	nested, waiting := childFindings(o, levels)
	state, _ := o.State()
	switch {
	case state == Ready: // readyWhen can ignore problems with children
		notes = append(append(notes, nested...), waiting...)
	case state == Failing || o.GetDeletionTimestamp() != nil && len(nested) == 0:
		causes = append(append(append(causes, own...), nested...), waiting...)
	default: // the instance waits for its children
		causes = append(append(append(causes, nested...), own...), waiting...)
	}
	if c := instances.ConditionOf(o.Unstructured, instances.ConditionRegressed); c != nil &&
		c.Status == metav1.ConditionTrue {
		notes = append(notes, fromCondition(o, c))
	}
	return causes, notes
}

// ownerFindings returns the problems with an instance's Blueprint, and whether the Blueprint is served nevertheless.
func ownerFindings(o *Object) (found []Finding, isServed bool) {
	switch owner := o.Owner; {
	case owner.Blueprint != nil:
		b := &Object{Unstructured: owner.Blueprint, Resource: blueprint.GroupVersionResource.GroupResource()}
		serving := instances.ConditionOf(owner.Blueprint, blueprint.Serving)
		if !instances.IsPaused(b) { // a pause is reported by instanceCauses
			found = blueprintCauses(b)
		}
		return found, serving != nil && serving.Status == metav1.ConditionTrue
	case owner.Unread != "":
		return []Finding{{
			Object: o.Name(), Reason: reasonUnread, Message: "its Blueprint cannot be read: " + owner.Unread,
			Action: "to see problems with the Blueprint, ask for permission to get customresourcedefinitions and blueprints",
		}}, true
	default:
		return []Finding{{
			Object: o.Name(), Reason: reasonBlueprintMissing,
			Message: "its Blueprint does not exist, so nothing reconciles it: " + owner.Name,
			Action:  "apply the Blueprint again, under the same name",
		}}, false
	}
}

// ownFindings returns the problems that the instance itself reports.
func ownFindings(o *Object) (found []Finding) {
	ready, _ := instances.ReadyOf(o.Unstructured)
	blocked := blockedFinding(o)
	switch {
	case o.pausedBy() != "" && ready != nil && ready.Reason == string(Paused):
	case o.pausedBy() != "" && ready == nil:
	case o.GetDeletionTimestamp() != nil && blocked != nil:
		found = append(found, *blocked)
	case o.GetDeletionTimestamp() != nil && (ready == nil || ready.Status == metav1.ConditionTrue):
		found = append(found, Finding{
			Object: o.Name(), Reason: reasonDeleting, Message: "it is being deleted",
			Action: "wait a few seconds, and try again",
		})
	case ready == nil:
		found = append(found, notReconciledFinding(o, notReconciled))
	case ready.ObservedGeneration != o.GetGeneration():
		found = append(found, notReconciledFinding(o, notObserved))
	case ready.Status != metav1.ConditionTrue:
		found = append(found, fromCondition(o, ready))
	}
	if parked := parkedFinding(o, ready); parked != nil {
		found = append(found, *parked)
	}
	return found
}

// childFindings returns the problems with children that are not ready. It separates problems that someone must fix from
// those that can resolve themselves.
func childFindings(o *Object, levels int) (failing, waiting []Finding) {
	if levels == 0 {
		return nil, nil
	}
	for _, child := range o.sorted() {
		if blocked := blockedFinding(child); blocked != nil {
			failing = append(failing, *blocked)
			continue
		}
		state, message := child.State()
		if own, _ := o.State(); own != Ready { // problems that readyWhen ignores are notes
			state, message = o.childState(child)
		}
		switch {
		case state == Ready || state == Deleting || state == Unknown: // the condition names what the instance waits for
		case child.Owner != nil:
			causes, _ := instanceCauses(child, levels-1)
			failing = append(failing, causes...)
		case state == Failing:
			failing = append(failing, childFinding(child, message))
		default:
			waiting = append(waiting, childFinding(child, message))
		}
	}
	return failing, waiting
}

func childFinding(child *Object, message string) Finding {
	id, _ := instances.ResourceOf(child)
	return Finding{
		Object: child.Name(), Reason: reasonNotReady, Message: id + ": " + message,
		Action: "look at the object: kubectl describe " + child.target(),
	}
}

// blueprintCauses returns why a Blueprint is not healthy.
func blueprintCauses(o *Object) (causes []Finding) {
	if instances.IsPaused(o) {
		causes = append(causes, pause(o, "Blueprint"))
	}
	if blocked := blockedFinding(o); blocked != nil {
		causes = append(causes, *blocked)
	}
	conditions := map[string]*metav1.Condition{}
	for _, kind := range []string{blueprint.Accepted, blueprint.TypeEstablished, blueprint.Serving} {
		c := instances.ConditionOf(o.Unstructured, kind)
		switch {
		case c == nil:
			return append(causes, notReconciledFinding(o, notReconciled))
		case c.ObservedGeneration != o.GetGeneration():
			return append(causes, notReconciledFinding(o, notObserved))
		}
		conditions[kind] = c
	}
	accepted, serving := conditions[blueprint.Accepted], conditions[blueprint.Serving]
	last := serving
	if o.GetDeletionTimestamp() != nil && serving.Status != metav1.ConditionTrue {
		return append(causes, fromCondition(o, serving))
	}
	if accepted.Status != metav1.ConditionTrue {
		causes, last = append(causes, fromCondition(o, accepted)), accepted
	} else {
		// The type and the instances of a rejected Blueprint have no problem of their own.
		for _, kind := range []string{blueprint.TypeEstablished, blueprint.Serving} {
			if c := conditions[kind]; c.Status != metav1.ConditionTrue {
				causes = append(causes, fromCondition(o, c))
			}
		}
	}
	causes = append(causes, o.servingProblems()...)
	if c := instances.ConditionOf(o.Unstructured, blueprint.Progressing); c != nil && c.Status == metav1.ConditionFalse &&
		c.Reason != accepted.Reason { // if the type is refused, both conditions report it
		causes = append(causes, fromCondition(o, c))
	}
	if parked := parkedFinding(o, last); parked != nil && len(causes) > 0 {
		causes = append(causes, *parked)
	}
	return causes
}

// servingProblems returns the problems with a Blueprint whose Serving condition is True.
func (o *Object) servingProblems() (found []Finding) {
	accepted := instances.ConditionOf(o.Unstructured, blueprint.Accepted)
	serving := instances.ConditionOf(o.Unstructured, blueprint.Serving)
	if serving == nil || serving.Status != metav1.ConditionTrue {
		return nil
	}
	unwatched, unserved := acceptance.ServingProblems(serving)
	served, has, _ := unstructured.NestedInt64(o.Object, "status", "served", "generation")
	switch isAccepted := accepted != nil && accepted.Status == metav1.ConditionTrue; {
	case unserved != "":
		found = append(found, Finding{
			Object: o.Name(), Reason: reasonNotServed, Message: unserved, Action: checkRevisions,
		})
	case isAccepted && has && served != o.GetGeneration():
		found = append(found, Finding{
			Object: o.Name(), Reason: reasonNotServed,
			Message: fmt.Sprintf("generation %d is accepted, but generation %d is served", o.GetGeneration(), served),
			Action:  "wait a few seconds, and try again. If it persists, " + checkRevisions,
		})
	}
	if unwatched != "" {
		found = append(found, Finding{
			Object: o.Name(), Reason: reasonNotWatched, Message: unwatched + ", so changes to these children are not noticed",
			Action: "grant the platform list and watch on the type, and check that the API server serves it",
		})
	}
	return found
}

// instanceNotes returns the number of a Blueprint's instances that are not ready, and a note for each of them.
func instanceNotes(o *Object) (notes []Finding) {
	counts, _, _ := unstructured.NestedMap(o.Object, "status", "instances")
	total, _ := counts["total"].(int64)
	ready, _ := counts["ready"].(int64)
	failing, _ := counts["failing"].(int64)
	if ready < total {
		notes = append(notes, Finding{
			Object: o.Name(), Reason: reasonInstances,
			Message: fmt.Sprintf("%d of %d instances are ready, and %d are failing", ready, total, failing),
			Action:  "run tree blueprint/" + o.GetName() + " -o wide for a list",
		})
	}
	for _, instance := range o.sorted() {
		state, message := instance.State()
		if state == Ready {
			continue
		}
		notes = append(notes, Finding{
			Object: instance.Name(), Reason: string(state), Message: firstLine(message),
			Action: fmt.Sprintf("run why %s/%s%s", instance.Resource, instance.GetName(), flagOf(instance.GetNamespace())),
		})
	}
	return notes
}

// Shorten limits the number of findings and of children that are not ready, for a short text.
func (r *Report) Shorten() {
	unhealthy := slices.DeleteFunc(slices.Clone(r.Children), (*Node).IsHealthy)
	hidden := max(0, len(unhealthy)-maxShown)
	r.Children = unhealthy[:len(unhealthy)-hidden]
	r.Causes, r.Notes = shortened(r.Object, r.Causes, 0), shortened(r.Object, r.Notes, hidden)
}

// shortened returns the first findings, and the number of the findings and children that are not shown.
func shortened(object string, all []Finding, children int) []Finding {
	findings := max(0, len(all)-maxShown)
	if findings == 0 && children == 0 {
		return all
	}
	return append(slices.Clone(all[:len(all)-findings]), Finding{
		Object: object, Reason: reasonMore,
		Message: fmt.Sprintf("and %d more findings, and %d more children that are not ready", findings, children),
		Action:  "-o wide shows all of them",
	})
}

func flagOf(namespace string) string {
	if namespace == "" {
		return ""
	}
	return " -n " + namespace
}

func pause(o *Object, by string) Finding {
	f := Finding{
		Object: o.Name(), Reason: by + "Paused",
		Message: fmt.Sprintf("it is not reconciled while the %s has the annotation %s", strings.ToLower(by),
			instances.PausedAnnotation),
		Action: fmt.Sprintf("kubectl annotate %s %s-", o.target(), instances.PausedAnnotation),
	}
	if by == "Blueprint" && o.Owner != nil {
		f.Action = fmt.Sprintf("kubectl annotate blueprint %s %s-", o.Owner.Name, instances.PausedAnnotation)
	}
	return f
}

func notReconciledFinding(o *Object, message string) Finding {
	return Finding{
		Object: o.Name(), Reason: reasonNotReconciled, Message: message,
		Action: "if this takes more than a few seconds, check that a replica of the platform leads: " +
			"kubectl get lease dynamic-controller -n NAMESPACE",
	}
}

// blockedFinding returns a finding if the deletion of the object waits for other controllers' finalizers, and nil
// otherwise.
func blockedFinding(o *Object) *Finding {
	blockers := o.blockers()
	if o.GetDeletionTimestamp() == nil || len(blockers) == 0 {
		return nil
	}
	message := "it is being deleted" + instances.BlockedBy(blockers)
	if id, _ := instances.ResourceOf(o); id != "" {
		message += " (resource " + id + ")"
	}
	return &Finding{
		Object: o.Name(), Reason: reasonBlocked, Message: message,
		Action: "find out why the controller of the finalizer does not remove it. If the controller no longer exists, " +
			"remove the finalizer: kubectl edit " + o.target(),
	}
}

// parkedFinding returns a finding if the platform has stopped retrying the object, and nil otherwise. The condition
// must report a failure for the newest generation. An event from before its last transition does not count.
func parkedFinding(o *Object, c *metav1.Condition) *Finding {
	failing := c != nil && c.Status != metav1.ConditionTrue
	if !o.IsBlueprint() {
		_, failing = instances.ReadyOf(o.Unstructured)
	}
	parked := lastParked(o)
	if !failing || parked.IsZero() || c.ObservedGeneration != o.GetGeneration() ||
		parked.Before(c.LastTransitionTime.Time) {
		return nil
	}
	return &Finding{
		Object: o.Name(), Reason: reasonParked, Message: "the platform does not retry it until it changes",
		Action: fmt.Sprintf("remove the cause, and then change the object, for example with "+
			`kubectl annotate %s retry="$(date +%%s)" --overwrite`, o.target()),
	}
}

// conditionsOf returns all conditions of an object.
func conditionsOf(o *Object) (all []metav1.Condition) {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, item := range list {
		fields, _ := item.(map[string]any)
		kind, _ := fields["type"].(string)
		if c := instances.ConditionOf(o.Unstructured, kind); c != nil {
			all = append(all, *c)
		}
	}
	slices.SortFunc(all, func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) })
	return all
}
