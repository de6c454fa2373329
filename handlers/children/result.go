package children

import (
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children/internal/compare"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
)

// Result describes the children of a parent after a call to Reconcile.
type Result struct {
	// Children contains one entry for each desired child, in order. It is empty if the parent is being deleted, or if
	// Reconcile failed before it applied any child.
	Children []ChildResult
	// Pending lists the children that must be deleted and still exist, in the order in which they are deleted.
	Pending []PendingChild
	// Failure is the error that does not concern a single desired child, for example because a child could not be pruned.
	// The error that Reconcile returns includes it.
	Failure error
}

// Outcome is what Reconcile did with a desired child, or why it did nothing.
type Outcome string

const (
	// OutcomeCreated means that the child did not exist, and has been created.
	OutcomeCreated Outcome = "Created"
	// OutcomeApplied means that the child has been changed.
	OutcomeApplied Outcome = "Applied"
	// OutcomeUnchanged means that the child already had its desired state.
	OutcomeUnchanged Outcome = "Unchanged"
	// OutcomeWaiting means that the child is applied later.
	OutcomeWaiting Outcome = "Waiting"
	// OutcomeConflict means that the child cannot be applied, because an object with its name belongs to another owner.
	OutcomeConflict Outcome = "Conflict"
	// OutcomeRefused means that the child cannot be applied until someone changes its desired state, the object, or
	// permissions.
	OutcomeRefused Outcome = "Refused"
	// OutcomeDrifting means that other clients change or delete the child again and again. See "Fights" in the package
	// documentation.
	OutcomeDrifting Outcome = "Drifting"
	// OutcomeFailed means that a request failed. The next attempt can succeed.
	OutcomeFailed Outcome = "Failed"
)

// Values of ChildResult.Reason, in the order of their outcomes. If the API server rejects a request, the reason is that
// of its response, such as Invalid, Forbidden or ServiceUnavailable. If the response has no reason, or there is no
// response, it is RequestFailed.
const (
	ReasonEarlierStage       = "EarlierStage"          // Waiting: an earlier stage is not complete
	ReasonBeingDeleted       = "BeingDeleted"          // Waiting: an object with its name is being deleted
	ReasonNotOwned           = "NotOwned"              // Conflict: the error wraps ErrNotOwned
	ReasonNewerFormat        = "NewerFormat"           // Conflict: the error wraps ErrNewerFormat and ErrNotOwned
	ReasonAdoptionNotEnabled = "AdoptionNotEnabled"    // Conflict: the error wraps ErrAdoptionNotEnabled
	ReasonNotConfirmed       = "NotConfirmed"          // Conflict: the error wraps ErrNotConfirmed
	ReasonUnknownKind        = "UnknownKind"           // Refused: the mapper has no mapping for the kind
	ReasonKindNotSupported   = "KindNotSupported"      // Refused: the error wraps ErrKindNotSupported
	ReasonInventoryFull      = "InventoryFull"         // Refused: the error wraps ErrInventoryFull
	ReasonInvalid            = "Invalid"               // Refused: by the API server, or because of its namespace
	ReasonTooLarge           = "RequestEntityTooLarge" // Refused: beyond a limit of the API server or of etcd
	ReasonImmutable          = "Immutable"             // Refused: a field cannot be changed, see OnImmutable
	ReasonChangedByOthers    = "ChangedByOthers"       // Drifting: changed again and again
	ReasonDeletedByOthers    = "DeletedByOthers"       // Drifting: deleted again and again
	ReasonRequestFailed      = "RequestFailed"         // Failed: no response, or the discovery of the child's group fails
	// ReasonStoredDifferently is set for a child that is Created, Applied or Unchanged, if the API server stores a field
	// with another value than the desired one, for example because of an admission webhook.
	ReasonStoredDifferently = "StoredDifferently"
	// ReasonUndesiredItem is set for a child that is Created, Applied or Unchanged, if a list contains an item that can be
	// an edited item of the child or an item of another client. See "Repairs" in the package documentation.
	ReasonUndesiredItem = "UndesiredItem"
	// ReasonUndesiredField is set for a child that is Created, Applied or Unchanged, if another manager had set a field
	// before the object was adopted or restored, and the desired child does not have the field. See "Ownership" in the
	// package documentation.
	ReasonUndesiredField = "UndesiredField"
)

