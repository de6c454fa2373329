package decide

import (
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/handlers/internal/ownerref"
)

// The safety rules: which objects may be changed as a desired child, which may be deleted because they are not desired,
// and which may be deleted to be created again. The first row whose condition is true decides. Each row has a test that
// fails without it.

// These errors are exported by package children.
var (
	ErrNotOwned           = errors.New("the object exists and does not belong to this parent")
	ErrAdoptionNotEnabled = fmt.Errorf(
		"%w: this controller did not create it, and adoption is not enabled", ErrNotOwned)
	ErrRetained     = fmt.Errorf("%w: an earlier parent with the same name has kept it", ErrAdoptionNotEnabled)
	ErrInvalidMark  = fmt.Errorf("%w: its label names this parent, and its annotations do not", ErrNotOwned)
	ErrNotConfirmed = fmt.Errorf("%w: it was the child of an earlier parent", ErrNotOwned)
)

// Namespace returns the UID of the parent's namespace. It costs a request, so it is called only if a rule needs it. The
// result is empty if the Reconciler cannot read the namespace.
type Namespace func() (types.UID, error)

// Claim is what the rules say about an object with the name of a desired child.
type Claim int

const (
	// Refuse means that the object must not be changed. The error says why.
	Refuse Claim = iota
	// Own means that the object is the child.
	Own
	// Take means that the object becomes the child with the next apply, if the parent still exists.
	Take
)

// subject is an object that the rules are about.
type subject struct {
	parent     *Parent
	child      *Child // nil for the rules about deletions
	object     metav1.Object
	namespace  Namespace
	controller *metav1.OwnerReference // of the object, or nil
	canReach   bool                   // whether an owner reference to the parent has an effect

	markRead  bool // whether mark and markErr are set
	mark      Mark
	markErr   error
	confirmed error // why a confirmation cannot be examined
}

func newSubject(p *Parent, child *Child, object metav1.Object, namespace Namespace) *subject {
	return &subject{
		parent: p, child: child, object: object, namespace: namespace,
		controller: metav1.GetControllerOfNoCopy(object), canReach: ownerref.CanReach(p, object.GetNamespace()),
	}
}

// has reports whether the object has a mark.
func (s *subject) has(mark Mark) bool { return s.readMark() == nil && s.mark == mark }

// readMark reads the mark once, and returns why it cannot be read.
func (s *subject) readMark() error {
	if !s.markRead {
		s.mark, s.markErr = s.parent.MarkOf(s.object, s.namespace)
		s.markRead = true
	}
	return s.markErr
}

func (s *subject) hasLabel() bool  { return s.parent.HasLabel(s.object) }
func (s *subject) isApplied() bool { return s.object.GetAnnotations()[s.parent.Applied()] != "" }

func (s *subject) isControlledByParent() bool {
	return s.controller != nil && s.controller.UID == s.parent.GetUID()
}

// lostItsOwner reports whether the object looks like the child of another parent that has lost its owner reference, as
// after a restore from a backup, or if the dependents of its parent were orphaned.
func (s *subject) lostItsOwner() bool {
	label, annotations := s.object.GetLabels()[s.parent.ParentLabel()], s.object.GetAnnotations()
	return s.controller == nil && label != "" && label != string(s.parent.GetUID()) && s.isApplied() &&
		annotations[s.parent.Self()] == ""
}

// isConfirmed reports whether someone who can update the object has confirmed that it belongs to the parent, because
// the parent has been restored from a backup.
func (s *subject) isConfirmed() bool {
	namesParent := s.child.isNamedBy(s.object.GetAnnotations()[s.parent.Applied()])
	confirmed, err := s.parent.isConfirmed(s.object, namesParent, s.namespace)
	s.confirmed = err
	return confirmed && err == nil
}

// claimRule is a row of claimRules.
type claimRule struct {
	when  string
	is    func(*subject) bool
	claim Claim
	why   func(*subject) error // of Refuse
}

func because(err error) func(*subject) error { return func(*subject) error { return err } }

