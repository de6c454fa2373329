package controllertest

import (
	"errors"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
)

// fieldTracker maintains the managedFields of a type's objects, for one of its endpoints.
type fieldTracker struct {
	manager     *managedfields.FieldManager
	subresource string
}

func newFieldTracker(t Type, subresource string) fieldTracker {
	gvk := t.GVR.GroupVersion().WithKind(t.Kind)
	types := managedfields.NewDeducedTypeConverter()
	manager, err := managedfields.NewDefaultCRDFieldManager(
		types, sameInAllVersions{}, noDefaults{}, newObjects{}, gvk, gvk.GroupVersion(), subresource, nil)
	if err != nil {
		panic(fmt.Sprintf("controllertest: create a field manager: %v", err))
	}
	return fieldTracker{manager, subresource}
}

// update sets the managedFields of an object that is created or updated.
func (f fieldTracker) update(
	before, next *unstructured.Unstructured, manager string,
) (*unstructured.Unstructured, error) {
	object, err := f.manager.Update(before.DeepCopy(), next, manager)
	if err != nil {
		return nil, err
	}
	return object.(*unstructured.Unstructured), nil
}

// apply merges an applied configuration into an object. Fields that the endpoint ignores are dropped.
func (f fieldTracker) apply(
	live, applied *unstructured.Unstructured, manager string, force bool,
) (*unstructured.Unstructured, error) {
	accepted := applied.DeepCopy()
	if f.subresource == "" {
		delete(accepted.Object, "status")
	} else {
		accepted = &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": applied.GetAPIVersion(), "kind": applied.GetKind(),
		}}
		accepted.SetNamespace(applied.GetNamespace())
		accepted.SetName(applied.GetName())
		if uid := applied.GetUID(); uid != "" {
			accepted.SetUID(uid)
		}
		if version := applied.GetResourceVersion(); version != "" {
			accepted.SetResourceVersion(version)
		}
		setStatus(accepted, applied)
	}
	object, err := f.manager.Apply(live.DeepCopy(), accepted, manager, force)
	if err != nil {
		return nil, err
	}
	return object.(*unstructured.Unstructured), nil
}

// equalContent reports whether two objects have the same fields except metadata and status.
func equalContent(a, b *unstructured.Unstructured) bool {
	return reflect.DeepEqual(content(a), content(b))
}

func content(object *unstructured.Unstructured) map[string]any {
	content := map[string]any{}
	for name, value := range object.Object {
		if name != "metadata" && name != "status" {
			content[name] = value
		}
	}
	return content
}

// equalExceptTimes reports whether two objects are equal, except for the times in managedFields.
func equalExceptTimes(a, b *unstructured.Unstructured) bool {
	return reflect.DeepEqual(withoutTimes(a).Object, withoutTimes(b).Object)
}

func withoutTimes(object *unstructured.Unstructured) *unstructured.Unstructured {
	object = object.DeepCopy()
	managed := object.GetManagedFields()
	for i := range managed {
		managed[i].Time = nil
	}
	object.SetManagedFields(managed)
	return object
}

// sameInAllVersions converts objects like a CRD without a conversion webhook: only the apiVersion changes.
type sameInAllVersions struct{}

func (sameInAllVersions) Convert(_, _, _ any) error { return errors.New("not supported") }

func (sameInAllVersions) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	gvk := in.GetObjectKind().GroupVersionKind()
	target, ok := gv.KindForGroupVersionKinds([]schema.GroupVersionKind{gvk})
	if !ok {
		return nil, fmt.Errorf("no version of %s", gvk.GroupKind())
	}
	out := in.DeepCopyObject()
	out.GetObjectKind().SetGroupVersionKind(target)
	return out, nil
}

func (sameInAllVersions) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

type noDefaults struct{}

func (noDefaults) Default(runtime.Object) {}

type newObjects struct{}

func (newObjects) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	return object, nil
}
