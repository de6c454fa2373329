package controllertest

import (
	"errors"
	"fmt"
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// fieldTracker maintains the managedFields of a type's objects, for one of its endpoints.
type fieldTracker struct {
	manager *managedfields.FieldManager
}

// newFieldTracker returns the tracker for an endpoint that ignores changes to the fields with the given names.
func newFieldTracker(t Type, subresource string, ignored ...string) fieldTracker {
	gv := t.GVR.GroupVersion()
	paths := fieldpath.NewSet()
	for _, name := range ignored {
		paths.Insert(fieldpath.MakePathOrDie(name))
	}
	filters := map[fieldpath.APIVersion]fieldpath.Filter{
		fieldpath.APIVersion(gv.String()): fieldpath.NewExcludeSetFilter(paths),
	}
	manager, err := managedfields.NewDefaultCRDFieldManager(typeConverter{}, sameInAllVersions{}, noDefaults{},
		newObjects{}, gv.WithKind(t.Kind), gv, subresource, filters)
	if err != nil {
		panic(fmt.Sprintf("controllertest: create a field manager: %v", err))
	}
	return fieldTracker{manager}
}

// update sets the managedFields of an object that is created or updated.
func (f fieldTracker) update(before, next *unstructured.Unstructured, manager string) *unstructured.Unstructured {
	if next.GetKind() != before.GetKind() { // an API server finds no schema
		next.SetManagedFields(before.GetManagedFields())
		return next
	}
	return f.manager.UpdateNoErrors(before.DeepCopy(), next, manager).(*unstructured.Unstructured)
}

// apply merges an applied configuration into an object.
func (f fieldTracker) apply(
	live, applied *unstructured.Unstructured, manager string, force bool,
) (*unstructured.Unstructured, error) {
	object, err := f.manager.Apply(live.DeepCopy(), applied, manager, force)
	if err != nil {
		return nil, asStatus(err)
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

// typeConverter gives the metadata of objects its type, and deduces the types of all other fields, as for a
// CustomResourceDefinition that preserves unknown fields. Other lists are therefore replaced, not merged.
type typeConverter struct{}

func (typeConverter) ObjectToTyped(object runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	return objectType().FromUnstructured(object.(*unstructured.Unstructured).Object, opts...)
}

func (typeConverter) TypedToObject(value *typed.TypedValue) (runtime.Object, error) {
	content, ok := value.AsValue().Unstructured().(map[string]any)
	if !ok {
		return nil, errors.New("an object must be a map")
	}
	return &unstructured.Unstructured{Object: content}, nil
}

var objectType = sync.OnceValue(func() typed.ParseableType {
	parser, err := typed.NewParser(objectSchema)
	if err != nil {
		panic(fmt.Sprintf("controllertest: parse the schema of objects: %v", err))
	}
	return parser.Type("object")
})

// objectSchema contains the parts of the Kubernetes OpenAPI document that describe metadata.
const objectSchema typed.YAMLObject = `
types:
- name: object
  map:
    fields:
    - {name: apiVersion, type: {scalar: string}}
    - {name: kind, type: {scalar: string}}
    - {name: metadata, type: {namedType: metadata}}
    elementType: {namedType: deduced}
- name: metadata
  map:
    fields:
    - {name: annotations, type: {map: {elementType: {scalar: string}}}}
    - {name: creationTimestamp, type: {scalar: untyped}}
    - {name: deletionGracePeriodSeconds, type: {scalar: numeric}}
    - {name: deletionTimestamp, type: {scalar: untyped}}
    - {name: finalizers, type: {list: {elementType: {scalar: string}, elementRelationship: associative}}}
    - {name: generateName, type: {scalar: string}}
    - {name: generation, type: {scalar: numeric}}
    - {name: labels, type: {map: {elementType: {scalar: string}}}}
    - {name: managedFields, type: {list: {elementType: {namedType: atomic}, elementRelationship: atomic}}}
    - {name: name, type: {scalar: string}}
    - {name: namespace, type: {scalar: string}}
    - name: ownerReferences
      type: {list: {elementType: {namedType: owner}, elementRelationship: associative, keys: [uid]}}
    - {name: resourceVersion, type: {scalar: string}}
    - {name: selfLink, type: {scalar: string}}
    - {name: uid, type: {scalar: string}}
- name: owner
  map:
    fields:
    - {name: apiVersion, type: {scalar: string}, default: ""}
    - {name: blockOwnerDeletion, type: {scalar: boolean}}
    - {name: controller, type: {scalar: boolean}}
    - {name: kind, type: {scalar: string}, default: ""}
    - {name: name, type: {scalar: string}, default: ""}
    - {name: uid, type: {scalar: string}, default: ""}
    elementRelationship: atomic
- name: atomic
  scalar: untyped
  list: {elementType: {namedType: atomic}, elementRelationship: atomic}
  map: {elementType: {namedType: atomic}, elementRelationship: atomic}
- name: deduced
  scalar: untyped
  list: {elementType: {namedType: atomic}, elementRelationship: atomic}
  map: {elementType: {namedType: deduced}, elementRelationship: separable}
`