// claimRules decide whether an existing object with the name of a desired child may be changed.
var claimRules = []claimRule{
	{
		when:  "it has another controller",
		is:    func(s *subject) bool { return s.controller != nil && !s.isControlledByParent() },
		claim: Refuse, why: func(s *subject) error {
			return fmt.Errorf("%w: its controller is %s %s with UID %s",
				ErrNotOwned, s.controller.Kind, s.controller.Name, s.controller.UID)
		},
	},
	{
		when: "the parent controls it, and its label or its annotation shows that this Reconciler has written it",
		is: func(s *subject) bool { // a user may have edited the label
			return s.canReach && s.isControlledByParent() && (s.hasLabel() || s.isApplied())
		},
		claim: Own,
	},
	{
		when:  "it has the label of the parent, and a user has removed the owner reference",
		is:    func(s *subject) bool { return s.canReach && s.controller == nil && s.hasLabel() },
		claim: Take,
	},
	{
		when: "it has lost its owner reference to an earlier parent, and someone has confirmed that it belongs to this one",
		is: func(s *subject) bool {
			return s.canReach && s.lostItsOwner() && !s.child.Adopt && s.isConfirmed()
		},
		claim: Take,
	},
	{
		when:  "it has lost its owner reference to an earlier parent",
		is:    func(s *subject) bool { return s.canReach && s.lostItsOwner() && !s.child.Adopt },
		claim: Refuse, why: (*subject).unconfirmed,
	},
	{
		when:  "a later version has written its mark",
		is:    func(s *subject) bool { return errors.Is(s.readMark(), ErrNewerFormat) },
		claim: Refuse, why: func(s *subject) error { return fmt.Errorf("%w: %w", ErrNotOwned, s.markErr) },
	},
	{
		when:  "nothing shows whether its mark is that of the parent",
		is:    func(s *subject) bool { return s.readMark() != nil },
		claim: Refuse, why: func(s *subject) error { return s.markErr },
	},
	{
		when:  "it has the mark of the parent, like the desired child",
		is:    func(s *subject) bool { return s.has(MarkOfParent) && s.child.Marked },
		claim: Own,
	},
	{
		when:  "it has the mark of the parent, and the desired child has an owner reference",
		is:    func(s *subject) bool { return s.has(MarkOfParent) },
		claim: Take,
	},
	{
		when:  "it has the mark of an earlier parent, whose children the parent inherits, and its UID must be written",
		is:    func(s *subject) bool { return s.has(MarkOfInherited) },
		claim: Take,
	},
	{
		when:  "it has the mark of an earlier parent with the same name, whose children the parent does not inherit",
		is:    func(s *subject) bool { return s.has(MarkOfPredecessor) },
		claim: Refuse, why: (*subject).predecessor,
	},
	{
		when: "its label is that of the parent's children, and its annotations are not",
		is: func(s *subject) bool {
			return s.has(MarkOfOther) && s.parent.Selector().Matches(labels.Set(s.object.GetLabels()))
		},
		claim: Refuse, why: because(ErrInvalidMark),
	},
	{
		when:  "it has the mark of another parent",
		is:    func(s *subject) bool { return s.has(MarkOfOther) },
		claim: Refuse, why: because(fmt.Errorf("%w: it is the child of another parent", ErrNotOwned)),
	},
	{
		when:  "no earlier row applies, and the desired child has Adopt",
		is:    func(s *subject) bool { return s.child.Adopt },
		claim: Take,
	},
	{
		when:  "an earlier parent with the same name has retained it",
		is:    func(s *subject) bool { return s.parent.IsRetained(s.object) },
		claim: Refuse, why: because(ErrRetained),
	},
	{
		when:  "no earlier row applies",
		is:    func(*subject) bool { return true },
		claim: Refuse, why: because(ErrAdoptionNotEnabled),
	},
}

// ClaimOf returns whether an existing object with the name of a desired child may be changed. The error of Refuse wraps
// ErrNotOwned, unless it is that of the namespace.
func ClaimOf(p *Parent, child *Child, object metav1.Object, namespace Namespace) (Claim, error) {
	s := newSubject(p, child, object, namespace)
	for _, rule := range claimRules {
		switch {
		case !rule.is(s):
		case rule.claim == Refuse:
			return Refuse, rule.why(s)
		default:
			return rule.claim, nil
		}
	}
	return Refuse, ErrNotOwned
}

// unconfirmed returns the error for an object that was a child, which nobody has confirmed.
func (s *subject) unconfirmed() error {
	if s.confirmed != nil {
		return s.confirmed
	}
	return fmt.Errorf("%w; if the parent has been restored from a backup, set the annotation %s=%s, the UID of the "+
		"parent, on the object", ErrNotConfirmed, s.parent.Restored(), s.parent.GetUID())
}

// predecessor returns the error for an object with the mark of an earlier parent with the same name.
func (s *subject) predecessor() error {
	restored, uid := s.parent.Restored(), s.parent.GetUID()
	advice := fmt.Sprintf("set the annotation %s=%s, the UID of the parent, on the object", restored, uid)
	if s.parent.GetNamespace() != "" {
		switch namespace, err := s.namespace(); {
		case err != nil:
			return err
		case namespace == "":
			advice += ", or permit the controller to get its namespace"
		default:
			advice = fmt.Sprintf("set the annotation %s=%s, the UID of the parent's namespace, on the object",
				restored, namespace)
		}
	}
	return fmt.Errorf("%w with the same name; if the parent has been restored from a backup, %s", ErrNotConfirmed, advice)
}

// deletionRule is a row of deletionRules.
type deletionRule struct {
	when    string
	is      func(*subject) bool
	isChild bool
}

