package decide

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/handlers/internal/applied"
	"github.com/dynamic-controller/engine/handlers/internal/ownerref"
)

// After a conflict, the object is read again, and everything is decided again, at most maxAttempts times.
const (
	maxAttempts   = 5
	conflictDelay = 10 * time.Millisecond
)

// createOnlyVersion is a resourceVersion that no object has: the largest revision of etcd. An apply with a
// resourceVersion is rejected with a conflict if the object exists with another one. If the object does not exist, the
// API server creates it and ignores the resourceVersion. An API server that did not ignore it would reject the create,
// and could not overwrite an object either.
//
// Without the resourceVersion, an apply could take over an object that someone else created in the meantime: there is
// no conflict if the fields differ or have the same manager. A POST would fail with AlreadyExists, but later applies
// would not remove the fields that it has set, because their manager has the operation Update. In addition, a POST of a
// new type takes two seconds.
const createOnlyVersion = "9223372036854775807"

// CreateOnlyVersion is createOnlyVersion, for other objects that are created in the same way.
const CreateOnlyVersion = createOnlyVersion

// childDecision is the state of a Decision about a desired child.
type childDecision struct {
	*asker
	*Child
	parent *Parent
	facts  Facts
	seen   Seen
	known  *Known

	// config is the configuration for the object that was read last: it has the existing values of the kept fields.
	config  *unstructured.Unstructured
	outcome Outcome
	doomed  *unstructured.Unstructured
	isOwned bool
	takes   bool // whether the object becomes a child
}

func (d *childDecision) manager() string { return string(d.parent.Names) }
func (d *childDecision) name() string    { return d.Template.GetName() }

// write performs an operation that changes an existing child, and returns the new version.
func (d *childDecision) write(
	object *unstructured.Unstructured, operation Operation,
) (*unstructured.Unstructured, error) {
	operation.UID, operation.ResourceVersion = object.GetUID(), object.GetResourceVersion()
	if operation.Manager == "" {
		operation.Manager = d.manager()
	}
	answer := d.ask(operation)
	if answer.Err != nil {
		return nil, answer.Err
	}
	d.changed(object, answer.Object)
	return answer.Object, nil
}

// patch changes the metadata of the child.
func (d *childDecision) patch(
	kind Kind, reason Reason, object *unstructured.Unstructured, metadata map[string]any,
) (*unstructured.Unstructured, error) {
	return d.write(object, Operation{Kind: kind, Reason: reason, Patch: map[string]any{"metadata": metadata}})
}

// changed sets the outcome after a write.
func (d *childDecision) changed(before, after *unstructured.Unstructured) {
	if before.GetResourceVersion() != after.GetResourceVersion() {
		d.outcome = Applied
	}
}

// readAgain reads the child from the API server. It returns nil if the child does not exist.
func (d *childDecision) readAgain(reason Reason) (*unstructured.Unstructured, error) {
	answer := d.ask(Operation{Kind: Read, Reason: reason})
	return answer.Object, answer.Err
}

// readManagedFields returns the object with its managedFields, which a cache can leave out. If the object has changed
// since it was cached, the error is a conflict.
func (d *childDecision) readManagedFields(cached *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	current, err := d.readAgain("the cache can lack the managedFields")
	if err != nil {
		return nil, err
	}
	if current == nil || current.GetUID() != cached.GetUID() ||
		current.GetResourceVersion() != cached.GetResourceVersion() {
		return nil, apierrors.NewConflict(d.Resource.GroupResource(), d.name(),
			errors.New("the object has changed since it was cached"))
	}
	return current, nil
}

// decide brings the child into its desired state, and returns the verdict.
func (d *childDecision) decide() Verdict {
	object, err := d.reconcile()
	v := Verdict{Outcome: d.outcome, Object: object, Terminating: d.doomed, IsOwned: d.isOwned, Err: err}
	if err == nil && object != nil && d.outcome != Waiting {
		v.Finding = d.finding(object)
	}
	return v
}