// ChildResult describes a desired child.
type ChildResult struct {
	// ObjectIdentifiers identifies the child. The GVR is empty if the mapper lacks the kind.
	dynamiccontroller.ObjectIdentifiers
	Kind schema.GroupKind
	// Annotations contains the annotations of the desired child.
	Annotations map[string]string
	Outcome     Outcome
	// Reason is one of the reasons above, or empty.
	Reason string
	// Message describes the reason, if there is one.
	Message string
	// Field is the field that the reasons ChangedByOthers, StoredDifferently, UndesiredItem and UndesiredField refer to,
	// such as "spec.replicas".
	Field string
	// Manager is the field manager that changed the field last, if it is known.
	Manager string
	// Object is the latest known version of the child. It is never older than the last write of this run. It is nil if the
	// child does not exist, or does not belong to the parent.
	Object *unstructured.Unstructured
	// Err is the error that Message describes. It is nil if the child has been applied or is waiting.
	Err error
}

// IsApplied reports whether the child has its desired state.
func (r ChildResult) IsApplied() bool {
	return r.Outcome == OutcomeCreated || r.Outcome == OutcomeApplied || r.Outcome == OutcomeUnchanged
}

// Existing returns the children that exist, in order.
func (r Result) Existing() (objects []*unstructured.Unstructured) {
	for _, child := range r.Children {
		if child.Object != nil {
			objects = append(objects, child.Object)
		}
	}
	return objects
}

// PendingChild is a child that must be deleted and still exists.
type PendingChild struct {
	dynamiccontroller.ObjectIdentifiers
	Kind schema.GroupKind
	// Deleting reports whether the deletion has been requested. If it is false, children in later stages must be deleted
	// first.
	Deleting bool
	// Finalizers lists the finalizers that other controllers must remove before the child is gone.
	Finalizers  []string
	Annotations map[string]string
}

// childError is the error for a desired child.
type childError struct {
	child  *ChildResult
	parent dynamiccontroller.ObjectIdentifiers
}

// Error names the child and its parent.
func (e *childError) Error() string {
	name := e.child.ObjectIdentifiers.String()
	if e.child.GVR.Empty() {
		name = e.child.Kind.String() + " " + e.child.NamespacedKey
	}
	return fmt.Sprintf("child %s of %s: %v", name, e.parent, e.child.Err)
}

func (e *childError) Unwrap() error { return e.child.Err }

// childErrors joins the errors for desired children. Its text contains only the first few.
type childErrors []error

func (e childErrors) Error() string {
	const maxListed = 10
	text := errors.Join(e[:min(len(e), maxListed)]...).Error()
	if more := len(e) - maxListed; more > 0 {
		text += fmt.Sprintf("\nand the errors of %d more children", more)
	}
	return text
}

func (e childErrors) Unwrap() []error { return e }

// pendingError is returned while Reconcile waits for children to be deleted, and nothing has failed.
type pendingError struct {
	pending []PendingChild
	requeue error
}

// Error lists the first pending children and their first finalizers.
func (e *pendingError) Error() string {
	children := make([]string, len(e.pending))
	for i, child := range e.pending {
		children[i] = child.Kind.Kind + " " + child.NamespacedKey
		if len(child.Finalizers) > 0 {
			children[i] += " (finalizers: " + decide.FirstOf(child.Finalizers) + ")"
		}
	}
	return "waiting for deletion: " + decide.FirstOf(children)
}

// Unwrap returns the RequeueAfter.
func (e *pendingError) Unwrap() error { return e.requeue }

// failureOf returns the error unless Reconcile only waits for children to be deleted.
func failureOf(err error) error {
	var pending *pendingError
	if errors.As(err, &pending) {
		return nil
	}
	return err
}

// result returns the result of the call. failure is the error that does not concern a single desired child.
func (c *call) result(failure error) (Result, error) {
	r := Result{Pending: c.pending, Failure: failure}
	var failed childErrors
	var requeue time.Duration // the delay until a child that drifts can be corrected
	onlyDrift := failure == nil
	for child := range c.desired.all() {
		r.Children = append(r.Children, child.result)
		if child.result.Err == nil {
			continue
		}
		failed = append(failed, &childError{&child.result, c.id})
		var drift *decide.DriftError
		if !errors.As(child.result.Err, &drift) {
			onlyDrift = false
		} else if requeue == 0 || drift.Wait < requeue {
			requeue = drift.Wait
		}
	}
	waits, err := c.waiting || c.postponed, failure
	switch {
	case len(failed) > 0 && onlyDrift:
		if waits {
			requeue = min(requeue, c.entry.pollInterval())
		}
		err = errors.Join(failed, dynamiccontroller.RequeueAfter(requeue))
	case len(failed) > 0:
		err = errors.Join(failure, failed)
	case failure == nil && waits:
		return r, c.errPending()
	}
	if !waits {
		c.entry.waitStarted = time.Time{}
	}
	return r, err
}

