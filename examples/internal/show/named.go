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

// The steps here are about objects that no manifest defines, by the names that kubectl has for them in the namespace
// default: "configmap/red".

// becomes waits until the object is there, with this value at the path.
func becomes(what, path, value string) step {
	return func(ctx context.Context, s *stage) error {
		s.say("$ kubectl wait --for=jsonpath='%s'='%s' %s", path, value, what)
		at := jsonpath.New(what).AllowMissingKeys(true)
		if err := at.Parse(path); err != nil {
			return err
		}
		var last bytes.Buffer
		err := s.see(ctx, what, func(object *unstructured.Unstructured) (bool, error) {
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

// comesBack deletes the object and waits for another one of its name.
func comesBack(what string) step {
	return func(ctx context.Context, s *stage) error {
		s.say("$ kubectl delete %s", what)
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
		s.say("$ kubectl wait --for=create %s", what)
		err = s.see(ctx, what, func(object *unstructured.Unstructured) (bool, error) {
			return object != nil && object.GetUID() != old.GetUID(), nil
		})
		if err != nil {
			return fmt.Errorf("%s does not come back: %w", what, err)
		}
		return nil
	}
}

// goes waits until the object is gone.
func goes(what string) step {
	return func(ctx context.Context, s *stage) error {
		s.say("$ kubectl wait --for=delete %s", what)
		err := s.see(ctx, what, func(object *unstructured.Unstructured) (bool, error) { return object == nil, nil })
		if err != nil {
			return fmt.Errorf("%s is not gone: %w", what, err)
		}
		return nil
	}
}

// see waits until the object is as it should be, which is asked with nil while there is none.
func (s *stage) see(ctx context.Context, what string, right func(*unstructured.Unstructured) (bool, error)) error {
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
		return right(object)
	})
}

func (s *stage) named(what string) (objects dynamic.ResourceInterface, name string, err error) {
	resource, name, _ := strings.Cut(what, "/")
	gvr, err := s.mapper.ResourceFor(schema.GroupVersionResource{Resource: resource})
	if err != nil {
		return nil, "", err
	}
	return s.client.Resource(gvr).Namespace(metav1.NamespaceDefault), name, nil
}
