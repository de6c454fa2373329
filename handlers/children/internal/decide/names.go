package decide

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/dynamic-controller/engine/handlers/internal/applied"
)

// Names is the name of a Reconciler. It is the field manager of children and the prefix of the keys of labels,
// annotations and finalizers.
type Names string

// ParentLabel is the key of the label of children that contains the UID of the parent or, on marked children, the
// result of IdentityLabel. It is also the key of the annotation of marked children that contains the record of the
// parent.
func (n Names) ParentLabel() string { return string(n) + "/parent" }

// BucketLabel is the key of the label that contains the bucket of the parent's type.
func (n Names) BucketLabel() string { return string(n) + "/bucket" }

// Applied is the key of the annotation that contains the hash of the desired child.
func (n Names) Applied() string { return string(n) + "/applied" }

// Stage is the key of the annotation that contains the stage of a child after the first one.
func (n Names) Stage() string { return string(n) + "/stage" }

// Self is the key of the annotation that contains the namespace and the name of a marked child.
func (n Names) Self() string { return string(n) + "/self" }

// Restored is the key of the annotation with which users confirm that a child belongs to a restored parent.
func (n Names) Restored() string { return string(n) + "/restored" }

// Retained is the key of the annotation of retained children.
func (n Names) Retained() string { return string(n) + "/retained-by" }

// Adopted is the key of the annotation of children that were not created for the parent.
func (n Names) Adopted() string { return string(n) + "/adopted" }

// Recreated is the key of the annotation that contains the hash of the desired child for which a child was recreated.
func (n Names) Recreated() string { return string(n) + "/recreated" }

// Finalizer is the finalizer of parents.
func (n Names) Finalizer() string { return string(n) + "/children" }

// Inventory is the key of the annotation of parents that lists the kinds of their children.
func (n Names) Inventory() string { return string(n) + "/inventory" }

// Witness is the key of the annotation of parents that contains their UID once they have a witness.
func (n Names) Witness() string { return string(n) + "/witness" }

// Selector returns a selector for the children of a parent, including those in other namespaces.
func (n Names) Selector(parent metav1.Object, kind schema.GroupKind) labels.Selector {
	// The values are the UID of the parent on children with an owner reference, and a hash of its kind, namespace and name
	// on marked children. The hash does not change if the parent is restored from a backup with another UID.
	values := []string{string(parent.GetUID()), IdentityLabel(IdentityOf(parent, kind))}
	requirement, err := labels.NewRequirement(n.ParentLabel(), selection.In, values)
	if err != nil {
		return labels.Nothing() // a UID that is not a label value
	}
	return labels.NewSelector().Add(*requirement)
}

// NameOf returns "namespace/name", or "name" for a cluster-scoped object.
func NameOf(object metav1.Object) string {
	if object.GetNamespace() == "" {
		return object.GetName()
	}
	return object.GetNamespace() + "/" + object.GetName()
}

// IdentityOf returns the kind, the namespace and the name of a parent.
func IdentityOf(parent metav1.Object, kind schema.GroupKind) string {
	return kind.String() + "/" + NameOf(parent)
}

// IdentityLabel returns the result of IdentityOf as a label value.
func IdentityLabel(identity string) string {
	digest, _ := applied.Digest(identity) // a string can always be encoded
	return digest
}

// Parent is the parent of children, as the caller of Reconcile has read it.
type Parent struct {
	*unstructured.Unstructured
	Names
	// Writer is the name of the identity that writes the children.
	Writer string
	// Buckets is set if children have the label Names.BucketLabel.
	Buckets bool
}

// Identity returns the kind, the namespace and the name of the parent.
func (p *Parent) Identity() string {
	return IdentityOf(p, p.GroupVersionKind().GroupKind())
}

// Selector returns a selector for the children of the parent.
func (p *Parent) Selector() labels.Selector {
	return p.Names.Selector(p, p.GroupVersionKind().GroupKind())
}

// HasLabel reports whether an object has the label of the parent's children with an owner reference.
func (p *Parent) HasLabel(object metav1.Object) bool {
	return object.GetLabels()[p.ParentLabel()] == string(p.GetUID())
}

// IsRetained reports whether an object is a retained child of any parent.
func (n Names) IsRetained(object metav1.Object) bool {
	return object.GetAnnotations()[n.Retained()] != ""
}
