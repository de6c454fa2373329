package children

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/handlers/internal/applied"
	"github.com/dynamic-controller/engine/handlers/internal/ownerref"
)

// Selector returns a selector for the children of a parent, including those in other namespaces, by their label
// <name>/parent. The name is the [Config].Name of the parent's [Reconciler]. Anyone who can update an object can set
// the label.
func Selector(parent metav1.Object, kind schema.GroupKind, name string) labels.Selector {
	requirement, err := labels.NewRequirement(name+"/parent", selection.In, labelValues(parent, kind))
	if err != nil {
		return labels.Nothing() // a UID that is not a label value
	}
	return labels.NewSelector().Add(*requirement)
}

// BucketLabel returns the label that contains the bucket of the parent's type on the children of Reconcilers with the
// given [Config.Name], if [Config.LabelBuckets] is set. It is the argument of [dynamiccontroller.WithBucketLabel].
func BucketLabel(name string) string { return name + "/bucket" }

// labelValues returns the values of the label <name>/parent on the children of a parent: its UID on children with an
// owner reference, and a hash of its kind, namespace and name on marked children. The hash does not change if the
// parent is restored from a backup with another UID.
func labelValues(parent metav1.Object, kind schema.GroupKind) []string {
	return []string{string(parent.GetUID()), identityLabel(identityOf(parent, kind))}
}

// identityOf returns the kind, the namespace and the name of a parent.
func identityOf(parent metav1.Object, kind schema.GroupKind) string {
	return kind.String() + "/" + cache.MetaObjectToName(parent).String()
}

func identityLabel(identity string) string {
	digest, _ := applied.Digest(identity) // a string can always be encoded
	return digest
}

func (c *call) identity() string {
	return identityOf(c.parent, c.parent.GroupVersionKind().GroupKind())
}

func (c *call) selector() labels.Selector {
	return Selector(c.parent, c.parent.GroupVersionKind().GroupKind(), c.config.Name)
}

// hasLabel reports whether an object has the label of the parent's children with an owner reference.
func (c *call) hasLabel(object metav1.Object) bool {
	return object.GetLabels()[c.parentLabel()] == string(c.parent.GetUID())
}

func (c *call) isRetained(object metav1.Object) bool {
	return object.GetAnnotations()[c.retainedKey()] != ""
}

// isChild reports whether an object is a child that must be deleted if it is not desired. If owner references have an
// effect, the object's controller must be the parent, and its label must contain the parent's UID: other controllers
// can have children of the same parent, which lack this Reconciler's label. Otherwise, the object must have the
// parent's mark. A retained object is not a child.
func (c *call) isChild(ctx context.Context, object metav1.Object) (bool, error) {
	controller := metav1.GetControllerOfNoCopy(object)
	switch {
	case c.isRetained(object):
		return false, nil
	case ownerref.CanReach(c.parent, object.GetNamespace()):
		return controller != nil && controller.UID == c.parent.GetUID() && c.hasLabel(object), nil
	case controller != nil:
		return false, nil
	}
	mark, err := c.markOf(ctx, object)
	return mark == markOfParent || mark == markOfRestored, err
}

// isOwned reports whether the parent owns an existing object with the name of a desired child. If it returns false
// without an error, the object can be adopted. If the object cannot be adopted, the error wraps ErrNotOwned.
func (c *call) isOwned(ctx context.Context, child *child, current metav1.Object) (bool, error) {
	controller, canReach := metav1.GetControllerOfNoCopy(current), ownerref.CanReach(c.parent, current.GetNamespace())
	switch {
	case controller != nil && controller.UID != c.parent.GetUID():
		return false, fmt.Errorf("%w: its controller is %s %s with UID %s",
			ErrNotOwned, controller.Kind, controller.Name, controller.UID)
	case controller != nil && canReach && (c.hasLabel(current) || current.GetAnnotations()[c.appliedKey()] != ""):
		return true, nil // a user may have edited the label
	case controller == nil && canReach && c.hasLabel(current):
		return false, nil // a user removed the owner reference
	case controller == nil && canReach && c.wasChild(current) && !child.Adopt:
		return false, c.checkConfirmed(child, current)
	}
	mark, err := c.markOf(ctx, current)
	switch {
	case errors.Is(err, ErrNewerFormat):
		return false, fmt.Errorf("%w: %w", ErrNotOwned, err)
	case err != nil:
		return false, err
	case mark == markOfParent:
		return child.marked, nil
	case mark == markOfRestored:
		return false, nil // a write with the parent's UID is required
	case mark == markOfPredecessor:
		return false, c.predecessorError(ctx)
	case mark == markOfOther && c.selector().Matches(labels.Set(current.GetLabels())):
		return false, ErrInvalidMark
	case mark == markOfOther:
		return false, fmt.Errorf("%w: it is the child of another parent", ErrNotOwned)
	case child.Adopt:
		return false, nil
	case c.isRetained(current):
		return false, ErrRetained
	}
	return false, ErrAdoptionNotEnabled
}

// wasChild reports whether an object looks like the child of another parent that has lost its owner reference, as after
// a restore from a backup, or if the dependents of its parent were orphaned.
func (c *call) wasChild(object metav1.Object) bool {
	label, annotations := object.GetLabels()[c.parentLabel()], object.GetAnnotations()
	return label != "" && label != string(c.parent.GetUID()) && annotations[c.appliedKey()] != "" &&
		annotations[c.selfKey()] == ""
}

// checkConfirmed returns nil if someone who can update an object that was a child has confirmed that it belongs to the
// parent, because the parent has been restored from a backup. See isConfirmed.
func (c *call) checkConfirmed(child *child, object metav1.Object) error {
	confirmed, err := c.isConfirmed(object, child.isNamedBy(object.GetAnnotations()[c.appliedKey()]))
	if err != nil || confirmed {
		return err
	}
	return fmt.Errorf("%w; if the parent has been restored from a backup, set the annotation %s=%s, the UID of the "+
		"parent, on the object", ErrNotConfirmed, c.restoredKey(), c.parent.GetUID())
}

// isConfirmed reports whether the annotation <name>/restored of an object without a controller contains the UID of the
// parent or, if the marks of the object name the parent, the UID of the parent's namespace. A parent or a namespace
// that is created later has another UID.
func (c *call) isConfirmed(object metav1.Object, namesParent bool) (bool, error) {
	switch value := types.UID(object.GetAnnotations()[c.restoredKey()]); {
	case value == "":
		return false, nil
	case value == c.parent.GetUID():
		return true, nil
	case !namesParent || c.parent.GetNamespace() == "":
		return false, nil
	default:
		namespace, err := c.namespaceUID()
		return namespace == value, err
	}
}

// predecessorError returns the error for an object with the mark of an earlier parent with the same name.
func (c *call) predecessorError(ctx context.Context) error {
	advice := fmt.Sprintf("set the annotation %s=%s, the UID of the parent, on the object", c.restoredKey(),
		c.parent.GetUID())
	if c.parent.GetNamespace() != "" {
		switch uid, err := c.namespaceUID(); {
		case err != nil:
			return err
		case uid == "":
			advice += ", or permit the controller to get its namespace"
		default:
			advice = fmt.Sprintf("set the annotation %s=%s, the UID of the parent's namespace, on the object",
				c.restoredKey(), uid)
		}
	}
	return fmt.Errorf("%w with the same name; if the parent has been restored from a backup, %s", ErrNotConfirmed, advice)
}
