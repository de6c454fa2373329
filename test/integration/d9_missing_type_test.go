package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// After a CRD is deleted, the API server responds to requests for the CRD's objects with a NotFound error that contains
// no object name. If a handler returns this error for the type of the object that it reconciles, the engine does not
// retry the object, whether or not it receives type events. If a handler returns this error for an unknown child type,
// the call counts as a failure.
func TestD9_DeletedCRDEndsRetriesOfItsObjects(t *testing.T) {
	t.Run("without type events", func(t *testing.T) { testDeletedCRD(t, false) })
	t.Run("with type events from a mapper", func(t *testing.T) { testDeletedCRD(t, true) })
}

func testDeletedCRD(t *testing.T, withMapper bool) {
	h := newHarness(t)
	gvr, parent := h.define(h.newType()), h.widgets()
	h.apply(gvr, "a", 0)
	h.apply(gvr, "b", 0)
	h.apply(parent, "p", 0)
	counts := &outcomes{}
	opts := []dynamiccontroller.Option{dynamiccontroller.WithMetrics(counts)}
	if withMapper {
		m, _ := h.mapper()
		opts = append(opts, dynamiccontroller.WithTypeEvents(m.TypeEvents))
	}
	c := h.controller(dynamiccontroller.Config{
		QueueMaxRetries: 10, MinRetryDelay: 50 * time.Millisecond, MaxRetryDelay: 500 * time.Millisecond, ResyncPeriod: -1,
	}, opts...)
	h.run(c)
	calls := newRecorder(t, func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		lister, err := c.Lister(gvr)
		if err != nil {
			return err
		}
		if _, err := lister.Get(id.NamespacedKey); !apierrors.IsNotFound(err) {
			return err
		}
		return h.patchUntilTypeNotFound(ctx, id)
	})
	h.serve(c, gvr, calls.handle)
	h.synced(c, gvr)
	calls.waitForTotal(2)
	h.undefine(gvr)
	h.eventually("the last calls return", func() error {
		for _, status := range c.Status() {
			if status.Parked > 0 {
				t.Fatalf("an object was parked: %+v", status.NewestParked)
			}
		}
		if n := counts.count(dynamiccontroller.OutcomeGone); n != 2 {
			return fmt.Errorf("got %d calls with outcome %s, want 2", n, dynamiccontroller.OutcomeGone)
		}
		return nil
	})
	status := c.Status()[0]
	if status.Failing != 0 || status.Delayed != 0 || status.State != dynamiccontroller.TypeNotFound {
		t.Errorf("got status %+v", status)
	}

	h.testUnknownChildType(c, parent)
	if n := counts.count(dynamiccontroller.OutcomeGone); n != 2 {
		t.Errorf("got %d calls with outcome %s, want 2", n, dynamiccontroller.OutcomeGone)
	}
}

// patchUntilTypeNotFound patches a deleted object until its type has also been removed. It then returns the NotFound
// error for the missing type. This error contains no object name.
func (h *harness) patchUntilTypeNotFound(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	objects := h.client.Resource(id.GVR).Namespace(id.Namespace())
	patch := []byte(`{"status":{"phase":"Gone"}}`)
	for {
		_, err := objects.Patch(ctx, id.Name(), types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		if !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("want NotFound"), err)
		}
		if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Details.Name == "" {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// testUnknownChildType checks that an object is retried if its handler fails to create a child of an unknown type.
func (h *harness) testUnknownChildType(c *dynamiccontroller.DynamicController, parent gvrType) {
	h.Helper()
	unknown := h.newType()
	calls := newRecorder(h.T, func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
		child := &unstructured.Unstructured{}
		child.SetAPIVersion(unknown.GroupVersion().String())
		child.SetKind("Widget")
		child.SetName("child")
		_, err := h.client.Resource(unknown).Namespace(h.namespace).Create(ctx, child, metav1.CreateOptions{})
		if ctx.Err() == nil && !apierrors.IsNotFound(err) {
			h.Errorf("got %v, want NotFound", err)
		}
		return err
	})
	h.serve(c, parent, calls.handle)
	calls.waitFor(h.id(parent, "p"), 5)
}
