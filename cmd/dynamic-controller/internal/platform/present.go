package platform

import (
	"context"
	"reflect"
	"strconv"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// present is what is there of an instance's resources, and not being deleted. The objects are shared and only read.
type present struct {
	byID   map[string]*unstructured.Unstructured
	owned  []*unstructured.Unstructured // in the index by owner
	looked map[string]bool
	reader whole
	kinds  []childKind
	self   *unstructured.Unstructured
}

// present begins with the children in the index by owner: with them the first step is mostly the last.
func (k *instances) present(ctx context.Context, self *unstructured.Unstructured) *present {
	p := &present{
		byID: map[string]*unstructured.Unstructured{}, looked: map[string]bool{},
		reader: k.reader, kinds: k.kinds, self: self,
	}
	owned := k.ownedIn(k.engine)
	for _, kind := range k.kinds {
		// What cannot be read is found by name, or not there.
		children, _ := owned(kind.gvr, self.GetUID())
		for _, child := range children {
			if !canBeOwned(child, self) {
				continue
			}
			if object := p.reader.wholeOf(ctx, kind.gvr, child); object != nil {
				p.owned = append(p.owned, object)
				p.saw([]*unstructured.Unstructured{object})
			}
		}
	}
	return p
}

// canBeOwned reports whether an owner reference from the object to the instance can be valid. A user of another namespace can
// write one, but it must not make the object's content visible to the instance's templates.
func canBeOwned(object runtime.Object, self *unstructured.Unstructured) bool {
	m, err := meta.Accessor(object)
	return err == nil && (self.GetNamespace() == "" || m.GetNamespace() == self.GetNamespace())
}

// look finds by its name what was rendered and is not known to be there, or is there by another name. It tells whether
// that changed anything. Each resource is looked for once.
func (p *present) look(ctx context.Context, rendered []blueprint.Rendered) (changed bool) {
	for _, r := range rendered {
		there := p.byID[r.ID]
		if there != nil && isSame(there, r.Object) {
			continue
		}
		if there != nil {
			delete(p.byID, r.ID)
			changed = true
		}
		if p.looked[r.ID] {
			continue
		}
		p.looked[r.ID] = true
		found, err := p.reader.Get(ctx, p.resourceOf(r.Object.GroupVersionKind()), r.Object.GetNamespace(), r.Object.GetName())
		if err == nil && found.GetDeletionTimestamp() == nil && p.isOurs(found) {
			p.byID[r.ID] = found
			changed = true
		}
	}
	return changed
}

// isOurs tells whether a child by its name is this instance's and not another's.
func (p *present) isOurs(child *unstructured.Unstructured) bool {
	return child.GetLabels()[parentKey] == string(p.self.GetUID())
}

func (p *present) resourceOf(gvk schema.GroupVersionKind) (gvr schema.GroupVersionResource) {
	for _, kind := range p.kinds {
		if kind.gvk == gvk {
			return kind.gvr
		}
	}
	return gvr
}

// saw takes children as they were last seen, and tells whether that is news.
func (p *present) saw(children []*unstructured.Unstructured) (news bool) {
	for _, child := range children {
		id := child.GetAnnotations()[resourceKey]
		switch before := p.byID[id]; {
		case id == "":
		case child.GetDeletionTimestamp() != nil:
			if before != nil && before.GetUID() == child.GetUID() {
				delete(p.byID, id)
				news = true
			}
		case before == nil || before.GetUID() != child.GetUID() || before.GetResourceVersion() != child.GetResourceVersion():
			p.byID[id] = child
			news = true
		}
	}
	return news
}

func isSame(a, b *unstructured.Unstructured) bool {
	return a.GroupVersionKind() == b.GroupVersionKind() && a.GetNamespace() == b.GetNamespace() && a.GetName() == b.GetName()
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

// marked is a rendered object that says which resource of which instance it is, and how much may come of it, whatever its
// template says of that.
func (k *instances) marked(r blueprint.Rendered, instance dynamiccontroller.ObjectIdentifiers, share int) *unstructured.Unstructured {
	object := r.Object.DeepCopy()
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[resourceKey], annotations[instanceKey] = r.ID, instance.NamespacedKey
	delete(annotations, allowanceKey)
	if k.isDefined(object.GroupVersionKind()) {
		annotations[allowanceKey] = strconv.Itoa(share)
	}
	object.SetAnnotations(annotations)
	return object
}
