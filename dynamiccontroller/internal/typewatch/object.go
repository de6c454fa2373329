package typewatch

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

// Object is one state of a stored object, together with the view under which it must be read. All subscriptions that
// receive the state share its decoded parts. An Object is immutable and safe for concurrent use, even after the event
// handler has returned.
type Object struct {
	*state
	View View
}

// state is one state of a stored object. Its parts are decoded when they are needed, at most once for each change and
// for each pass over the existing objects.
type state struct {
	*objects.Record

	decodeMeta   sync.Once
	meta         *metav1.ObjectMeta // set by decodeMeta
	decodeOwners sync.Once
	owners       []objects.Owner // set by decodeOwners
}

// NewObject returns an Object for a record that was read from the view's store.
func NewObject(r *objects.Record, view View) *Object {
	return &Object{state: &state{Record: r}, View: view}
}

// Meta returns the metadata without managedFields. The result is shared and must not be modified.
func (s *state) Meta() *metav1.ObjectMeta {
	s.decodeMeta.Do(func() { s.meta = s.ObjectMeta() })
	return s.meta
}

// Owners returns the owners of the object. The result is shared and must not be modified.
func (s *state) Owners() []objects.Owner {
	s.decodeOwners.Do(func() { s.owners = objects.OwnersOf(s.Record) })
	return s.owners
}

// Decode decodes the object and reduces it to the projection of the view's options.
func (o *Object) Decode() (runtime.Object, error) { return o.View.Decode(o.Record) }

// DecodeInto decodes the object into a value; see [View.DecodeInto].
func (o *Object) DecodeInto(into any) error { return o.View.DecodeInto(o.Record, into) }

// The getters below return shared values, which must not be modified.

// GetGeneration returns the generation.
func (s *state) GetGeneration() int64 { return s.Meta().Generation }

// GetCreationTimestamp returns the creationTimestamp.
func (s *state) GetCreationTimestamp() metav1.Time { return s.Meta().CreationTimestamp }

// GetDeletionTimestamp returns the deletionTimestamp.
func (s *state) GetDeletionTimestamp() *metav1.Time { return s.Meta().DeletionTimestamp }

// GetDeletionGracePeriodSeconds returns the deletionGracePeriodSeconds.
func (s *state) GetDeletionGracePeriodSeconds() *int64 { return s.Meta().DeletionGracePeriodSeconds }

// GetLabels returns the labels.
func (s *state) GetLabels() map[string]string { return s.Meta().Labels }

// GetAnnotations returns the annotations.
func (s *state) GetAnnotations() map[string]string { return s.Meta().Annotations }

// GetFinalizers returns the finalizers.
func (s *state) GetFinalizers() []string { return s.Meta().Finalizers }

// GetOwnerReferences returns the owner references.
func (s *state) GetOwnerReferences() []metav1.OwnerReference { return s.Meta().OwnerReferences }

// Change is a change to one object, as it is delivered to one subscription. For a new object, Old is nil. For a deleted
// object, New is nil. After a replacement, the views of Old and New can differ; see [View.SameForm].
type Change struct {
	Key      string
	Old, New *Object
}

// blocks reports whether the event handler can call user code for the change.
func (c Change) blocks() bool {
	return c.Old != nil && c.Old.View.options.Blocking || c.New != nil && c.New.View.options.Blocking
}

// storeChange is a change to one object of a watch. The subscriptions share its states. If an object is new or was
// deleted, the record of one state is nil.
type storeChange struct {
	key      string
	old, new state
}

func newStoreChange(c objects.Change) *storeChange {
	return &storeChange{key: c.Key, old: state{Record: c.Old}, new: state{Record: c.New}}
}

// in returns the change as it is delivered to a subscription with the given views of the old and the new state.
func (c *storeChange) in(before, after View) Change {
	pair := &[2]Object{{state: &c.old, View: before}, {state: &c.new, View: after}} // one allocation for both
	change := Change{Key: c.key}
	if c.old.Record != nil {
		change.Old = &pair[0]
	}
	if c.new.Record != nil {
		change.New = &pair[1]
	}
	return change
}

func (c *storeChange) isDeletion() bool { return c.new.Record == nil }

// uidOf returns the UID, or an empty one if it is unknown.
func uidOf(o *Object) types.UID {
	if o == nil {
		return ""
	}
	return o.GetUID()
}
