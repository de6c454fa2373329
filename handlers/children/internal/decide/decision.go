package decide

import (
	"errors"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Child is a desired child, ready to be applied. It never changes.
type Child struct {
	// ID names the child in messages.
	ID        string
	GroupKind schema.GroupKind
	Resource  schema.GroupVersionResource
	// Template is the apply configuration of a new object. It contains the hash as an annotation, and the owner reference
	// or the mark.
	Template *unstructured.Unstructured
	// Kept lists the fields whose existing values are kept.
	Kept []fieldpath.Path
	// Hash consists of two digests: one of the configuration and the identity, and one of the kinds, namespaces and names
	// of the parent and the child. The second one is the same after a restore from a backup.
	Hash string
	// Marked is set if the child has a mark instead of an owner reference.
	Marked bool
	// Retain, Adopt and Recreate are the options of the child: keep the object when it is no longer desired, take over an
	// existing object, and delete and create it again if a field is immutable.
	Retain, Adopt, Recreate bool
}

// isNamedBy reports whether the annotation <name>/applied of an object was written for a child and a parent with the
// names of this child and its parent.
func (c *Child) isNamedBy(annotation string) bool {
	_, names, _ := strings.Cut(annotation, ".")
	_, own, _ := strings.Cut(c.Hash, ".")
	return names != "" && names == own
}

// Facts are what the call knows about the parent when the decision begins.
type Facts struct {
	// ParentExists is set once the API server has returned the parent, and it is not being deleted.
	ParentExists bool
	// Unrecorded is why the parent's inventory lacks the child, or nil.
	Unrecorded error
	// Unwitnessed is why the parent has no witness although the child needs one, or nil.
	Unwitnessed error
}

// Seen is the object with the name of the child, as it was found before the decision.
type Seen struct {
	// Object is nil if it does not exist, or if it is not known.
	Object *unstructured.Unstructured
	// Unknown is set if only the API server knows whether the object exists.
	Unknown bool
	// Err is why the object could not be read.
	Err error
}

// Outcome is what a decision has done.
type Outcome int

// The outcomes.
const (
	Unchanged Outcome = iota
	Applied
	Created
	Waiting  // until an object with the name of the child is deleted
	Removed  // or its mark was removed
	Vanished // it did not exist any longer
)

// Verdict is the result of a decision.
type Verdict struct {
	Outcome Outcome
	// Object is the latest version of the child, or nil if it does not exist or does not belong to the parent.
	Object *unstructured.Unstructured
	// Terminating is the object that is being deleted, if the outcome is Waiting. IsOwned is whether the parent may read
	// it.
	Terminating *unstructured.Unstructured
	IsOwned     bool
	// Finding is what differs although the child was applied.
	Finding Finding
	Err     error
}

// ErrParentGone is the answer to ReadParent and MayCreate if the parent is being deleted or no longer exists.
var ErrParentGone = errors.New("the parent is gone or is being deleted")

// errNoObject is the error of a write that was answered without an object.
var errNoObject = errors.New("the answer contains no object")

// errStopped is the answer to all operations after Stop.
var errStopped = errors.New("the decision was stopped")

// Decision brings one child into its desired state, in one call for its parent. It decides about the next operation
// from the desired child, from what was seen, from what the run knows, and from the answers to earlier operations:
//
//	decision := decide.Begin(...)
//	for operation, more := decision.First(); more; operation, more = decision.Next(answer) {
//		answer = act(operation)
//	}
//	verdict := decision.Verdict()
//
// It is not safe for concurrent use.
type Decision struct {
	*conversation[Operation, Answer]
	verdict Verdict
}

// Verdict returns the result. It is valid when there is no further operation.
func (d *Decision) Verdict() Verdict { return d.verdict }

// begin begins a decision at the given time.
func begin(now time.Time, decide func(*asker) Verdict) *Decision {
	d := &Decision{}
	d.conversation = converse(Answer{Err: errStopped}, func(ask func(Operation) Answer) {
		d.verdict = decide(newAsker(ask, now))
	})
	return d
}

// Begin begins a decision about a desired child at the given time. The decision changes known. It must be stopped.
func Begin(parent *Parent, child *Child, facts Facts, seen Seen, known *Known, now time.Time) *Decision {
	return begin(now, func(a *asker) Verdict {
		return (&childDecision{
			asker: a, Child: child, parent: parent, facts: facts, seen: seen, known: known, config: child.Template,
		}).decide()
	})
}

// Settled returns the verdict for a child that has its desired state, and false for all others. It needs no requests,
// except for the UID of the namespace in rare cases.
func Settled(
	parent *Parent, child *Child, facts Facts, object *unstructured.Unstructured, known *Known, namespace Namespace,
	now time.Time,
) (Verdict, bool) {
	l := &childDecision{
		asker: &asker{now: now, namespaceUID: namespace}, Child: child, parent: parent, facts: facts, known: known,
		config: child.Template,
	}
	if !l.isSettled(object) {
		return Verdict{}, false
	}
	return Verdict{Object: object, Finding: l.finding(object)}, true
}

// asker asks for operations.
type asker struct {
	request func(Operation) Answer
	now     time.Time // of the last answer
	// namespaceUID asks for the UID of the parent's namespace once.
	namespaceUID Namespace
}

func newAsker(request func(Operation) Answer, now time.Time) *asker {
	a := &asker{request: request, now: now}
	a.namespaceUID = sync.OnceValues(func() (types.UID, error) {
		answer := a.ask(Operation{Kind: ReadNamespace, Reason: "the mark of an object names an earlier parent"})
		return answer.Namespace, answer.Err
	})
	return a
}

// ask performs an operation, and returns the answer.
func (a *asker) ask(operation Operation) Answer {
	answer := a.request(operation)
	if operation.Kind.returnsObject() && answer.Object == nil && answer.Err == nil {
		answer.Err = errNoObject
	}
	if answer.At.After(a.now) {
		a.now = answer.At
	}
	return answer
}

// readAfterConflict reads the object again. It returns nil if the object is gone.
func (a *asker) readAfterConflict(object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	answer := a.ask(Operation{Kind: Read, Reason: "the object was changed in the meantime", After: conflictDelay})
	if answer.Err != nil || answer.Object == nil || answer.Object.GetUID() != object.GetUID() {
		return nil, answer.Err
	}
	return answer.Object, nil
}
