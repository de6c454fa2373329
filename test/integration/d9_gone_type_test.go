package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// When a CRD is deleted, the API server's answers to requests about its objects name nothing. The last call for each object
// ends there all the same, with type events and without. The same answer about an unknown type of child is a failure.
func TestD9_ADeletedCRDEndsTheRetriesOfItsObjects(t *testing.T) {
	for _, test := range []struct {
		name       string
		withMapper bool
	}{{"without type events", false}, {"with a mapper's type events", true}} {
		t.Run(test.name, func(t *testing.T) {
			h := newHarness(t)
			gvr, parent := h.define(h.newType()), h.define(h.newType())
			childType := h.newType() // never defined
			h.apply(gvr, "a", 0)
			h.apply(gvr, "b", 0)
			h.apply(parent, "p", 0)
			counts := &outcomes{}
			opts := []dynamiccontroller.Option{dynamiccontroller.WithMetrics(counts)}
			if test.withMapper {
				m, _ := h.mapper()
				opts = append(opts, dynamiccontroller.WithTypeEvents(typeEvents(m)))
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
				// The object is gone. Its handler returns when the type is gone as well, and requests about it get a 404 without details.
				objects := h.client.Resource(gvr).Namespace(id.Namespace())
				for {
					_, err := objects.Patch(ctx, id.Name(), types.MergePatchType, []byte(`{"status":{"phase":"Gone"}}`), metav1.PatchOptions{}, "status")
					if !apierrors.IsNotFound(err) {
						return errors.Join(errors.New("want a NotFound"), err)
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
			})
			h.serve(c, gvr, calls.handle)
			h.synced(c, gvr)
			calls.waitForTotal(2)
			h.undefine(gvr)
			h.eventually("the last calls end", func() error {
				for _, status := range c.Status() {
					if status.Parked > 0 {
						t.Fatalf("parked: %+v", status.NewestParked)
					}
				}
				if n := counts.count(dynamiccontroller.OutcomeGone); n != 2 {
					return errors.New("not yet")
				}
				return nil
			})
			if status := c.Status()[0]; status.Failing != 0 || status.Delayed != 0 || status.State != dynamiccontroller.TypeNotFound {
				t.Errorf("%+v", status)
			}

			parents := newRecorder(t, func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
				child := &unstructured.Unstructured{}
				child.SetAPIVersion(childType.GroupVersion().String())
				child.SetKind("Widget")
				child.SetName("child")
				_, err := h.client.Resource(childType).Namespace(h.namespace).Create(ctx, child, metav1.CreateOptions{})
				if ctx.Err() == nil && !apierrors.IsNotFound(err) {
					t.Errorf("got %v", err)
				}
				return err
			})
			h.serve(c, parent, parents.handle)
			parents.waitFor(h.id(parent, "p"), 5)
			if n := counts.count(dynamiccontroller.OutcomeGone); n != 2 {
				t.Errorf("%d outcomes say that an object is gone, want 2", n)
			}
		})
	}
}
