package decide

import (
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// If a parent is deleted and its dependents are orphaned, the garbage collector removes the owner references to the
// parent, and then the parent's orphan finalizer. Afterwards, the parent looks as if its dependents were to be deleted.
// The owner references are the only difference: unless dependents are orphaned, they remain while the parent exists.
// Marked children have no owner reference. A parent with such children is therefore given a witness, a ConfigMap with
// an owner reference. The annotation <name>/witness on the parent contains the parent's UID once the witness exists.
// The annotation of a parent that was restored from a backup contains another UID.

// ErrOrphaned is returned instead of deleting marked children whose parent is deleted with orphaned dependents.
var ErrOrphaned = errors.New("the dependents of the parent were orphaned")

// ErrMaybeOrphaned is exported by package children.
var ErrMaybeOrphaned = fmt.Errorf("nothing shows whether %w", ErrOrphaned)

// namespaceDelay is less than the five seconds that pass between the deletion of a namespace and that of its objects. A
// parent that was deleted earlier was deleted by someone else. The clocks of API servers can differ.
const namespaceDelay = 3 * time.Second

// IsWitnessed reports whether the annotation of a parent shows that its witness has existed.
func (p *Parent) IsWitnessed(object metav1.Object) bool {
	return object.GetAnnotations()[p.Witness()] == string(p.GetUID())
}

// Witness is what the API server says about the witness of a parent.
type Witness int

const (
	// WitnessIsGone means that the witness does not exist.
	WitnessIsGone Witness = iota
	// WitnessIsOwned means that the witness has its owner reference.
	WitnessIsOwned
	// WitnessIsOrphaned means that the witness has lost its owner reference.
	WitnessIsOrphaned
	// WitnessIsHidden means that the identity must not read the witness.
	WitnessIsHidden
)

// Evidence shows how a parent that is being deleted was deleted. The functions are called at most once, and only if a
// rule needs them, because they cost requests.
type Evidence struct {
	*Parent
	// Witness returns what the API server says about the witness. It is not called for a parent that never had one.
	Witness func() (Witness, error)
	// WasDeleted is set if the run has seen that the dependents of this deletion are deleted.
	WasDeleted bool
	// NamespaceDeleted returns when the parent's namespace was deleted, or the zero time if it is not being deleted, or if
	// this cannot be read.
	NamespaceDeleted func() (time.Time, error)
}

// Propagation is what happens to the dependents of a parent that is being deleted.
type Propagation int

const (
	// Unproved means that nothing shows what happens to the dependents.
	Unproved Propagation = iota
	// Deleted means that the dependents are deleted.
	Deleted
	// Orphaned means that the dependents are kept.
	Orphaned
	// Hidden means that only the witness shows it, which the identity must not read.
	Hidden
)

// trial is the examination of an Evidence.
type trial struct {
	Evidence
	witness          Witness
	namespaceDeleted time.Time
	hasWitness       bool
	hasNamespace     bool
	err              error
}

func (t *trial) has(finalizer string) bool { return slices.Contains(t.GetFinalizers(), finalizer) }

// witnessIs reports whether the parent had a witness, and what the API server says about it.
func (t *trial) witnessIs(witness Witness) bool {
	if !t.IsWitnessed(t) || t.err != nil {
		return false
	}
	if !t.hasWitness {
		t.witness, t.err = t.Evidence.Witness()
		t.hasWitness = true
	}
	return t.err == nil && t.witness == witness
}

// namespaceDeletion returns when the namespace was deleted, or the zero time.
func (t *trial) namespaceDeletion() time.Time {
	if !t.hasNamespace && t.err == nil {
		t.namespaceDeleted, t.err = t.NamespaceDeleted()
		t.hasNamespace = true
	}
	return t.namespaceDeleted
}

// propagationRule is a row of propagationRules.
type propagationRule struct {
	when string
	is   func(*trial) bool
	then Propagation
}

// propagationRules decide whether the marked children of a parent that is being deleted are deleted, or released. The
// witness is read each time: a deletion can be followed by another one that orphans the dependents.
var propagationRules = []propagationRule{
	{
		when: "the garbage collector has still to orphan the dependents",
		is:   func(t *trial) bool { return t.has(metav1.FinalizerOrphanDependents) }, then: Orphaned,
	},
	{
		when: "the deletion is one in the foreground",
		is:   func(t *trial) bool { return t.has(metav1.FinalizerDeleteDependents) }, then: Deleted,
	},
	{
		when: "the witness has its owner reference",
		is:   func(t *trial) bool { return t.witnessIs(WitnessIsOwned) }, then: Deleted,
	},
	{
		when: "the witness has lost its owner reference",
		is:   func(t *trial) bool { return t.witnessIs(WitnessIsOrphaned) }, then: Orphaned,
	},
	{
		when: "this run has seen one of the rows that delete",
		is:   func(t *trial) bool { return t.err == nil && t.WasDeleted }, then: Deleted,
	},
	{
		when: "the parent was deleted with its namespace, which has taken the witness along",
		is: func(t *trial) bool {
			deleted := t.namespaceDeletion()
			return !deleted.IsZero() && t.GetDeletionTimestamp().Sub(deleted) > namespaceDelay
		},
		then: Deleted,
	},
	{
		when: "the parent was deleted before its namespace, which can have taken the witness along",
		is:   func(t *trial) bool { return !t.namespaceDeletion().IsZero() }, then: Unproved,
	},
	{
		when: "the witness must not be read",
		is:   func(t *trial) bool { return t.witnessIs(WitnessIsHidden) }, then: Hidden,
	},
	{
		when: "the witness is gone: a deletion in the foreground deletes it first",
		is:   func(t *trial) bool { return t.witnessIs(WitnessIsGone) }, then: Deleted,
	},
}

// PropagationOf returns what happens to the dependents of a parent that is being deleted.
func PropagationOf(evidence Evidence) (Propagation, error) {
	t := &trial{Evidence: evidence}
	for _, rule := range propagationRules {
		is := rule.is(t)
		if t.err != nil {
			return Unproved, t.err
		}
		if is {
			return rule.then, nil
		}
	}
	return Unproved, nil
}
