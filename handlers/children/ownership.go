package children

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/handlers/internal/ownerref"
)

// hasLabel reports whether an object has the label of the parent's children.
func (c *call) hasLabel(object metav1.Object) bool {
	return object.GetLabels()[c.parentLabel()] == string(c.parent.GetUID())
}

// hasAnyMark reports whether an object has the mark of any parent: the label, and the annotation with the object's own
// name. A copy of a child, for example from a backup, has the same labels and annotations but a different name or
// namespace.
func (c *call) hasAnyMark(object metav1.Object) bool {
	return object.GetLabels()[c.parentLabel()] != "" &&
		object.GetAnnotations()[c.selfKey()] == cache.MetaObjectToName(object).String()
}

// isChild reports whether the parent controls an object. Such an object must be deleted if it is not desired. The
// parent controls an object if the object's controller reference names the parent or, where owner references have no
// effect, if the object has the parent's mark. A retained object is never controlled.
func (c *call) isChild(object metav1.Object) bool {
	controller := metav1.GetControllerOfNoCopy(object)
	if ownerref.CanReach(c.parent, object.GetNamespace()) {
		return controller != nil && controller.UID == c.parent.GetUID()
	}
	return controller == nil && c.hasLabel(object) && c.hasAnyMark(object) &&
		object.GetAnnotations()[c.retainedKey()] == ""
}

// retainer identifies the parent that retains a child. Later parents with the same name have the same retainer.
func (c *call) retainer() string { return c.id.GVR.GroupResource().String() + "/" + c.id.NamespacedKey }

// isOwned reports whether the parent owns an existing object with the name of a desired child. If it returns false
// without an error, the object can be adopted. If the object cannot be adopted, the error wraps ErrNotOwned.
func (c *call) isOwned(child *child, current metav1.Object) (bool, error) {
	controller := metav1.GetControllerOfNoCopy(current)
	switch {
	case controller != nil && controller.UID != c.parent.GetUID():
		return false, fmt.Errorf("%w: its controller is %s %s with UID %s",
			ErrNotOwned, controller.Kind, controller.Name, controller.UID)
	case controller != nil && ownerref.CanReach(c.parent, current.GetNamespace()):
		return true, nil
	case c.hasLabel(current) && c.hasAnyMark(current):
		return child.marked, nil
	case c.hasLabel(current) && ownerref.CanReach(c.parent, current.GetNamespace()):
		return false, nil // a user removed the owner reference or the mark
	case c.hasAnyMark(current) && current.GetAnnotations()[c.retainedKey()] != c.retainer():
		return false, fmt.Errorf("%w: it is the child of another parent", ErrNotOwned)
	case child.Adopt:
		return false, nil
	}
	return false, ErrAdoptionNotEnabled
}
