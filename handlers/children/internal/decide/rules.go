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
	*Parent
	child      *Child // nil for the rules about deletions
	object     metav1.Object
	namespace  Namespace
	controller *metav1.OwnerReference
	canReach   bool // whether an owner reference to the parent has an effect
	marked     bool // whether mark is set
	mark       Mark
	err        error // why the mark cannot be read
}

func (p *Parent) subject(child *Child, object metav1.Object, namespace Namespace) *subject {
	return &subject{
		Parent: p, child: child, object: object, namespace: namespace,
		controller: metav1.GetControllerOfNoCopy(object), canReach: ownerref.CanReach(p, object.GetNamespace()),
	}
}

// has reports whether the object has a mark. The mark is read once.
func (s *subject) has(mark Mark) bool {
	if !s.marked {
		s.mark, s.err = s.MarkOf(s.object, s.namespace)
		s.marked = true
	}
	return s.err == nil && s.mark == mark
}

func (s *subject) isControlledByParent() bool {
	return s.controller != nil && s.controller.UID == s.GetUID()
}

// claimRule is a row of claimRules.
type claimRule struct {
	when  string
	is    func(*subject) bool
	claim Claim
	why   func(*subject) error // of Refuse; nil for an error means Take
}

func because(err error) func(*subject) error { return func(*subject) error { return err } }

// claimRules decide whether an existing object with the name of a desired child may be changed.
var claimRules = []claimRule{
	{
		when:  "it has another controller",
		is:    func(s *subject) bool { return s.controller != nil && s.controller.UID != s.GetUID() },
		claim: Refuse, why: func(s *subject) error {
			return fmt.Errorf("%w: its controller is %s %s with UID %s",
				ErrNotOwned, s.controller.Kind, s.controller.Name, s.controller.UID)
		},
	},
	{
		when: "the parent controls it, and its label or its annotation shows that this Reconciler has written it",
		is: func(s *subject) bool { // a user may have edited the label
			return s.canReach && s.controller != nil &&
				(s.HasLabel(s.object) || s.object.GetAnnotations()[s.Applied()] != "")
		},
		claim: Own,
	},
	{
		when:  "it has the label of the parent, and a user has removed the owner reference",
		is:    func(s *subject) bool { return s.canReach && s.controller == nil && s.HasLabel(s.object) },
		claim: Take,
	},
	{
		when: "it looks like the child of another parent that has lost its owner reference",
		is: func(s *subject) bool {
			return s.canReach && s.controller == nil && s.wasChild(s.object) && !s.child.Adopt
		},
		claim: Refuse, why: (*subject).unconfirmed,
	},
	{
		when:  "a later version has written its mark",
		is:    func(s *subject) bool { return !s.has(NoMark) && errors.Is(s.err, ErrNewerFormat) },
		claim: Refuse, why: func(s *subject) error { return fmt.Errorf("%w: %w", ErrNotOwned, s.err) },
	},
	{
		when:  "nothing shows whether its mark is that of the parent",
		is:    func(s *subject) bool { return !s.has(NoMark) && s.err != nil },
		claim: Refuse, why: func(s *subject) error { return s.err },
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
		when:  "it has the mark of a parent that was restored, and the UID of the parent must be written",
		is:    func(s *subject) bool { return s.has(MarkOfRestored) },
		claim: Take,
	},
	{
		when:  "it has the mark of an earlier parent with the same name",
		is:    func(s *subject) bool { return s.has(MarkOfPredecessor) },
		claim: Refuse, why: (*subject).predecessor,
	},
	{
		when: "its label is that of the parent's children, and its annotations are not",
		is: func(s *subject) bool {
			return s.has(MarkOfOther) && s.Selector().Matches(labels.Set(s.object.GetLabels()))
		},
		claim: Refuse, why: because(ErrInvalidMark),
	},
	{
		when:  "it has the mark of another parent",
		is:    func(s *subject) bool { return s.has(MarkOfOther) },
		claim: Refuse, why: because(fmt.Errorf("%w: it is the child of another parent", ErrNotOwned)),
	},
	{
		when:  "it belongs to nobody, and the desired child has Adopt",
		is:    func(s *subject) bool { return s.child.Adopt },
		claim: Take,
	},
	{
		when:  "an earlier parent with the same name has retained it",
		is:    func(s *subject) bool { return s.IsRetained(s.object) },
		claim: Refuse, why: because(ErrRetained),
	},
	{
		when:  "it belongs to nobody",
		is:    func(*subject) bool { return true },
		claim: Refuse, why: because(ErrAdoptionNotEnabled),
	},
}

// ClaimOf returns whether an existing object with the name of a desired child may be changed. The error of Refuse wraps
// ErrNotOwned, unless it is that of the namespace.
func (p *Parent) ClaimOf(child *Child, object metav1.Object, namespace Namespace) (Claim, error) {
	s := p.subject(child, object, namespace)
	for _, rule := range claimRules {
		if !rule.is(s) {
			continue
		}
		if rule.why != nil {
			if err := rule.why(s); err != nil {
				return Refuse, err
			}
			return Take, nil
		}
		return rule.claim, nil
	}
	return Refuse, ErrNotOwned
}

// wasChild reports whether an object looks like the child of another parent that has lost its owner reference, as after
// a restore from a backup, or if the dependents of its parent were orphaned.
func (p *Parent) wasChild(object metav1.Object) bool {
	label, annotations := object.GetLabels()[p.ParentLabel()], object.GetAnnotations()
	return label != "" && label != string(p.GetUID()) && annotations[p.Applied()] != "" && annotations[p.Self()] == ""
}

