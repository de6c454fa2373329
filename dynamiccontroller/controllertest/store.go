package controllertest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// table holds the objects of a type. Stored objects are never modified.
type table struct {
	Type
	rules                rules
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
	created := &table{
		Type: t, rules: rulesFor(t.GVR), fields: newFieldTracker(t, ""),
		objects: map[types.NamespacedName]*unstructured.Unstructured{}, watchers: map[*watcher]struct{}{},
	}
	if created.rules.status {
		created.fields = newFieldTracker(t, "", "status")
		created.statusFields = newFieldTracker(t, "status", "metadata", "spec")
	}
	return created
}

func (t *table) gvk() schema.GroupVersionKind { return t.GVR.GroupVersion().WithKind(t.Kind) }

// resourceKind returns the resource in the form of a kind, as some errors of an API server contain it.
func (t *table) resourceKind() schema.GroupKind {
	return schema.GroupKind{Group: t.GVR.Group, Kind: t.GVR.Resource}
}

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
	return sorted(t.objects, matches)
}

// listAt returns the objects that matched at a resourceVersion, sorted by namespace and name.
func (t *table) listAt(version int64, matches func(*unstructured.Unstructured) bool) []*unstructured.Unstructured {
	objects := maps.Clone(t.objects)
	for _, c := range slices.Backward(t.changes) {
		if c.version <= version {
			break
		}
		if c.before == nil {
			delete(objects, keyOf(c.after))
		} else {
			objects[keyOf(c.before)] = c.before
		}
	}
	return sorted(objects, matches)
}

func sorted(
	objects map[types.NamespacedName]*unstructured.Unstructured, matches func(*unstructured.Unstructured) bool,
) []*unstructured.Unstructured {
	var found []*unstructured.Unstructured
	for _, object := range objects {
		if matches(object) {
			found = append(found, object)
		}
	}
	slices.SortFunc(found, func(a, b *unstructured.Unstructured) int {
		return compareKeys(keyOf(a), keyOf(b))
	})
	return found
}

