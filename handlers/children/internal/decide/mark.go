package decide

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// parentRecord is the annotation <name>/parent of marked children. It identifies their parent.
type parentRecord struct {
	Format   int       `json:"format,omitempty"` // omitted for format 1
	Identity string    `json:"parent"`           // the result of IdentityOf
	UID      types.UID `json:"uid"`
	// NamespaceUID is the UID of the parent's namespace. It is empty for retained children, and if the Reconciler cannot
	// read namespaces.
	NamespaceUID types.UID `json:"namespaceUID,omitempty"`
	// As is the name of the Identity that wrote the child.
	As string `json:"as,omitempty"`
}

// Record returns the value of the annotation <name>/parent of a marked child. The namespace is the UID of the parent's
// namespace. It is empty for retained children, and if it is not known.
func (p *Parent) Record(namespace types.UID) (string, error) {
	record := parentRecord{Identity: p.Identity(), UID: p.GetUID(), NamespaceUID: namespace, As: p.Writer}
	text, err := json.Marshal(record)
	return string(text), err
}

// Mark is the kind of mark that an object has.
type Mark int

const (
	// NoMark means that the object has no mark.
	NoMark Mark = iota
	// MarkOfParent is the mark of the parent.
	MarkOfParent
	// MarkOfRestored is the mark of an earlier parent with the same name, whose children belong to the parent. The parent
	// has been restored from a backup.
	MarkOfInherited
	// MarkOfPredecessor is the mark of an earlier parent with the same name, whose children do not belong to the parent.
	MarkOfPredecessor
	// MarkOfOther is any other mark, such as that of a parent with another name.
	MarkOfOther
)

// MarkOf returns the mark of an object. A mark consists of the label <name>/parent and the annotations <name>/parent
// and <name>/self. The latter contains the object's own name. A copy of a child has the same labels and annotations but
// a different name or namespace. The namespace is that of the parent; see Namespace.
//
// Before version 0.1.0, marked children had the parent's UID as the label, and no annotation <name>/parent. This is
// format 0. It identifies the parent as well as the UID in a record does.
func (p *Parent) MarkOf(object metav1.Object, namespace Namespace) (Mark, error) {
	var record parentRecord
	annotations := object.GetAnnotations()
	label := object.GetLabels()[p.ParentLabel()]
	if label == "" || annotations[p.Self()] != NameOf(object) {
		return NoMark, nil
	}
	text := annotations[p.ParentLabel()]
	if text == "" && p.HasLabel(object) {
		return MarkOfParent, nil // format 0
	}
	err := json.Unmarshal([]byte(text), &record)
	if err := CheckFormat(p.ParentLabel(), record.Format, MarkFormat); err != nil {
		return NoMark, err
	}
	switch {
	case err != nil || record.Identity != p.Identity() || label != IdentityLabel(record.Identity):
		return MarkOfOther, nil
	case record.UID == p.GetUID():
		return MarkOfParent, nil
	}
	inherits, err := p.inherits(record, object, namespace)
	switch {
	case err != nil:
		return NoMark, err
	case inherits:
		return MarkOfInherited, nil
	case p.IsRetained(object):
		return NoMark, nil // can be adopted
	}
	return MarkOfPredecessor, nil
}

// inherits reports whether the children of an earlier parent with the same name belong to the parent. If the
// namespace is still the same, and the same identity writes the children, the parent can only have been deleted and
// created again by users of that namespace. Otherwise, another tenant could have created the namespace or the type
// again. Someone who can update the child must then confirm that the parent has been restored from a backup.
func (p *Parent) inherits(record parentRecord, object metav1.Object, namespace Namespace) (bool, error) {
	if p.GetNamespace() != "" && record.NamespaceUID != "" && record.As == p.Writer {
		if now, err := namespace(); err != nil || now == record.NamespaceUID {
			return err == nil, err
		}
	}
	return p.isConfirmed(object, true, namespace)
}

// isConfirmed reports whether the annotation <name>/restored of an object without a controller contains the UID of the
// parent or, if the marks of the object name the parent, the UID of the parent's namespace. A parent or a namespace
// that is created later has another UID.
func (p *Parent) isConfirmed(object metav1.Object, namesParent bool, namespace Namespace) (bool, error) {
	switch value := types.UID(object.GetAnnotations()[p.Restored()]); {
	case value == "":
		return false, nil
	case value == p.GetUID():
		return true, nil
	case !namesParent || p.GetNamespace() == "":
		return false, nil
	default:
		now, err := namespace()
		return now == value, err
	}
}

// MarkedUID returns the UID of the parent in the mark of an object, if the mark names a parent with the same kind,
// namespace and name as the given one, in a format that this version can read. Otherwise, and for a retained child, it
// returns "".
func (n Names) MarkedUID(object, parent metav1.Object, kind schema.GroupKind) types.UID {
	var record parentRecord
	annotations := object.GetAnnotations()
	if json.Unmarshal([]byte(annotations[n.ParentLabel()]), &record) != nil || record.Format > MarkFormat ||
		record.Identity != IdentityOf(parent, kind) ||
		object.GetLabels()[n.ParentLabel()] != IdentityLabel(record.Identity) ||
		annotations[n.Self()] != NameOf(object) || n.IsRetained(object) {
		return ""
	}
	return record.UID
}
