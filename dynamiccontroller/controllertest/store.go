package controllertest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// table holds the objects of a type. Stored objects are never modified.
type table struct {
	Type
	fields, statusFields fieldTracker
	objects              map[types.NamespacedName]*unstructured.Unstructured
	changes              []change // all changes since the server was created, oldest first
	watchers             map[*watcher]struct{}
	lag                  lag
}

// change is a change to an object. The field before is nil for a new object, and after is nil for a deleted one.
type change struct {
	version       int64
	before, after *unstructured.Unstructured
}

func newTable(t Type) *table {
	return &table{
		Type: t, fields: newFieldTracker(t, ""), statusFields: newFieldTracker(t, "status"),
		objects: map[types.NamespacedName]*unstructured.Unstructured{}, watchers: map[*watcher]struct{}{},
	}
}

func (t *table) gvk() schema.GroupVersionKind { return t.GVR.GroupVersion().WithKind(t.Kind) }

// empty returns an object that has only a kind.
func (t *table) empty() *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(t.gvk())
	return object
}

func (t *table) identifiers(key types.NamespacedName) dynamiccontroller.ObjectIdentifiers {
	id := dynamiccontroller.ObjectIdentifiers{NamespacedKey: key.Name, GVR: t.GVR}
	if key.Namespace != "" {
		id.NamespacedKey = key.String()
	}
	return id
}