// reconcile creates or updates the child if necessary, and returns it. If the API server rejects a write because the
// child has been changed or created in the meantime, reconcile reads the child and decides again.
func (d *childDecision) reconcile() (now *unstructured.Unstructured, err error) {
	for attempt := 1; ; attempt++ {
		if d.doomed != nil { // the object is gone
			d.outcome, d.doomed, d.isOwned = Unchanged, nil, false
		}
		current, err := d.seen.Object, d.seen.Err
		if attempt > 1 {
			answer := d.ask(Operation{Kind: Read, Reason: "the object was changed in the meantime", After: conflictDelay})
			current, err = answer.Object, answer.Err
		} else if d.seen.Unknown {
			current, err = d.readAgain("the cache does not show whether the child exists")
		}
		if err != nil {
			return now, fmt.Errorf("read: %w", err)
		}
		if now, err = d.applyTo(current); !apierrors.IsConflict(err) || attempt == maxAttempts {
			return now, err
		}
	}
}

// applyTo applies the child on top of the current object. If current is nil, it creates the object. An object that is
// being deleted is not changed: a new one is created once it is gone. If an owned object cannot be changed, applyTo
// returns it together with the error.
func (d *childDecision) applyTo(current *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if current == nil {
		return d.create()
	}
	claim, err := ClaimOf(d.parent, d.Child, current, d.namespaceUID)
	owned := claim == Own
	d.takes = claim == Take
	if err == nil && current.GetDeletionTimestamp() != nil {
		return d.waitUntilDeleted(current, owned)
	}
	if err == nil && (!owned || d.parent.IsRetained(current)) { // the apply would mark the object
		err = d.facts.Unwitnessed
	}
	if err == nil && !owned {
		err = d.ask(Operation{Kind: MayAdopt, Reason: "an object becomes a child"}).Err
	}
	switch {
	case err != nil:
		return nil, err
	case d.Retain && ownerref.Refers(current, d.parent):
		if err := d.known.fights.protect("metadata.ownerReferences", d.now); err != nil {
			return current, err
		}
		changes := map[string]any{"ownerReferences": ownerref.Without(current, d.parent)}
		current, err = d.patch(RemoveOwnerReference, "a retained child outlives its parent", current, changes)
		if err != nil {
			return nil, err
		}
	case owned && d.isUpToDate(current):
		return d.removeConfirmation(current)
	case d.known.applied.lacksManagedFields(current), d.needsManagedFields(current):
		if current, err = d.readManagedFields(current); err != nil {
			return nil, err
		}
		if owned && d.isUpToDate(current) {
			return d.removeConfirmation(current)
		}
	}
	now, err := d.correct(current)
	if owned && apierrors.IsInvalid(err) {
		return d.recreate(current, err)
	}
	if err != nil {
		if owned {
			return current, err
		}
		return nil, err
	}
	return d.removeConfirmation(now)
}

// isSettled reports whether applyTo would change nothing.
func (d *childDecision) isSettled(current *unstructured.Unstructured) bool {
	if current.GetDeletionTimestamp() != nil || current.GetAnnotations()[d.parent.Restored()] != "" ||
		d.Retain && ownerref.Refers(current, d.parent) {
		return false
	}
	claim, err := ClaimOf(d.parent, d.Child, current, d.namespaceUID)
	return err == nil && claim == Own && (!d.parent.IsRetained(current) || d.facts.Unwitnessed == nil) &&
		d.isUpToDate(current)
}

// removeConfirmation removes the annotation with which someone has confirmed that the parent was restored.
func (d *childDecision) removeConfirmation(now *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	key := d.parent.Restored()
	if now.GetAnnotations()[key] == "" {
		return now, nil
	}
	if err := d.known.fights.protect("metadata.annotations", d.now); err != nil {
		return now, err
	}
	return d.patch(RemoveConfirmation, "the child has the UID of the parent", now,
		map[string]any{"annotations": map[string]any{key: nil}})
}

