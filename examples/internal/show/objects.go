package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/jsonpath"
)

// The steps in this file are for objects in the namespace default that have no manifest. Objects are named as in
// kubectl, for example "configmap/red".

// hasValue waits until the object exists and has the value at the path.
func hasValue(what, path, value string) step {
	return func(ctx context.Context, s *environment) error {
		s.printf("$ kubectl wait --for=jsonpath='%s'='%s' %s", path, value, what)
		at := jsonpath.New(what).AllowMissingKeys(true)
		if err := at.Parse(path); err != nil {
			return err
		}
		var last bytes.Buffer
		err := s.waitFor(ctx, what, func(object *unstructured.Unstructured) (bool, error) {
			last.Reset()
			if object == nil {
				return false, nil
			}
			err := at.Execute(&last, object.Object)
			return last.String() == value, err
		})
		if err != nil {
			return fmt.Errorf("%s has %q at %s, not %q: %w", what, &last, path, value, err)
		}
		return nil
	}
}

// recreates deletes the object and waits until another one with its name exists.
func recreates(what string) step {
	return func(ctx context.Context, s *environment) error {
		s.printf("$ kubectl delete %s", what)
		objects, name, err := s.named(what)
		if err != nil {
			return err
		}
		old, err := objects.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := objects.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return err
		}
		s.printf("$ kubectl wait --for=create %s", what)
		err = s.waitFor(ctx, what, func(object *unstructured.Unstructured) (bool, error) {
			return object != nil && object.GetUID() != old.GetUID(), nil
		})
		if err != nil {
			return fmt.Errorf("%s was not created again: %w", what, err)
		}
		return nil
	}
}

// deletes waits until the object no longer exists.
func deletes(what string) step {
	return func(ctx context.Context, s *environment) error {
		s.printf("$ kubectl wait --for=delete %s", what)
		err := s.waitFor(ctx, what, func(object *unstructured.Unstructured) (bool, error) { return object == nil, nil })
		if err != nil {
			return fmt.Errorf("%s still exists: %w", what, err)
		}
		return nil
	}
}

// waitFor waits until the condition is true. The condition receives nil while the object does not exist.
func (s *environment) waitFor(
	ctx context.Context, what string, condition func(*unstructured.Unstructured) (bool, error),
) error {
	objects, name, err := s.named(what)
	if err != nil {
		return err
	}
	return eventually(ctx, func(ctx context.Context) (bool, error) {
		object, err := objects.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			object, err = nil, nil
		}
		if err != nil {
			return false, err
		}
		return condition(object)
	})
}

// named returns the client for an object, and the object's name.
func (s *environment) named(what string) (objects dynamic.ResourceInterface, name string, err error) {
	resource, name, _ := strings.Cut(what, "/")
	gvr, err := s.mapper.ResourceFor(schema.GroupVersionResource{Resource: resource})
	if err != nil {
		return nil, "", err
	}
	return s.client.Resource(gvr).Namespace(metav1.NamespaceDefault), name, nil
}