func compareKeys(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
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

// createLocked creates an object, which it can modify.
func (s *Server) createLocked(w write, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if err := cmp.Or(checkSize(object), w.decode(object), w.address(object)); err != nil {
		return nil, err
	}
	wipe(object)
	withoutDuplicates(object)
	next, err := s.prepareNewLocked(w, w.fields().update(w.table.empty(), object, w.manager))
	if err != nil {
		return nil, err
	}
	if version, err := versionOf(next); err == nil && version != 0 {
		return nil, unknownError("resourceVersion should not be set on objects to be created")
	}
	return s.storeNewLocked(w, next)
}

// prepareNewLocked returns the object that is stored for a new object, which it can modify.
func (s *Server) prepareNewLocked(w write, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if object.GetName() == "" && object.GetGenerateName() != "" {
		s.generateNameLocked(w, object)
	}
	if w.table.rules.status {
		delete(object.Object, "status")
	}
	wipe(object)
	object.SetGeneration(0)
	s.setDefaultsLocked(w.table, object)
	return object, w.validate(nil, object)
}

// wipe removes the metadata that only the API server sets.
func wipe(object *unstructured.Unstructured) {
	for _, name := range []string{
		"uid", "selfLink", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds",
	} {
		unstructured.RemoveNestedField(object.Object, "metadata", name)
	}
}

// generateNameLocked sets the name of an object from its generateName.
func (s *Server) generateNameLocked(w write, object *unstructured.Unstructured) {
	const random = 5
	base := object.GetGenerateName()
	base = base[:min(len(base), validation.DNS1123LabelMaxLength-random)]
	for n := s.created + 1; ; n++ {
		object.SetName(fmt.Sprintf("%s%0*d", base, random, n))
		if w.table.objects[types.NamespacedName{Namespace: w.key.Namespace, Name: object.GetName()}] == nil {
			return
		}
	}
}

// storeNewLocked stores an object that a client creates.
func (s *Server) storeNewLocked(w write, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if w.key.Name = object.GetName(); w.table.objects[w.key] != nil {
		return nil, apierrors.NewAlreadyExists(w.table.GVR.GroupResource(), w.key.Name)
	}
	object.SetResourceVersion("")
	if err := checkStored(object); err != nil {
		return nil, err
	}
	return s.storeLocked(w, nil, object), nil
}

// setDefaultsLocked sets the metadata that every stored object has.
func (s *Server) setDefaultsLocked(t *table, object *unstructured.Unstructured) {
	s.created++
	if object.GetUID() == "" {
		object.SetUID(types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", s.created)))
	}
	if object.GetGeneration() == 0 && t.rules.generation {
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
	if err := cmp.Or(checkSize(next), w.decode(next), w.address(next)); err != nil {
		return nil, err
	}
	before := w.table.objects[w.key]
	if before == nil {
		return nil, w.notFound()
	}
	if uid := next.GetUID(); uid != "" && uid != before.GetUID() {
		return nil, w.conflict("Precondition failed: UID in precondition: %s, UID in object meta: %s", uid, before.GetUID())
	}
	withoutDuplicates(next)
	return s.replaceLocked(w, before, w.fields().update(before, next, w.manager))
}

// patchLocked stores a patched object, which it can modify.
func (s *Server) patchLocked(w write, next *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	before := w.table.objects[w.key]
	next = w.fields().update(before, next, w.manager)
	if err := w.address(next); err != nil {
		return nil, err
	}
	return s.replaceLocked(w, before, next)
}

// applyLocked performs a server-side apply. It can modify applied.
func (s *Server) applyLocked(
	w write, applied *unstructured.Unstructured, force bool,
) (*unstructured.Unstructured, error) {
	before := w.table.objects[w.key]
	if before == nil && w.subresource != "" {
		return nil, w.notFound()
	}
	live := before
	if live == nil {
		live = w.table.empty()
	}
	next, err := w.fields().apply(live, applied, w.manager, force)
	if err != nil {
		return nil, err
	}
	if before == nil && next.GetUID() != "" {
		return nil, w.conflict("uid mismatch: the provided object specified uid %s, and no existing object was found",
			next.GetUID())
	}
	if err := cmp.Or(w.decode(next), w.address(next)); err != nil {
		return nil, err
	}
	if before != nil {
		return s.replaceLocked(w, before, next)
	}
	if next, err = s.prepareNewLocked(w, next); err != nil {
		return nil, err
	}
	return s.storeNewLocked(w, next)
}

// replaceLocked stores a changed object, if it is valid. It can modify next.
func (s *Server) replaceLocked(w write, before, next *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if err := w.checkVersion(before, next); err != nil {
		return nil, err
	}
	next = w.prepare(before, next)
	if err := cmp.Or(w.validate(before, next), checkStored(next)); err != nil {
		return nil, err
	}
	return s.commitLocked(w, before, next), nil
}

// prepare returns the object without changes that the endpoint ignores. It can modify next.
func (w write) prepare(before, next *unstructured.Unstructured) *unstructured.Unstructured {
	if w.subresource == "status" {
		changed := before.DeepCopy()
		setStatus(changed, next)
		changed.SetManagedFields(next.GetManagedFields())
		return changed
	}
	next.SetGeneration(before.GetGeneration())
	if w.table.rules.status {
		setStatus(next, before)
	}
	if w.table.rules.generation && !equalContent(before, next) {
		next.SetGeneration(before.GetGeneration() + 1)
	}
	if next.GetUID() == "" {
		next.SetUID(before.GetUID())
	}
	next.SetCreationTimestamp(before.GetCreationTimestamp())
	if deleted := before.GetDeletionTimestamp(); deleted != nil {
		next.SetDeletionTimestamp(deleted)
	}
	if seconds := before.GetDeletionGracePeriodSeconds(); seconds != nil && next.GetDeletionGracePeriodSeconds() == nil {
		next.SetDeletionGracePeriodSeconds(seconds)
	}
	withoutDuplicates(next)
	return next
}

// setStatus sets the status of an object to that of another.
func setStatus(object, from *unstructured.Unstructured) {
	delete(object.Object, "status")
	if status, found := from.Object["status"]; found {
		object.Object["status"] = status
	}
}

// commitLocked stores a changed object. If nothing has changed, it returns the stored object.
func (s *Server) commitLocked(w write, before, next *unstructured.Unstructured) *unstructured.Unstructured {
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
func (s *Server) deleteLocked(w write, opts metav1.DeleteOptions) error {
	if err := checkDelete(opts); err != nil {
		return err
	}
	before := w.table.objects[w.key]
	if before == nil {
		return w.notFound()
	}
	if opts.Preconditions != nil {
		uid, version := before.GetUID(), before.GetResourceVersion()
		if want := ptr.Deref(opts.Preconditions.UID, uid); want != uid {
			return w.conflict("the UID in the precondition (%s) does not match the UID in record (%s)", want, uid)
		}
		if want := ptr.Deref(opts.Preconditions.ResourceVersion, version); want != version {
			return w.conflict("the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s)",
				want, version)
		}
	}
	if before.GetDeletionTimestamp() != nil && len(before.GetFinalizers()) > 0 {
		return nil
	}
	next := before.DeepCopy()
	next.SetDeletionTimestamp(ptr.To(now()))
	next.SetDeletionGracePeriodSeconds(ptr.To[int64](0))
	if w.table.rules.generation {
		next.SetGeneration(before.GetGeneration() + 1)
	}
	s.storeLocked(w, before, next)
	return nil
}
