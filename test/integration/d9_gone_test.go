package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// The object's own NotFound ends its retries; that of anything else does not, and neither does one that comes with
// another error.
func TestD9_OnlyTheObjectsOwnNotFoundEndsItsRetries(t *testing.T) {
	h := newHarness(t)
	gvr := h.define(h.newType())
	h.apply(gvr, "there", 0)
	notFound := func(name string) error {
		_, err := h.client.Resource(gvr).Namespace(h.namespace).Get(t.Context(), name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("got %v", err)
		}
		return err
	}
	own := fmt.Errorf("get the object: %w", notFound("gone"))
	errs := map[string]error{
		"gone":   own,
		"child":  notFound("some-child"),
		"joined": errors.Join(notFound("joined"), errors.New("something else")),
		"there":  fmt.Errorf("of the same name in another namespace: %w", notFoundNamed(t, h, gvr, "there")),
	}
	c := h.controller(dynamiccontroller.Config{MinRetryDelay: time.Millisecond, MaxRetryDelay: 2 * time.Millisecond, QueueMaxRetries: -1})
	h.run(c)
	calls := newRecorder(t, func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error { return errs[id.Name()] })
	h.serve(c, gvr, calls.handle)
	h.synced(c, gvr)
	for name := range errs {
		c.Enqueue(h.id(gvr, name))
	}
	for _, name := range []string{"child", "joined", "there"} {
		calls.waitFor(h.id(gvr, name), 20)
	}
	if n := calls.count(h.id(gvr, "gone")); n != 1 {
		t.Errorf("%d calls for an object that is gone", n)
	}
}

func notFoundNamed(t *testing.T, h *harness, gvr gvrType, name string) error {
	_, err := h.client.Resource(gvr).Namespace("default").Get(t.Context(), name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("got %v", err)
	}
	return err
}

// The object's own namespace terminating ends its retries; another's does not.
func TestD9_OnlyTheObjectsOwnNamespaceTerminatingEndsItsRetries(t *testing.T) {
	h := newHarness(t)
	gvr := h.define(h.newType())
	terminating := h.newNamespace()
	h.applyIn(gvr, terminating, "inside", 0)
	h.apply(gvr, "outside", 0)
	// A finalizer keeps the namespace from being gone before the test is.
	configMaps := h.clients.CoreV1().ConfigMaps(terminating)
	kept, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept", Finalizers: []string{"example.com/test"}}}, metav1.CreateOptions{})
	h.noError(err)
	t.Cleanup(func() {
		kept, err := configMaps.Get(context.Background(), kept.Name, metav1.GetOptions{})
		if err == nil {
			kept.Finalizers = nil
			_, err = configMaps.Update(context.Background(), kept, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Error(err)
		}
	})
	h.noError(h.clients.CoreV1().Namespaces().Delete(t.Context(), terminating, metav1.DeleteOptions{}))

	create := func(ctx context.Context) error {
		_, err := configMaps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "child-"}}, metav1.CreateOptions{})
		if err == nil {
			return errors.New("not terminating yet")
		}
		return fmt.Errorf("create a child: %w", err)
	}
	h.eventually("creating is refused", func() error {
		if err := create(t.Context()); !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return err
		}
		return nil
	})
	counts := &outcomes{}
	c := h.controller(dynamiccontroller.Config{MinRetryDelay: time.Millisecond, MaxRetryDelay: 2 * time.Millisecond, QueueMaxRetries: -1},
		dynamiccontroller.WithMetrics(counts))
	h.run(c)
	calls := newRecorder(t, func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error { return create(ctx) })
	h.serve(c, gvr, calls.handle)
	h.synced(c, gvr)
	inside := dynamiccontroller.ObjectIdentifiers{NamespacedKey: terminating + "/inside", GVR: gvr}
	c.Enqueue(inside) // the namespace controller may have deleted it already
	calls.waitFor(inside, 1)
	calls.waitFor(h.id(gvr, "outside"), 20)
	// The object's own deletion may call once more, and once more for the enqueued.
	if n := calls.count(inside); n > 3 || counts.count(dynamiccontroller.OutcomeGone) != n {
		t.Errorf("%d calls for the object inside, %d outcomes say that it is gone", n, counts.count(dynamiccontroller.OutcomeGone))
	}
}