// deletionRules decide whether an object is a child that must be deleted if it is not desired. If owner references have
// an effect, the object's controller must be the parent, and its label must contain the parent's UID: other controllers
// can have children of the same parent, which lack this Reconciler's label. Otherwise, the object must have the
// parent's mark.
var deletionRules = []deletionRule{
	{
		when: "it is retained",
		is:   func(s *subject) bool { return s.parent.IsRetained(s.object) },
	},
	{
		when: "the parent controls it, and it has the label of the parent",
		is: func(s *subject) bool {
			return s.canReach && s.isControlledByParent() && s.hasLabel()
		},
		isChild: true,
	},
	{
		when: "an owner reference would have an effect, and the object lacks it or the label",
		is:   func(s *subject) bool { return s.canReach },
	},
	{
		when: "it has a controller",
		is:   func(s *subject) bool { return s.controller != nil },
	},
	{
		when:    "it has the mark of the parent",
		is:      func(s *subject) bool { return s.has(MarkOfParent) },
		isChild: true,
	},
	{
		when:    "it has the mark of an earlier parent, whose children the parent inherits",
		is:      func(s *subject) bool { return s.has(MarkOfInherited) },
		isChild: true,
	},
}

// IsChild reports whether an object is a child that must be deleted if it is not desired.
func IsChild(p *Parent, object metav1.Object, namespace Namespace) (bool, error) {
	s := newSubject(p, nil, object, namespace)
	for _, rule := range deletionRules {
		if rule.is(s) {
			return rule.isChild, nil
		}
	}
	return false, s.markErr
}

// IsExactly reports whether an object is a marked child of exactly this parent. The children of a parent that was
// restored can belong to several.
func IsExactly(p *Parent, object metav1.Object, namespace Namespace) (bool, error) {
	s := newSubject(p, nil, object, namespace)
	if p.IsRetained(object) || s.controller != nil || s.canReach {
		return false, nil
	}
	isExactly := s.has(MarkOfParent)
	return isExactly, s.markErr
}

// adopts reports whether an apply takes over an object that was not created for the parent. The annotation
// <name>/applied alone does not show this, because a copy of a child has the same annotations.
func adopts(p *Parent, child *Child, object metav1.Object, namespace Namespace) (bool, error) {
	s := newSubject(p, child, object, namespace)
	switch {
	case s.canReach && (s.isControlledByParent() || s.hasLabel()):
		return !s.isApplied(), nil
	case s.lostItsOwner() && s.isConfirmed():
		return false, nil // it was created for the parent before the restore
	}
	isNew := s.has(NoMark)
	return isNew, s.markErr
}

// recreationCandidate is a child that the API server has refused to change, and that could be deleted and created
// again.
type recreationCandidate struct {
	*subject
	current *unstructured.Unstructured
	known   *recreation
	now     moment
}

func (r recreationCandidate) annotation(key string) string { return r.current.GetAnnotations()[key] }

// recreationRule is a row of recreationRules.
type recreationRule struct {
	when     string
	is       func(recreationCandidate) bool
	obstacle func(recreationCandidate) string
}

// recreationRules decide whether a child that could be created in its desired state, but not be changed into it, must
// not be deleted.
var recreationRules = []recreationRule{
	{
		when: "it was adopted",
		is:   func(r recreationCandidate) bool { return r.annotation(r.parent.Adopted()) != "" },
		obstacle: func(recreationCandidate) string {
			return "it was adopted"
		},
	},
	{
		when:     "it has finalizers",
		is:       func(r recreationCandidate) bool { return len(r.current.GetFinalizers()) > 0 },
		obstacle: func(r recreationCandidate) string { return "it has finalizers: " + FirstOf(r.current.GetFinalizers()) },
	},
	{
		when: "it is a StatefulSet that deletes its volumes",
		is: func(r recreationCandidate) bool {
			deleted, _, _ := unstructured.NestedString(r.current.Object,
				"spec", "persistentVolumeClaimRetentionPolicy", "whenDeleted")
			return r.child.GroupKind == schema.GroupKind{Group: "apps", Kind: "StatefulSet"} && deleted == "Delete"
		},
		obstacle: func(recreationCandidate) string { return "its persistentVolumeClaimRetentionPolicy deletes volumes" },
	},
	{
		when:     "it was recreated for the same desired state",
		is:       func(r recreationCandidate) bool { return r.annotation(r.parent.Recreated()) == r.child.Hash },
		obstacle: func(recreationCandidate) string { return "it was already recreated for this desired state" },
	},
	{
		when: "it was recreated a short time ago, by any leader",
		is: func(r recreationCandidate) bool {
			return r.annotation(r.parent.Recreated()) != "" &&
				r.now.since(r.current.GetCreationTimestamp().Time) < recreationPeriod
		},
		obstacle: recreationCandidate.tooSoon,
	},
	{
		when:     "this run has recreated it a short time ago",
		is:       func(r recreationCandidate) bool { return r.now.since(r.known.deleted) < recreationPeriod },
		obstacle: recreationCandidate.tooSoon,
	},
}

func (recreationCandidate) tooSoon() string {
	return fmt.Sprintf("it was already recreated in the last %s", recreationPeriod)
}

// obstacle returns why a child must not be recreated, or "".
func (r recreationCandidate) obstacle() (string, error) {
	switch isChild, err := IsChild(r.parent, r.current, r.namespace); {
	case err != nil:
		return "", err
	case !isChild:
		return "its owner reference or its labels have been changed", nil
	}
	for _, rule := range recreationRules {
		if rule.is(r) {
			return rule.obstacle(r), nil
		}
	}
	return "", nil
}
