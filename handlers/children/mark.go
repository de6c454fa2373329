package children

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// parentRecord is the annotation <name>/parent of marked children. It identifies their parent.
type parentRecord struct {
	Format   int       `json:"format,omitempty"` // omitted for format 1
	Identity string    `json:"parent"`           // the result of identityOf
	UID      types.UID `json:"uid"`
	// NamespaceUID is the UID of the parent's namespace. It is empty for retained children, and if the Reconciler cannot
	// read namespaces.
	NamespaceUID types.UID `json:"namespaceUID,omitempty"`
	// As is the name of the Identity that wrote the child.
	As string `json:"as,omitempty"`
}

// mark is the kind of mark that an object has.
type mark int

const (
	noMark       mark = iota
	markOfParent      // the mark of the parent
	// markOfRestored is the mark of an earlier parent with the same name, whose children belong to the parent. The parent
	// has been restored from a backup.
	markOfRestored
	markOfPredecessor // the mark of an earlier parent with the same name, whose children do not belong to the parent
	markOfOther       // any other mark, such as that of a parent with another name
)

// markOf returns the mark of an object. A mark consists of the label <name>/parent and the annotations <name>/parent
// and <name>/self. The latter contains the object's own name. A copy of a child has the same labels and annotations but
// a different name or namespace.
//
// Before version 0.1.0, marked children had the parent's UID as the label, and no annotation <name>/parent. This is
// format 0. It identifies the parent as well as the UID in a record does.
func (c *call) markOf(ctx context.Context, object metav1.Object) (mark, error) {
	var record parentRecord
	annotations := object.GetAnnotations()
	label := object.GetLabels()[c.parentLabel()]
	if label == "" || annotations[c.selfKey()] != cache.MetaObjectToName(object).String() {
		return noMark, nil
	}
	text := annotations[c.parentLabel()]
	if text == "" && c.hasLabel(object) {
		return markOfParent, nil // format 0
	}
	err := json.Unmarshal([]byte(text), &record)
	if err := checkFormat(c.parentLabel(), record.Format, markFormat); err != nil {
		return noMark, err
	}
	switch {
	case err != nil || record.Identity != c.identity() || label != identityLabel(record.Identity):
		return markOfOther, nil
	case record.UID == c.parent.GetUID():
		return markOfParent, nil
	}
	restored, err := c.isRestored(record, object)
	switch {
	case err != nil:
		return noMark, err
	case restored:
		return markOfRestored, nil
	case c.isRetained(object):
		return noMark, nil // can be adopted
	}
	return markOfPredecessor, nil
}

// MarkedUID returns the UID of the parent in the mark of an object, if the mark names a parent with the same kind,
// namespace and name as the given one, in a format that this version can read. Otherwise, and for a retained child, it
// returns "". Compare it with the UIDs of existing parents to find children that have outlived their parent. The name
// is the [Config].Name of the parent's [Reconciler]. Anyone who can create an object can forge a mark.
func MarkedUID(object, parent metav1.Object, kind schema.GroupKind, name string) types.UID {
	var record parentRecord
	key, annotations := name+"/parent", object.GetAnnotations()
	if json.Unmarshal([]byte(annotations[key]), &record) != nil || record.Format > markFormat ||
		record.Identity != identityOf(parent, kind) || object.GetLabels()[key] != identityLabel(record.Identity) ||
		annotations[name+"/self"] != cache.MetaObjectToName(object).String() || annotations[name+"/retained-by"] != "" {
		return ""
	}
	return record.UID
}

// isRestored reports whether the children of an earlier parent with the same name belong to the parent. If the
// namespace is still the same, and the same identity writes the children, the parent can only have been deleted and
// created again by users of that namespace. Otherwise, another tenant could have created the namespace or the type
// again. Someone who can update the child must then confirm that the parent has been restored from a backup.
func (c *call) isRestored(record parentRecord, object metav1.Object) (bool, error) {
	if c.parent.GetNamespace() != "" && record.NamespaceUID != "" && record.As == c.as.Name {
		if now, err := c.namespaceUID(); err != nil || now == record.NamespaceUID {
			return err == nil, err
		}
	}
	return c.isConfirmed(object, true)
}

// record returns the value of the annotation <name>/parent of a marked child.
func (c *call) record(ctx context.Context, retain bool) (string, error) {
	record := parentRecord{Identity: c.identity(), UID: c.parent.GetUID(), As: c.as.Name}
	if !retain {
		var err error
		if record.NamespaceUID, err = c.namespaceUID(); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(record)
	return string(text), err
}

// readNamespaceUID returns the UID of the parent's namespace. It cannot change during the life of the parent. The
// result is empty if the Reconciler cannot read the namespace. It is called at most once per call, see
// call.namespaceUID.
func (c *call) readNamespaceUID(ctx context.Context) (types.UID, error) {
	if c.cache.namespace.parent == c.parent.GetUID() {
		return c.cache.namespace.uid, nil
	}
	namespace, err := c.readNamespace(ctx)
	if err != nil || namespace == nil {
		return "", err
	}
	c.cache.namespace = namespaceOfParent{parent: c.parent.GetUID(), uid: namespace.GetUID()}
	return namespace.GetUID(), nil
}

// readNamespace reads the parent's namespace. It returns nil if the Reconciler cannot read it, and does not repeat the
// request in this call.
func (c *call) readNamespace(ctx context.Context) (*unstructured.Unstructured, error) {
	if c.noNamespace {
		return nil, nil
	}
	namespaces := c.config.Client.Resource(corev1.SchemeGroupVersion.WithResource("namespaces"))
	namespace, err := namespaces.Get(ctx, c.parent.GetNamespace(), metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		c.noNamespace = true
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the namespace of the parent: %w", err)
	}
	return namespace, nil
}
