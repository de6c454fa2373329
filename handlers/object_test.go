package handlers

import (
	"context"
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

func TestObject_ReadErrorCallsNeitherHandler(t *testing.T) {
	notSynced := Cached(func(schema.GroupVersionResource) (cache.GenericLister, error) {
		return nil, dynamiccontroller.ErrNotSynced
	})
	reconcile := func(context.Context, identifiers, *unstructured.Unstructured) error {
		t.Error("reconcile was called")
		return nil
	}
	gone := func(context.Context, identifiers) error { t.Error("gone was called"); return nil }
	if err := Object(notSynced, reconcile, gone)(t.Context(), first); !errors.Is(err, dynamiccontroller.ErrNotSynced) {
		t.Errorf("got %v", err)
	}
}

func TestObject_NilGoneHandlerIsNotCalled(t *testing.T) {
	if err := Object(Live(newFakeServer()), nil, nil)(t.Context(), first); err != nil {
		t.Errorf("got %v", err)
	}
}