// newResult returns the result of a child that has not been changed.
func (d *child) newResult() ChildResult {
	return ChildResult{
		ObjectIdentifiers: d.id, Kind: d.kind, Annotations: d.Object.GetAnnotations(), Outcome: OutcomeUnchanged,
	}
}

// conclude sets the result of a decision.
func (d *child) conclude(verdict decide.Verdict) {
	r := &d.result
	*r = d.newResult()
	if r.Object = verdict.Object; verdict.Err != nil {
		d.fail(verdict.Err)
		return
	}
	switch verdict.Outcome {
	case decide.Unchanged:
	case decide.Applied:
		r.Outcome = OutcomeApplied
	case decide.Created:
		r.Outcome = OutcomeCreated
	case decide.Waiting:
		d.await(ReasonBeingDeleted, "waits until an object with its name is deleted")
		return
	}
	r.Reason, r.Message = describe(verdict.Finding)
	r.Field, r.Manager = compare.FieldOf(verdict.Finding.Path), verdict.Finding.Manager
}

// fail sets the result of a child that cannot be applied.
func (d *child) fail(err error) {
	r := &d.result
	r.Err, r.Message = err, err.Error()
	r.Outcome, r.Reason = outcomeOf(err)
	var drift *decide.DriftError
	if errors.As(err, &drift) {
		r.Field, r.Manager = drift.Field, drift.Manager
	}
}

// describe returns the reason and the message for a finding.
func describe(f decide.Finding) (reason, message string) {
	switch f.Kind {
	case decide.UndesiredItem:
		return ReasonUndesiredItem, fmt.Sprintf("%s can be an edited item of the child, or an item of another client; "+
			"remove it, or add it to the template", f.Path)
	case decide.UndesiredField:
		return ReasonUndesiredField, fmt.Sprintf("field %s was set by another manager before the object was adopted or "+
			"restored; remove it, or add it to the template", compare.FieldOf(f.Path))
	case decide.StoredDifferently:
		return ReasonStoredDifferently, fmt.Sprintf("the API server stores field %s with another value, for example "+
			"because of an admission webhook; set the field to that value, or remove it from the template",
			compare.FieldOf(f.Path))
	}
	return "", ""
}

// await sets the result of a child that is applied later.
func (d *child) await(reason, message string) {
	d.result.Outcome, d.result.Reason, d.result.Message = OutcomeWaiting, reason, message
}

// outcomeOf returns the outcome and the reason for an error.
func outcomeOf(err error) (Outcome, string) {
	var drift *decide.DriftError
	var content *decide.ContentError
	reason := string(apierrors.ReasonForError(err))
	switch {
	case errors.As(err, &drift) && drift.Gone != "":
		return OutcomeDrifting, ReasonDeletedByOthers
	case errors.As(err, &drift):
		return OutcomeDrifting, ReasonChangedByOthers
	case errors.Is(err, ErrAdoptionNotEnabled):
		return OutcomeConflict, ReasonAdoptionNotEnabled
	case errors.Is(err, ErrNewerFormat):
		return OutcomeConflict, ReasonNewerFormat
	case errors.Is(err, ErrNotConfirmed):
		return OutcomeConflict, ReasonNotConfirmed
	case errors.Is(err, ErrNotOwned):
		return OutcomeConflict, ReasonNotOwned
	case errors.Is(err, ErrInventoryFull):
		return OutcomeRefused, ReasonInventoryFull
	case errors.Is(err, ErrKindNotSupported):
		return OutcomeRefused, ReasonKindNotSupported
	case meta.IsNoMatchError(err):
		return OutcomeRefused, ReasonUnknownKind
	case errors.Is(err, errInvalidNamespace):
		return OutcomeRefused, ReasonInvalid
	case errors.Is(err, decide.ErrImmutable):
		return OutcomeRefused, ReasonImmutable
	case errors.As(err, &content) && content.TooLarge:
		return OutcomeRefused, ReasonTooLarge
	case errors.As(err, &content):
		return OutcomeRefused, ReasonInvalid
	case decide.IsRejection(err):
		return OutcomeRefused, reason
	case reason != string(metav1.StatusReasonUnknown):
		return OutcomeFailed, reason
	}
	return OutcomeFailed, ReasonRequestFailed
}

// blocks reports whether the child delays later stages and pruning. A child that exists, and whose new state is
// refused, does not: what depends on the child has it already. The same applies if such a child drifts. A child that
// does not fit into the inventory is neither created nor pruned.
func (d *child) blocks() bool {
	switch r := d.result; {
	case r.IsApplied(), r.Outcome == OutcomeDrifting && r.Object != nil, r.Reason == ReasonInventoryFull:
		return false
	default:
		return r.Object == nil || r.Outcome != OutcomeRefused
	}
}
