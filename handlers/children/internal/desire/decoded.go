package desire

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/internal/jsonvalue"
)

var errNoObject = errors.New("must have an object")

// Decoded returns the desired children with values of the types into which JSON is decoded. The caller's objects are
// not changed. The error joins the errors for all objects that have other values, which are left out.
func (d Desired) Decoded() (Desired, error) {
	var errs []error
	stages := make([][]Spec, len(d.Stages))
	for n, stage := range d.Stages {
		for i, child := range stage {
			object, err := decodedObject(child.Object)
			if err != nil {
				errs = append(errs, fmt.Errorf("stage %d, child %d: %w", n, i, err))
				continue
			}
			child.Object = object
			stages[n] = append(stages[n], child)
		}
	}
	var absent []*unstructured.Unstructured
	for i, object := range d.Absent {
		object, err := decodedObject(object)
		if err != nil {
			errs = append(errs, fmt.Errorf("absent object %d: %w", i, err))
			continue
		}
		absent = append(absent, object)
	}
	d.Stages, d.Absent = stages, absent
	return d, errors.Join(errs...)
}

// decodedObject returns the same object if all its values have the types into which JSON is decoded. The error contains
// the path of a value. For a Secret, it contains only the name of the field, because keys can be secret as well.
func decodedObject(object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if object == nil {
		return nil, errNoObject
	}
	fields, err := jsonvalue.Object(object.Object)
	if err == nil {
		return &unstructured.Unstructured{Object: fields}, nil
	}
	var invalid *jsonvalue.Error
	if object.GroupVersionKind() == SecretKind && errors.As(err, &invalid) {
		err = &jsonvalue.Error{Path: invalid.Path[:1], Problem: "must have values that JSON can represent"}
	}
	return nil, fmt.Errorf("%s %s: %w", object.GroupVersionKind().GroupKind(), object.GetName(), err)
}
