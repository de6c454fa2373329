package decide

import (
	"errors"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// Kind is what an Operation does.
type Kind int

// The kinds of operations. Those before Create change no child: they observe. MayCreate can also change the parent.
const (
	Read          Kind = iota // read the child from the API server
	ReadParent                // read the parent from the API server: it must exist and not be deleted
	ReadNamespace             // read the UID of the parent's namespace
	MayCreate                 // read the parent, and record in it what must be known before a child is created
	MayAdopt                  // read the parent, which must be able to own objects
	LookUp                    // find out whether the API server serves the kind in the version of Object
	TryCreate                 // create Object in a dry run
	TryApply                  // apply Object in a dry run

	Create               // apply Object, which must not exist
	Apply                // apply Object to the given version of the child
	SetManagedFields     // replace the managedFields of the child
	HandOver             // set a field of the child in the name of another manager
	RemoveOwnerReference // remove the owner reference of a retained child
	RemoveConfirmation   // remove the annotation with which someone has confirmed that the parent was restored
	RemoveMark           // remove the mark of a child, so that it is kept
	Delete               // delete the given version of the child
)

var kinds = [...]string{
	"Read", "ReadParent", "ReadNamespace", "MayCreate", "MayAdopt", "LookUp", "TryCreate", "TryApply",
	"Create", "Apply", "SetManagedFields", "HandOver", "RemoveOwnerReference", "RemoveConfirmation", "RemoveMark",
	"Delete",
}

func (k Kind) String() string { return kinds[k] }

// IsWrite reports whether an operation changes the child.
func (k Kind) IsWrite() bool { return k >= Create }

// returnsObject reports whether the answer to a write contains the new version of the child.
func (k Kind) returnsObject() bool { return k.IsWrite() && k != Delete && k != RemoveMark }

// Operation is one request about a child. A write is rejected if the child is no longer the version that it was
// decided for.
type Operation struct {
	Kind   Kind
	Reason Reason
	// Object is what is created, applied or looked up. Create and Apply carry their preconditions in it.
	Object *unstructured.Unstructured
	// Patch is the content of a merge patch, without its preconditions.
	Patch map[string]any
	// UID and ResourceVersion are the preconditions of Delete and of patches.
	UID             types.UID
	ResourceVersion string
	// Manager is the field manager.
	Manager string
	// Force takes fields over from other managers.
	Force bool
	// After is the delay before the request, after a conflict.
	After time.Duration
	// Items is the number of list items that change their owner.
	Items int
	// Field is the field that is handed over.
	Field string
	// Takes is set for the Apply with which an object becomes a child.
	Takes bool
}

// Reason is why an operation is needed. It is a text for readers of a plan.
type Reason string

// Answer is the result of an operation.
type Answer struct {
	// Object is the version of the child that the API server has returned. It is nil if it does not exist.
	Object *unstructured.Unstructured
	// Namespace is the answer to ReadNamespace. It is empty if the Reconciler cannot read the namespace.
	Namespace types.UID
	// Unrecorded is the answer to MayCreate: why the inventory of the parent lacks the child, or nil.
	Unrecorded error
	// Err is a refusal of the API server, or why its answer is not known.
	Err error
	// At is when the answer arrived.
	At time.Time
}

// moment is the time of a decision.
type moment time.Time

func (m moment) since(t time.Time) time.Duration { return time.Time(m).Sub(t) }

// ContentError is an error of the API server that only another desired state can avoid, although its code does not say
// so.
type ContentError struct {
	error
	TooLarge bool // whether the object exceeds a limit
}

// Unwrap returns the error of the API server.
func (e *ContentError) Unwrap() error { return e.error }

func isContentError(err error) bool {
	var content *ContentError
	return errors.As(err, &content)
}

// isRefusal reports whether the API server refused to apply an object because of its content.
func isRefusal(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || isContentError(err)
}

// IsRejection reports whether the API server rejected a request because of its content or its sender.
func IsRejection(err error) bool {
	return isRefusal(err) || apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err)
}

// isUnexplained reports whether the API server responded with 500 and not with the reason InternalError, which errors
// of admission webhooks have. The API server refuses most invalid objects with 422 or 400. It responds with such a 500
// if a configuration cannot be merged, for example because a list has two items with the same key, a field has a value
// of another type, or a field is unknown. Errors of its storage, and of managedFields that it cannot process, look the
// same.
func isUnexplained(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code == http.StatusInternalServerError &&
		status.Status().Reason != metav1.StatusReasonInternalError
}

// isTooLarge reports whether an object exceeds a limit of the API server or of etcd. The API server passes on the
// errors of etcd as text.
func isTooLarge(err error) bool {
	if apierrors.IsRequestEntityTooLargeError(err) {
		return true
	}
	var status apierrors.APIStatus
	if !isUnexplained(err) || !errors.As(err, &status) {
		return false
	}
	message := status.Status().Message
	return strings.HasSuffix(message, "etcdserver: request is too large") ||
		strings.Contains(message, "code = ResourceExhausted") && strings.Contains(message, "message larger than max")
}

// IsGone reports whether the API server serves the type of an object, and the object does not exist.
func IsGone(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}

// isSecondController reports whether a write was rejected because of the owner references, of which at most one can be
// a controller.
func isSecondController(err error) bool {
	for _, field := range fieldsIn(err) {
		if field == "metadata.ownerReferences" {
			return apierrors.IsInvalid(err)
		}
	}
	return false
}

// fieldsIn returns the fields that the API server named in an error.
func fieldsIn(err error) (fields []string) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	for _, cause := range status.Status().Details.Causes {
		fields = append(fields, cause.Field)
	}
	return fields
}
