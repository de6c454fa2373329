package instances

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// observed contains the existing children of an instance, except those that are being deleted. The objects are shared
// and must not be modified.
type observed struct {
	byKey map[string]*unstructured.Unstructured // by blueprint.Rendered.Key
	// collections contains the ids of the resources that can have any number of children.
	collections sets.Set[string]
	// owned contains the children with an owner reference to the instance.
	owned    []*unstructured.Unstructured // only metadata can be used
	lookedUp map[string]bool              // keys of the objects that have been looked up by name
	unread   map[string]readFailure       // results of the last failed lookups, by key

	unsynced bool // whether the report depends on a child in a cache that has not synced

	reader cacheReader
	lister func(child schema.GroupVersionResource) (dynamiccontroller.SecondaryLister, error)
	kinds  []Child
	self   *unstructured.Unstructured
	// recorded reports whether the inventory contains the given kind and namespace.
	recorded func(kind schema.GroupKind, namespace string) bool
}

// readFailure is a failed lookup of a child.
type readFailure struct {
	id  string // the id of the resource
	err error
}

// observe reads the children that have an owner reference to the instance. Usually, these are all of its children, and
// a single step is sufficient. Anyone who can create an object can forge the owner reference and the annotation.
// Therefore, observe reads at most one object per resource from the API server. If that object is not the rendered one,
// find replaces it. The objects of a collection are read from the API server only by find, after they have been
// rendered.
func (r *Reconciler) observe(ctx context.Context, self *unstructured.Unstructured, reader cacheReader) *observed {
	o := &observed{
		byKey: map[string]*unstructured.Unstructured{}, lookedUp: map[string]bool{}, unread: map[string]readFailure{},
		collections: sets.New[string](), reader: reader, lister: r.lister, kinds: r.Children, self: self,
		recorded: r.children.Recorded(self),
	}
	unread := sets.New[string]() // resources for which nothing has been read from the API server yet
	for _, t := range r.templates() {
		if t.Collection {
			o.collections.Insert(t.ID)
		} else if !t.Reference {
			unread.Insert(t.ID)
		}
	}
	latest := r.latest(self)
	for _, kind := range r.Children {
		owned, _ := r.ownedBy(kind.GVR, self.GetUID()) // other children are looked up by name
		for i, child := range owned {
			owned[i] = nil // holds its decoded metadata
			object := o.decode(child, kind)
			if object != nil {
				object = latest.Newest(ctx, kind.GVR, object)
			}
			if object == nil {
				continue
			}
			if reserve(ctx, object) != nil {
				return o // ctx is cancelled
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

// decode returns a child, or nil if it cannot belong to the instance. Transform limits the size of the result.
func (o *observed) decode(child dynamiccontroller.Object, kind Child) *unstructured.Unstructured {
	if !canBeOwned(child, o.self) || !o.recorded(kind.GVK.GroupKind(), child.GetNamespace()) {
		return nil
	}
	object, _ := child.Object().(*unstructured.Unstructured)
	return object
}

// canBeOwned reports whether the object's owner reference to the instance can be valid. Users in other namespaces can
// create objects with invalid references. The content of such objects must not be visible to the instance's templates.
func canBeOwned(object dynamiccontroller.Object, self *unstructured.Unstructured) bool {
	return self.GetNamespace() == "" || object.GetNamespace() == self.GetNamespace()
}

// keyOf returns the key of a child, or "" if the child has none.
func (o *observed) keyOf(child *unstructured.Unstructured) string {
	id := child.GetAnnotations()[resourceAnnotation]
	if o.collections.Has(id) {
		return blueprint.ItemKey(id, child.GetNamespace(), child.GetName())
	}
	return id
}

// find looks up the objects of a step that have not been observed yet, and those for which an object with a different
// name was observed. It looks up each object at most once, and reports whether the observed children have changed.
func (o *observed) find(ctx context.Context, objects []blueprint.Rendered) (changed bool) {
	for _, r := range objects {
		child := o.byKey[r.Key]
		if child != nil && isSame(child, r.Object) {
			continue
		}
		if child != nil {
			delete(o.byKey, r.Key)
			changed = true
		}
		namespace, name := r.Object.GetNamespace(), r.Object.GetName()
		place := blueprint.ItemKey(r.Key, namespace, name)
		if o.lookedUp[place] {
			continue
		}
		o.lookedUp[place] = true
		delete(o.unread, r.Key)
		found, err := o.reader.Get(ctx, o.resourceOf(r.Object.GroupVersionKind()), namespace, name)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			err = fmt.Errorf("%s: read %s %s: %w", r.ID, r.Object.GetKind(), keyOf(r.Object), err)
			o.unread[r.Key] = readFailure{r.ID, err}
		case found.GetDeletionTimestamp() == nil && hasLabel(found, o.self):
			o.byKey[r.Key] = found
			changed = true
		}
	}
	return changed
}

// settle completes the last step of a reconcile. If the step's report depends on children that could not be read,
// settle removes the report, so that the corresponding fields of the instance's status are kept. If err is nil or a
// requeue request, settle returns the error from the failed read instead of err.
func (o *observed) settle(compiled *blueprint.Compiled, step blueprint.Step, err error) (blueprint.Step, error) {
	for _, key := range slices.Sorted(maps.Keys(o.unread)) {
		failed := o.unread[key]
		if o.byKey[key] != nil || !compiled.Reports(failed.id) {
			continue
		}
		step.Report = nil
		switch {
		case isUncached(failed.err):
			o.unsynced = true
		case err == nil || isRequeue(err):
			err = failed.err
		}
	}
	return step, err
}

// isUncached reports whether the error means that the cache does not serve the type or has not synced.
func isUncached(err error) bool {
	return errors.Is(err, dynamiccontroller.ErrNotServed) || errors.Is(err, dynamiccontroller.ErrNotSynced)
}

func (o *observed) resourceOf(gvk schema.GroupVersionKind) (gvr schema.GroupVersionResource) {
	for _, kind := range o.kinds {
		if kind.GVK == gvk {
			return kind.GVR
		}
	}
	return gvr
}

// update stores the newest versions of children, and reports whether the observed children have changed.
func (o *observed) update(children []*unstructured.Unstructured) (changed bool) {
	for _, child := range children {
		key := o.keyOf(child)
		switch before := o.byKey[key]; {
		case key == "":
		case child.GetDeletionTimestamp() != nil:
			if before != nil && before.GetUID() == child.GetUID() {
				delete(o.byKey, key)
				changed = true
			}
		case before == nil || !isSame(child, before) || isNewer(child, before):
			o.byKey[key] = child
			changed = true
		}
	}
	return changed
}

// isNewer reports whether an object is another version than the one before, and not an older one. The versions of all
// objects of a type can be compared.
func isNewer(object, before *unstructured.Unstructured) bool {
	if object.GetResourceVersion() == before.GetResourceVersion() {
		return object.GetUID() != before.GetUID()
	}
	order, err := resourceversion.CompareResourceVersion(object.GetResourceVersion(), before.GetResourceVersion())
	return err != nil || order > 0
}

func isSame(a, b *unstructured.Unstructured) bool {
	return a.GroupVersionKind() == b.GroupVersionKind() && a.GetNamespace() == b.GetNamespace() &&
		a.GetName() == b.GetName()
}

func sameObjects(a, b []blueprint.Rendered) bool {
	return slices.EqualFunc(a, b, func(a, b blueprint.Rendered) bool {
		return a.ID == b.ID && reflect.DeepEqual(a.Object.Object, b.Object.Object)
	})
}