// list returns the objects that match, sorted by namespace and name.
func (t *table) list(matches func(*unstructured.Unstructured) bool) []*unstructured.Unstructured {
	var found []*unstructured.Unstructured
	for _, object := range t.objects {
		if matches(object) {
			found = append(found, object)
		}
	}
	slices.SortFunc(found, func(a, b *unstructured.Unstructured) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return found
}

// write is a request that writes an object.
type write struct {
	table       *table
	key         types.NamespacedName
	subresource string // "" or "status"
	manager     string
	dryRun      bool
}

func (w write) fields() fieldTracker {
	if w.subresource == "status" {
		return w.table.statusFields
	}
	return w.table.fields
}

func (w write) notFound() error {
	return apierrors.NewNotFound(w.table.GVR.GroupResource(), w.key.Name)
}

func (w write) conflict(format string, args ...any) error {
	return apierrors.NewConflict(w.table.GVR.GroupResource(), w.key.Name, fmt.Errorf(format, args...))
}

func (w write) invalid(err *field.Error) error {
	return apierrors.NewInvalid(w.table.gvk().GroupKind(), w.key.Name, field.ErrorList{err})
}

// check returns an error if the object in a request does not belong to the request.
func (w write) check(object *unstructured.Unstructured) error {
	switch gvk := w.table.gvk(); {
	case object.GroupVersionKind() != gvk:
		return apierrors.NewBadRequest(fmt.Sprintf("the object is a %s, expected a %s", object.GroupVersionKind(), gvk))
	case object.GetNamespace() != w.key.Namespace:
		return apierrors.NewBadRequest("the namespace of the object does not match the namespace on the URL")
	case object.GetName() != w.key.Name:
		return apierrors.NewBadRequest("the name of the object does not match the name on the URL")
	}
	return nil
}

// createLocked creates an object, which it can modify.
func (s *Server) createLocked(w write, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if object.GetName() == "" && object.GetGenerateName() != "" {
		object.SetName(fmt.Sprintf("%s%05d", object.GetGenerateName(), s.created+1))
	}
	if w.key.Name = object.GetName(); w.key.Name == "" {
		return nil, w.invalid(field.Required(field.NewPath("metadata", "name"), "name or generateName is required"))
	}
	if object.GetNamespace() == "" && w.key.Namespace != "" {
		object.SetNamespace(w.key.Namespace)
	}
	if err := w.check(object); err != nil {
		return nil, err
	}
	if object.GetResourceVersion() != "" {
		return nil, apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	}
	if w.table.objects[w.key] != nil {
		return nil, apierrors.NewAlreadyExists(w.table.GVR.GroupResource(), w.key.Name)
	}
	delete(object.Object, "status")
	object, err := w.fields().update(w.table.empty(), object, w.manager)
	if err != nil {
		return nil, err
	}
	return s.storeNewLocked(w, object), nil
}

// storeNewLocked stores an object that a client creates.
func (s *Server) storeNewLocked(w write, object *unstructured.Unstructured) *unstructured.Unstructured {
	object.SetUID("")
	object.SetGeneration(0)
	object.SetDeletionTimestamp(nil)
	object.SetDeletionGracePeriodSeconds(nil)
	unstructured.RemoveNestedField(object.Object, "metadata", "creationTimestamp")
	s.setDefaultsLocked(object)
	return s.storeLocked(w, nil, object)
}

// setDefaultsLocked sets the metadata that every stored object has.
func (s *Server) setDefaultsLocked(object *unstructured.Unstructured) {
	s.created++
	if object.GetUID() == "" {
		object.SetUID(types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", s.created)))
	}
	if object.GetGeneration() == 0 {
		object.SetGeneration(1)
	}
	if object.GetCreationTimestamp().Time.IsZero() {
		object.SetCreationTimestamp(now())
	}
}

// now returns the time in the precision of metadata.
func now() metav1.Time { return metav1.NewTime(time.Now().UTC().Truncate(time.Second)) }

// updateLocked replaces an object. It can modify next.
func (s *Server) updateLocked(w write, next *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if next.GetNamespace() == "" && w.key.Namespace != "" {
		next.SetNamespace(w.key.Namespace)
	}
	if err := w.check(next); err != nil {
		return nil, err
	}
	before := w.table.objects[w.key]
	if before == nil {
		return nil, w.notFound()
	}
	if next.GetResourceVersion() == "" {
		path := field.NewPath("metadata", "resourceVersion")
		return nil, w.invalid(field.Invalid(path, 0, "must be specified for an update"))
	}
	next, err := w.prepare(before, next)
	if err != nil {
		return nil, err
	}
	if next, err = w.fields().update(before, next, w.manager); err != nil {
		return nil, err
	}
	return s.commitLocked(w, before, next), nil
}

// applyLocked performs a server-side apply. It can modify applied.
func (s *Server) applyLocked(
	w write, applied *unstructured.Unstructured, options metav1.PatchOptions,
) (*unstructured.Unstructured, error) {
	if applied.GetNamespace() == "" && w.key.Namespace != "" {
		applied.SetNamespace(w.key.Namespace)
	}
	if err := w.check(applied); err != nil {
		return nil, err
	}
	if options.FieldManager == "" {
		return nil, apierrors.NewBadRequest("fieldManager is required for apply patch")
	}
	before := w.table.objects[w.key]
	if before == nil && w.subresource != "" {
		return nil, w.notFound()
	}
	if before == nil && applied.GetUID() != "" {
		return nil, w.conflict("uid mismatch: the provided object specified uid %s, and no existing object was found",
			applied.GetUID())
	}
	live := before
	if live == nil {
		live = w.table.empty()
	}
	next, err := w.fields().apply(live, applied, options.FieldManager, ptr.Deref(options.Force, false))
	if err != nil {
		return nil, err
	}
	if before == nil {
		next.SetResourceVersion("")
		return s.storeNewLocked(w, next), nil
	}
	managed := next.GetManagedFields()
	if next, err = w.prepare(before, next); err != nil {
		return nil, err
	}
	next.SetManagedFields(managed)
	return s.commitLocked(w, before, next), nil
}

// prepare checks the preconditions of a change, and returns the object without changes that the endpoint ignores.
func (w write) prepare(before, next *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if uid := next.GetUID(); uid != "" && uid != before.GetUID() {
		return nil, w.conflict("Precondition failed: UID in precondition: %s, UID in object meta: %s", uid, before.GetUID())
	}
	if version := next.GetResourceVersion(); version != "" && version != before.GetResourceVersion() {
		return nil, w.conflict("%s", modified)
	}
	if w.subresource == "status" {
		changed := before.DeepCopy()
		setStatus(changed, next)
		changed.SetManagedFields(next.GetManagedFields())
		return changed, nil
	}
	setStatus(next, before)
	next.SetUID(before.GetUID())
	next.SetResourceVersion(before.GetResourceVersion())
	next.SetGeneration(before.GetGeneration())
	next.SetCreationTimestamp(before.GetCreationTimestamp())
	next.SetDeletionTimestamp(before.GetDeletionTimestamp())
	next.SetDeletionGracePeriodSeconds(before.GetDeletionGracePeriodSeconds())
	for _, finalizer := range next.GetFinalizers() {
		if next.GetDeletionTimestamp() != nil && !slices.Contains(before.GetFinalizers(), finalizer) {
			return nil, w.invalid(field.Forbidden(field.NewPath("metadata", "finalizers"),
				"no new finalizers can be added if the object is being deleted"))
		}
	}
	return next, nil
}

const modified = "the object has been modified; please apply your changes to the latest version and try again"

// setStatus sets the status of an object to that of another.
func setStatus(object, from *unstructured.Unstructured) {
	delete(object.Object, "status")
	if status, found := from.Object["status"]; found {
		object.Object["status"] = status
	}
}

// commitLocked stores a changed object. If nothing has changed, it returns the stored object.
func (s *Server) commitLocked(w write, before, next *unstructured.Unstructured) *unstructured.Unstructured {
	if w.subresource == "" && !equalContent(before, next) {
		next.SetGeneration(before.GetGeneration() + 1)
	}
	if equalExceptTimes(before, next) {
		return before
	}
	return s.storeLocked(w, before, next)
}

// storeLocked stores an object and notifies the watchers. If the object is being deleted and has no finalizers, the
// object is removed, and returned with its last version, like the response of a real API server.
func (s *Server) storeLocked(w write, before, next *unstructured.Unstructured) *unstructured.Unstructured {
	if w.dryRun {
		return next
	}
	s.version++
	next.SetResourceVersion(strconv.FormatInt(s.version, 10))
	c := change{version: s.version, before: before, after: next}
	if next.GetDeletionTimestamp() != nil && len(next.GetFinalizers()) == 0 {
		c.after = nil
		delete(w.table.objects, w.key)
		next = next.DeepCopy()
		next.SetResourceVersion(before.GetResourceVersion())
	} else {
		w.table.objects[w.key] = next
	}
	w.table.recordLocked(c)
	return next
}

// deleteLocked deletes an object, or sets its deletionTimestamp if it has finalizers.
func (s *Server) deleteLocked(w write, preconditions *metav1.Preconditions) error {
	before := w.table.objects[w.key]
	if before == nil {
		return w.notFound()
	}
	if preconditions != nil {
		uid, version := before.GetUID(), before.GetResourceVersion()
		if want := ptr.Deref(preconditions.UID, uid); want != uid {
			return w.conflict("Precondition failed: UID in precondition: %s, UID in object meta: %s", want, uid)
		}
		if want := ptr.Deref(preconditions.ResourceVersion, version); want != version {
			return w.conflict("Precondition failed: ResourceVersion in precondition: %s, ResourceVersion in object meta: %s",
				want, version)
		}
	}
	if before.GetDeletionTimestamp() != nil && len(before.GetFinalizers()) > 0 {
		return nil
	}
	next := before.DeepCopy()
	next.SetDeletionTimestamp(ptr.To(now()))
	next.SetDeletionGracePeriodSeconds(ptr.To[int64](0))
	next.SetGeneration(before.GetGeneration() + 1)
	s.storeLocked(w, before, next)
	return nil
}