// waitUntilDeleted decides to wait until an object with the name of the child is gone. It returns the object only if
// the parent owns it: another object can contain data that the parent must not read.
func (d *childDecision) waitUntilDeleted(
	current *unstructured.Unstructured, owned bool,
) (*unstructured.Unstructured, error) {
	d.outcome, d.doomed, d.isOwned = Waiting, current, owned
	if !owned {
		return nil, nil
	}
	if !IsDeletionStuck(current) {
		return current, nil
	}
	return current, d.finishDeletion(current)
}

// IsDeletionStuck reports whether an object can remain after its last finalizer has been removed. The API server then
// removes only objects whose deletionGracePeriodSeconds is 0. The field cannot be changed by an update. A Namespace
// keeps a value that was set when the Namespace was created, which API servers before 1.37 allow in an apply. A second
// request to delete such an object removes it, and has no effect while the object has finalizers.
func IsDeletionStuck(object metav1.Object) bool {
	grace := object.GetDeletionGracePeriodSeconds()
	return object.GetDeletionTimestamp() != nil && grace != nil && *grace < 0 && len(object.GetFinalizers()) == 0
}

// finishDeletion deletes an object whose deletion is stuck.
func (d *childDecision) finishDeletion(current *unstructured.Unstructured) error {
	d.known.Deleted()
	r := removal{asker: d.asker, parent: d.parent, isChild: IsChild}
	_, err := r.repeat(current, "its deletion is stuck", r.delete)
	if err != nil {
		return fmt.Errorf("delete %s: %w", d.ID, err)
	}
	return nil
}

// isUpToDate reports whether the child need not be applied.
func (d *childDecision) isUpToDate(current *unstructured.Unstructured) bool {
	d.keep(current)
	last := &d.known.applied
	if last.lacksManagedFields(current) || d.hasLostOwners(current, d.wasApplied(current)) && d.sharesOwnership(current) {
		return false
	}
	if last.finding.Kind != NoFinding {
		last.finding = last.finding.review(d.manager(), d.config, current)
	}
	if applied.Covers(d.config.Object, current.Object) && d.ownsFields(current) {
		return true
	}
	if last.hash != d.Hash || last.written.UID != current.GetUID() {
		return false
	}
	now, err := d.signatureOf(current)
	return err == nil && now.values == last.signature.values &&
		(now.owned == "" || now.owned == last.signature.owned)
}

// ownsFields reports whether this controller owns all fields that it applied, according to the managed fields.
func (d *childDecision) ownsFields(current *unstructured.Unstructured) bool {
	fields, ok := applied.FieldsOf(current, d.manager())
	if !ok {
		return true
	}
	for name, value := range d.withoutKept().Object {
		switch name {
		case "apiVersion", "kind":
		case "metadata":
			for name, value := range value.(map[string]any) {
				if name != "name" && name != "namespace" && !fields["f:metadata"].Owns(map[string]any{name: value}) {
					return false
				}
			}
		default:
			if !fields.Owns(map[string]any{name: value}) {
				return false
			}
		}
	}
	return true
}

func (d *childDecision) signatureOf(current *unstructured.Unstructured) (s signature, err error) {
	if s.values, err = applied.Digest(applied.Projection(d.withoutKept().Object, current.Object)); err != nil {
		return signature{}, err
	}
	if fields, ok := applied.FieldsOf(current, d.manager()); ok {
		for _, path := range d.Kept {
			fields.Remove(path)
		}
		s.owned, err = applied.Digest(fields)
	}
	return s, err
}

// wasApplied reports whether the configuration of the child was applied to the object before.
func (d *childDecision) wasApplied(object metav1.Object) bool {
	return object.GetAnnotations()[d.parent.Applied()] == d.Hash
}

// FirstOf lists the first items, because the size of condition messages is limited.
func FirstOf(items []string) string {
	const maxListed = 3
	if more := len(items) - maxListed; more > 0 {
		items = append(slices.Clone(items[:maxListed]), fmt.Sprintf("%d more", more))
	}
	return strings.Join(items, ", ")
}
