package decide

import (
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// recreationPeriod limits how often a child is recreated, and how often a dry run is sent for the same desired state.
const recreationPeriod = time.Minute

// ErrImmutable is wrapped, together with the response of the API server, by the error for a child that can be created
// in its desired state but not changed into it, and that is not recreated.
var ErrImmutable = errors.New("the object cannot be changed into its desired state")

// recreate deletes a child whose update the API server has refused as invalid, and creates it again, if this is allowed
// and can help. Otherwise, it returns the child and an error that wraps refusal. The child is the object to which the
// update was sent: if it has changed since then, the error is a conflict, and the update must be tried again.
func (d *childDecision) recreate(
	refused *unstructured.Unstructured, refusal error,
) (*unstructured.Unstructured, error) {
	if !d.Recreate {
		return refused, refusal
	}
	switch err := d.tryCreate(); {
	case err != nil && !IsRejection(err):
		return refused, fmt.Errorf("dry run before recreating: %w; the change was refused: %w", err, refusal)
	case err != nil:
		return refused, fmt.Errorf("%w; it is not recreated, because a dry run of its creation fails: %w", refusal, err)
	}
	current, err := d.readManagedFields(refused)
	if err != nil {
		return nil, fmt.Errorf("read before recreating: %w", err)
	}
	obstacle, err := recreationCandidate{
		newSubject(d.parent, d.Child, current, d.namespaceUID), current, &d.known.recreation, moment(d.now),
	}.obstacle()
	if err == nil && obstacle == "" {
		err = d.ask(Operation{Kind: ReadParent, Reason: "it can have been deleted or orphaned since the call began"}).Err
	}
	if err == nil && obstacle == "" {
		err = d.checkCreate()
	}
	switch {
	case err != nil:
		return nil, err
	case obstacle != "":
		return refused, fmt.Errorf("%w: %w; it is not recreated, because %s", ErrImmutable, refusal, obstacle)
	}
	err = d.ask(Operation{
		Kind: Delete, Reason: "it cannot be changed into its desired state, and can be created in it",
		UID: current.GetUID(), ResourceVersion: current.GetResourceVersion(),
	}).Err
	switch {
	case apierrors.IsConflict(err):
		return nil, err
	case err != nil && !IsGone(err):
		return refused, fmt.Errorf("%w: %w; it cannot be deleted: %w", ErrImmutable, refusal, err)
	}
	d.known.Deleted()
	d.known.recreation.deleted, d.known.recreation.pending = d.now, true
	now, err := d.readAgain("it was deleted to be created again")
	if err != nil {
		return nil, fmt.Errorf("read after deleting: %w", err)
	}
	return d.applyTo(now)
}

// tryCreate returns an error if the API server would not create the child, using a dry run. The API server checks the
// content of an object and calls admission before it checks whether the name is taken. The expected response is
// therefore that the object already exists. The result is kept for a while, because a dry run calls admission webhooks.
func (d *childDecision) tryCreate() error {
	known := &d.known.recreation
	if known.hash == d.Hash && d.now.Sub(known.probed) < recreationPeriod {
		return known.err
	}
	config := d.config.DeepCopy()
	config.SetGenerateName("") // would be used by a webhook that removes the name
	err := d.ask(Operation{
		Kind: TryCreate, Reason: "the update was refused, and a new object can be accepted",
		Object: config, Manager: d.manager(),
	}).Err
	if apierrors.IsAlreadyExists(err) {
		err = nil // without an error, the object is gone, which readOwners detects
	}
	if err == nil || IsRejection(err) {
		known.hash, known.probed, known.err = d.Hash, d.now, err
	}
	return err
}

// notes returns the annotations that are not part of the desired child, for an apply to an existing object: whether the
// object was adopted, and for which desired state it was recreated. An apply without them would remove them.
func (d *childDecision) notes(current *unstructured.Unstructured) (map[string]any, error) {
	notes := map[string]string{}
	for _, key := range []string{d.parent.Adopted(), d.parent.Recreated()} {
		if value := current.GetAnnotations()[key]; value != "" {
			notes[key] = value
		}
	}
	adopts, err := adopts(d.parent, d.Child, current, d.namespaceUID)
	if adopts {
		notes[d.parent.Adopted()] = "true"
	}
	if len(notes) == 0 {
		return nil, err
	}
	return d.annotations(notes), err
}