// unconfirmed returns nil if someone who can update an object that was a child has confirmed that it belongs to the
// parent, because the parent has been restored from a backup. See isConfirmed.
func (s *subject) unconfirmed() error {
	confirmed, err := s.isConfirmed(s.object, s.child.isNamedBy(s.object.GetAnnotations()[s.Applied()]), s.namespace)
	if err != nil || confirmed {
		return err
	}
	return fmt.Errorf("%w; if the parent has been restored from a backup, set the annotation %s=%s, the UID of the "+
		"parent, on the object", ErrNotConfirmed, s.Restored(), s.GetUID())
}

// predecessor returns the error for an object with the mark of an earlier parent with the same name.
func (s *subject) predecessor() error {
	advice := fmt.Sprintf("set the annotation %s=%s, the UID of the parent, on the object", s.Restored(), s.GetUID())
	if s.GetNamespace() != "" {
		switch uid, err := s.namespace(); {
		case err != nil:
			return err
		case uid == "":
			advice += ", or permit the controller to get its namespace"
		default:
			advice = fmt.Sprintf("set the annotation %s=%s, the UID of the parent's namespace, on the object",
				s.Restored(), uid)
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
		is:   func(s *subject) bool { return s.IsRetained(s.object) },
	},
	{
		when: "the parent controls it, and it has the label of the parent",
		is: func(s *subject) bool {
			return s.canReach && s.isControlledByParent() && s.HasLabel(s.object)
		},
		isChild: true,
	},
	{
		when: "an owner reference would have an effect, and there is none, or no label",
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
		when:    "it has the mark of a parent that was restored",
		is:      func(s *subject) bool { return s.has(MarkOfRestored) },
		isChild: true,
	},
}

// IsChild reports whether an object is a child that must be deleted if it is not desired.
func (p *Parent) IsChild(object metav1.Object, namespace Namespace) (bool, error) {
	s := p.subject(nil, object, namespace)
	for _, rule := range deletionRules {
		if rule.is(s) {
			return rule.isChild, nil
		}
	}
	return false, s.err
}

// IsExactly reports whether an object is a marked child of exactly this parent. The children of a parent that was
// restored can belong to several.
func (p *Parent) IsExactly(object metav1.Object, namespace Namespace) (bool, error) {
	s := p.subject(nil, object, namespace)
	if s.IsRetained(object) || s.controller != nil || s.canReach {
		return false, nil
	}
	isExactly := s.has(MarkOfParent)
	return isExactly, s.err
}

// Adopts reports whether an apply takes over an object that was not created for the parent. The annotation
// <name>/applied alone does not show this, because a copy of a child has the same annotations.
func (p *Parent) adopts(child *Child, object metav1.Object, namespace Namespace) (bool, error) {
	s := p.subject(child, object, namespace)
	switch {
	case s.canReach && (s.isControlledByParent() || p.HasLabel(object)):
		return object.GetAnnotations()[p.Applied()] == "", nil
	case s.controller == nil && p.wasChild(object) && s.unconfirmed() == nil:
		return false, nil // it was created for the parent before the restore
	}
	isNew := s.has(NoMark)
	return isNew, s.err
}

// recreated is a child that the API server has refused to change, and that could be deleted and created again.
type recreated struct {
	*subject
	current *unstructured.Unstructured
	known   *recreation
	now     moment
}

func (r recreated) annotation(key string) string { return r.current.GetAnnotations()[key] }

// recreationRule is a row of recreationRules.
type recreationRule struct {
	when     string
	is       func(recreated) bool
	obstacle func(recreated) string
}

// recreationRules decide whether a child that could be created in its desired state, but not be changed into it, must
// not be deleted.
var recreationRules = []recreationRule{
	{
		when: "it was adopted",
		is:   func(r recreated) bool { return r.annotation(r.Adopted()) != "" },
		obstacle: func(recreated) string {
			return "it was adopted"
		},
	},
	{
		when:     "it has finalizers",
		is:       func(r recreated) bool { return len(r.current.GetFinalizers()) > 0 },
		obstacle: func(r recreated) string { return "it has finalizers: " + FirstOf(r.current.GetFinalizers()) },
	},
	{
		when: "it is a StatefulSet that deletes its volumes",
		is: func(r recreated) bool {
			deleted, _, _ := unstructured.NestedString(r.current.Object,
				"spec", "persistentVolumeClaimRetentionPolicy", "whenDeleted")
			return r.child.GroupKind == schema.GroupKind{Group: "apps", Kind: "StatefulSet"} && deleted == "Delete"
		},
		obstacle: func(recreated) string { return "its persistentVolumeClaimRetentionPolicy deletes volumes" },
	},
	{
		when:     "it was recreated for the same desired state",
		is:       func(r recreated) bool { return r.annotation(r.Recreated()) == r.child.Hash },
		obstacle: func(recreated) string { return "it was already recreated for this desired state" },
	},
	{
		when: "it was recreated a short time ago, by any leader",
		is: func(r recreated) bool {
			return r.annotation(r.Recreated()) != "" && r.now.since(r.current.GetCreationTimestamp().Time) < recreationPeriod
		},
		obstacle: recreated.tooSoon,
	},
	{
		when:     "this run has recreated it a short time ago",
		is:       func(r recreated) bool { return r.now.since(r.known.deleted) < recreationPeriod },
		obstacle: recreated.tooSoon,
	},
}

func (recreated) tooSoon() string {
	return fmt.Sprintf("it was already recreated in the last %s", recreationPeriod)
}

// obstacle returns why a child must not be recreated, or "".
func (r recreated) obstacle() (string, error) {
	switch isChild, err := r.IsChild(r.current, r.namespace); {
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
