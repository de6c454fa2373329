package instances

import (
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/events"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/children"
)

// recordCondition records an event if the Ready condition shows that an instance has become ready, has started to fail,
// or now fails for a different reason.
func (r *Reconciler) recordCondition(_ context.Context, before, after *unstructured.Unstructured) {
	was, ready := ConditionOf(before, conditionReady), ConditionOf(after, conditionReady)
	switch {
	case ready == nil:
	case ready.Status == metav1.ConditionTrue && events.HasChanged(was, ready):
		r.record(events.Event{Regarding: after, Reason: events.Ready, Note: ready.Message})
	case ready.Status == metav1.ConditionFalse && isFailing(ready.Reason) && events.IsNewProblem(was, ready):
		r.record(events.Event{Regarding: after, Reason: events.Failed, Note: ready.Reason + ": " + ready.Message})
	}
}

// RecordParked records that a Blueprint or an instance is no longer retried, because of a terminal error or too many
// failures. If the object is parked again, for example under the next leader, no second event is written unless its
// generation or the status of its Ready condition has changed.
func RecordParked(
	lister func(schema.GroupVersionResource) (dynamiccontroller.Lister, error), id dynamiccontroller.ObjectIdentifiers,
	record func(events.Event),
) {
	object, err := handlers.Cached(lister).Get(context.Background(), id.GVR, id.Namespace(), id.Name())
	if err != nil {
		return // the object has been deleted
	}
	key := fmt.Sprint(object.GetGeneration())
	if ready := ConditionOf(object, conditionReady); ready != nil {
		key += " " + ready.LastTransitionTime.String()
	}
	record(events.Event{Regarding: object, Reason: events.Parked, Key: key,
		Note: "reconciling failed and is not retried until the object changes; see the conditions of the object"})
}

// Values of childChange.verb.
const (
	created = "created"
	updated = "updated"
	deleted = "deleted"
	// recreating is the verb for a child that was deleted to create it again.
	recreating = "recreating"
)

// childChange is one successful write to a child.
type childChange struct {
	verb, kind string
	id         dynamiccontroller.ObjectIdentifiers
}

// applied records the children that have been created or changed.
func (c *childClient) applied(result children.Result) {
	for _, child := range result.Children {
		switch child.Outcome {
		case children.OutcomeCreated:
			c.record(childChange{verb: created, kind: child.Kind.Kind, id: child.ObjectIdentifiers})
		case children.OutcomeApplied:
			c.record(childChange{verb: updated, kind: child.Kind.Kind, id: child.ObjectIdentifiers})
		}
	}
}

// refuses records whether the API server has refused the last change of a child as invalid.
func (c *childClient) refuses(id dynamiccontroller.ObjectIdentifiers, refused bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused == nil {
		c.refused = map[dynamiccontroller.ObjectIdentifiers]bool{}
	}
	c.refused[id] = refused
}

// deleted records a deletion. A child that is applied is deleted in the same reconcile only to create it again.
func (c *childClient) deleted(id dynamiccontroller.ObjectIdentifiers) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change := childChange{verb: deleted, kind: c.kindOf(id.GVR), id: id}
	if c.refused[id] {
		change.verb = recreating
	}
	c.changes = append(c.changes, change)
}

// kindOf returns the kind of a child, or the name of its resource if the revision has no children of this type.
func (c *childClient) kindOf(gvr schema.GroupVersionResource) string {
	i := slices.IndexFunc(c.children, func(child Child) bool { return child.GVR.GroupResource() == gvr.GroupResource() })
	if i < 0 {
		return gvr.GroupResource().String()
	}
	return c.children[i].GVK.Kind
}

// recordChildren records one event for the children that were applied through the access, one for those that were
// deleted, and one for those that were deleted to create them again. Like the conditions, the events contain only the
// kinds and names of children. If the identity cannot read a deleted child, the child's name is omitted.
func (r *Reconciler) recordChildren(ctx context.Context, self *unstructured.Unstructured, access access) {
	if access.client == nil {
		return
	}
	changes := access.client.changes
	access.client.changes = nil
	for i, change := range changes {
		wasDeleted := change.verb == deleted || change.verb == recreating
		if wasDeleted && !access.reader.canRead(ctx, change.id.GVR, change.id.Namespace()) {
			changes[i].id.NamespacedKey = ""
		}
	}
	apply := append(changesBy(created, changes, self), changesBy(updated, changes, self)...)
	for _, text := range changesBy(recreating, changes, self) {
		r.recordTexts(self, events.ChildrenRecreated, []string{text + ", because the API server refuses the change"})
	}
	r.recordTexts(self, events.ChildrenApplied, apply)
	r.recordTexts(self, events.ChildrenDeleted, changesBy(deleted, changes, self))
}

func (r *Reconciler) recordTexts(self *unstructured.Unstructured, reason events.Reason, texts []string) {
	if len(texts) > 0 {
		r.record(events.Event{Regarding: self, Reason: reason, Note: strings.Join(texts, "; ")})
	}
}

// changesBy describes the changes with the given verb. It names the first few children and counts the others. It
// returns nil if there are no such changes.
func changesBy(verb string, changes []childChange, self *unstructured.Unstructured) []string {
	var names []string
	for _, change := range changes {
		name := change.id.NamespacedKey
		if change.id.Namespace() == self.GetNamespace() {
			name = change.id.Name()
		}
		if change.verb == verb {
			names = append(names, strings.TrimSpace(change.kind+" "+name))
		}
	}
	if len(names) == 0 {
		return nil
	}
	return []string{verb + " " + joinFirst(names, ", ")}
}
