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

// If a handler returns a NotFound error for the object itself, the object is not retried. If the NotFound error is for
// another object or is joined with another error, the object is retried.
func TestD9_NotFoundForObjectEndsItsRetries(t *testing.T) {
	h := newHarness(t)
	gvr := h.widgets()
	h.apply(gvr, "exists", 0)
	notFound := func(name string) error {
		_, err := h.client.Resource(gvr).Namespace(h.namespace).Get(t.Context(), name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("got %v, want NotFound", err)
		}
		return err
	}
	own := fmt.Errorf("get the object: %w", notFound("gone"))
	errs := map[string]error{
		"gone":   own,
		"child":  notFound("some-child"),
		"joined": errors.Join(notFound("joined"), errors.New("something else")),
		"exists": fmt.Errorf("same name in another namespace: %w", notFoundNamed(t, h, gvr, "exists")),
	}
	c := h.controller(fastRetries)
	h.run(c)
	calls := newRecorder(t, func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		return errs[id.Name()]
	})
	h.serve(c, gvr, calls.handle)
	h.synced(c, gvr)
	for name := range errs {
		c.Enqueue(h.id(gvr, name))
	}
	for _, name := range []string{"child", "joined", "exists"} {
		calls.waitFor(h.id(gvr, name), 20)
	}
	if n := calls.count(h.id(gvr, "gone")); n != 1 {
		t.Errorf("got %d calls for a missing object, want 1", n)
	}
}

// fastRetries retries failed objects quickly and indefinitely.
var fastRetries = dynamiccontroller.Config{
	MinRetryDelay: time.Millisecond, MaxRetryDelay: 2 * time.Millisecond, QueueMaxRetries: -1,
}

func notFoundNamed(t *testing.T, h *harness, gvr gvrType, name string) error {
	_, err := h.client.Resource(gvr).Namespace("default").Get(t.Context(), name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("got %v, want NotFound", err)
	}
	return err
}

// If a handler fails because the object's own namespace is terminating, the object is not retried. If another namespace
// is terminating, the object is retried.
func TestD9_TerminatingNamespaceEndsRetriesOfItsObjects(t *testing.T) {
	h := newHarness(t)
	gvr := h.widgets()
	terminating := h.newNamespace()
	h.applyIn(gvr, terminating, "inside", 0)
	h.apply(gvr, "outside", 0)
	// A ConfigMap with a finalizer keeps the namespace terminating until the test ends.
	configMaps := h.clients.CoreV1().ConfigMaps(terminating)
	withFinalizer, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: "with-finalizer", Finalizers: []string{"example.com/test"},
	}}, metav1.CreateOptions{})
	h.noError(err)
	t.Cleanup(func() {
		withFinalizer, err := configMaps.Get(context.Background(), withFinalizer.Name, metav1.GetOptions{})
		if err == nil {
			withFinalizer.Finalizers = nil
			_, err = configMaps.Update(context.Background(), withFinalizer, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Error(err)
		}
	})
	h.noError(h.clients.CoreV1().Namespaces().Delete(t.Context(), terminating, metav1.DeleteOptions{}))

	create := func(ctx context.Context) error {
		_, err := configMaps.Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "child-"}}, metav1.CreateOptions{})
		if err == nil {
			return errors.New("the namespace is not terminating yet")
		}
		return fmt.Errorf("create a child: %w", err)
	}
	h.eventually("the API server rejects creates", func() error {
		if err := create(t.Context()); !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return err
		}
		return nil
	})
	counts := &outcomes{}
	c := h.controller(fastRetries, dynamiccontroller.WithMetrics(counts))
	h.run(c)
	calls := newRecorder(t, func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
		return create(ctx)
	})
	h.serve(c, gvr, calls.handle)
	h.synced(c, gvr)
	inside := dynamiccontroller.ObjectIdentifiers{NamespacedKey: terminating + "/inside", GVR: gvr}
	c.Enqueue(inside) // Needed if the namespace controller has already deleted the object.
	calls.waitFor(inside, 1)
	calls.waitFor(h.id(gvr, "outside"), 20)
	// The initial list, the call to Enqueue and the deletion of the object each cause at most one handler call. The engine
	// counts the outcome of a handler call after the call has returned.
	h.eventually("the outcomes of all calls are counted", func() error {
		calls, outcomes := calls.count(inside), counts.count(dynamiccontroller.OutcomeGone)
		if calls > 3 {
			t.Fatalf("got %d calls for the object in the terminating namespace, want at most 3", calls)
		}
		if outcomes != calls {
			return fmt.Errorf("got %d calls, of which %d have outcome %s", calls, outcomes, dynamiccontroller.OutcomeGone)
		}
		return nil
	})
}
