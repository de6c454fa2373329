package instances

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// observed holds the children of an instance that exist and are not being deleted. The objects are shared and must not
// be modified.
type observed struct {
	byID map[string]*unstructured.Unstructured
	// owned are the children with an owner reference to the instance.
	owned  []*unstructured.Unstructured // their content must not be used
	looked map[string]bool              // resources that have been looked up by name
	reader cacheReader
	kinds  []Child
	self   *unstructured.Unstructured
	// recorded reports whether the inventory contains a namespace for a kind.
	recorded func(kind schema.GroupKind, namespace string) bool
}

// observe reads the children with an owner reference. In most cases these are all the children, so a single step is
// sufficient. Anyone who can create an object can forge the owner reference and the annotation: at most one object for
// each resource is read from the API server, and find replaces an object that is not the rendered one.
func (r *Reconciler) observe(ctx context.Context, self *unstructured.Unstructured, reader cacheReader) *observed {
	o := &observed{
		byID: map[string]*unstructured.Unstructured{}, looked: map[string]bool{},
		reader: reader, kinds: r.Children, self: self, recorded: r.children.Recorded(self),
	}
	unread := sets.New[string]() // ids of resources of which no object has been read from the API server
	for _, t := range r.templates() {
		unread.Insert(t.ID)
	}
	for _, kind := range r.Children {
		owned, _ := r.ownedBy(kind.GVR, self.GetUID()) // other children are looked up by name
		for _, child := range owned {
			object, ok := child.(*unstructured.Unstructured)
			if !ok || !canBeOwned(object, self) || !o.recorded(kind.GVK.GroupKind(), object.GetNamespace()) {
				continue
			}
			o.owned = append(o.owned, object)
			if id := object.GetAnnotations()[resourceAnnotation]; o.reader.isUsable(ctx, kind.GVR, object) {
				o.update([]*unstructured.Unstructured{object})
			} else if unread.Has(id) {
				unread.Delete(id)
				live, err := o.reader.live.Get(ctx, kind.GVR, object.GetNamespace(), object.GetName())
				if err == nil && live.GetUID() == object.GetUID() {
					o.update([]*unstructured.Unstructured{live})
				}
			}
		}
	}
	return o
}

// canBeOwned reports whether an owner reference from the object to the instance can be valid. A user of another
// namespace can write such a reference, but it must not make the object's content visible to the instance's templates.
func canBeOwned(object runtime.Object, self *unstructured.Unstructured) bool {
	m, err := meta.Accessor(object)
	return err == nil && (self.GetNamespace() == "" || m.GetNamespace() == self.GetNamespace())
}

// find looks up rendered objects that have not been observed, or were observed under another name. Each resource is
// looked up once. It reports whether anything has changed.
func (o *observed) find(ctx context.Context, rendered []blueprint.Rendered) (changed bool) {
	for _, r := range rendered {
		child := o.byID[r.ID]
		if child != nil && isSame(child, r.Object) {
			continue
		}
		if child != nil {
			delete(o.byID, r.ID)
			changed = true
		}
		if o.looked[r.ID] {
			continue
		}
		o.looked[r.ID] = true
		gvr := o.resourceOf(r.Object.GroupVersionKind())
		found, err := o.reader.Get(ctx, gvr, r.Object.GetNamespace(), r.Object.GetName())
		if err == nil && found.GetDeletionTimestamp() == nil && found.GetLabels()[parentLabel] == string(o.self.GetUID()) {
			o.byID[r.ID] = found
			changed = true
		}
	}
	return changed
}

func (o *observed) resourceOf(gvk schema.GroupVersionKind) (gvr schema.GroupVersionResource) {
	for _, kind := range o.kinds {
		if kind.GVK == gvk {
			return kind.GVR
		}
	}
	return gvr
}

// update stores the newest versions of children, and reports whether anything has changed.
func (o *observed) update(children []*unstructured.Unstructured) (changed bool) {
	for _, child := range children {
		id := child.GetAnnotations()[resourceAnnotation]
		switch before := o.byID[id]; {
		case id == "":
		case child.GetDeletionTimestamp() != nil:
			if before != nil && before.GetUID() == child.GetUID() {
				delete(o.byID, id)
				changed = true
			}
		case before == nil || before.GetUID() != child.GetUID() || before.GetResourceVersion() != child.GetResourceVersion():
			o.byID[id] = child
			changed = true
		}
	}
	return changed
}

func isSame(a, b *unstructured.Unstructured) bool {
	return a.GroupVersionKind() == b.GroupVersionKind() && a.GetNamespace() == b.GetNamespace() &&
		a.GetName() == b.GetName()
}

func sameObjects(a, b []blueprint.Rendered) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].ID != b[i].ID || !reflect.DeepEqual(a[i].Object.Object, b[i].Object.Object) {
			return false
		}
	}
	return true
}
