package handlers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/internal/live"
	"github.com/dynamic-controller/engine/handlers/internal/patch"
	"github.com/dynamic-controller/engine/handlers/internal/perrun"
	"github.com/dynamic-controller/engine/internal/jsonvalue"
)

const (
	// defaultExpectationsTimeout equals ExpectationsTimeout in Kubernetes' controllers
	// (pkg/controller/controller_utils.go).
	defaultExpectationsTimeout = 5 * time.Minute
	// awaitRequeue is the requeue delay of Await. An event for a child usually causes an earlier reconcile.
	awaitRequeue = time.Second
	// confirmInterval is the interval at which an expected child is read from the API server. This is necessary because
	// the handler never sees a child that is created and deleted between two reads of the cache.
	confirmInterval = 10 * time.Second
	// As in Kubernetes, a generated name leaves room for a suffix within the 63 characters of a label value.
	maxGenerateNameLength, suffixLength = 58, 5
)

// ExpectationsConfig configures [Expectations]. Client and Cache are required.
type ExpectationsConfig struct {
	Client dynamic.Interface
	// Cache must be the Reader that the handler uses to count children.
	Cache Reader
	// Timeout is the time after which a change is no longer expected even if the cache does not show it. Defaults to 5
	// minutes, as in kube-controller-manager.
	Timeout time.Duration
}

// Expectations records the creations and deletions of an owner's children until the cache shows them. The engine does
// not call a handler again until the caches contain what it has written: see D12 in package dynamiccontroller. This
// does not include creations with a generated name whose response was lost, the writes of the previous leader after a
// crash, a watch that lags for longer than Config.MaxWriteLag, and clients whose config does not record writes. If
// these matter, a handler that counts children uses Expectations, which generates the names itself and reads the
// children once in each run, to create and delete not too many:
//
//	if err := e.CatchUp(ctx, owner, gvr, namespace, selector); err != nil {
//		return err
//	}
//	if err := e.Await(ctx, owner); err != nil {
//		return err
//	}
//	children := ... // from the cache
//	for i := len(children); i < replicas; i++ {
//		_, err := e.Create(ctx, owner, gvr, child)
//		...
//	}
//
// Expectations reads the cache and needs no events, so there is nothing to register, and a missed event does no harm.
//
// Expectations are stored in memory, separately for each run of the controller. When a replica becomes the leader, its
// cache can lag behind the previous leader's writes. [Expectations.CatchUp], called before Await, therefore lists
// the children from the API server once in each run. The owner should be up to date too, because it determines the
// number of children: see [Fresh]. Even then, the API server can still execute a request that the previous leader sent.
// A handler that needs exactly n children must therefore delete excess children. If there must never be too many
// children, give them fixed names and use children.Reconciler.
//
// Expectations is safe for concurrent use. It uses no memory for an owner that has no expectations and for which
// CatchUp was not called. The expectations of an owner are dropped when [Expectations.Forget] is called, when they time
// out, and at the end of each run. The owners for which CatchUp was called are also stored, until Forget is called or
// the run ends.
type Expectations struct {
	config ExpectationsConfig
	runs   perrun.State[expectedChildren]
}

// NewExpectations returns Expectations. The error lists all invalid fields of config.
func NewExpectations(config ExpectationsConfig) (*Expectations, error) {
	var errs []error
	if config.Client == nil {
		errs = append(errs, errors.New("handlers: ExpectationsConfig.Client: must not be nil"))
	}
	if config.Cache == nil {
		errs = append(errs, errors.New("handlers: ExpectationsConfig.Cache: must not be nil"))
	}
	if config.Timeout < 0 {
		errs = append(errs, fmt.Errorf("handlers: ExpectationsConfig.Timeout %s: must not be negative", config.Timeout))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	config.Timeout = cmp.Or(config.Timeout, defaultExpectationsTimeout)
	return &Expectations{config: config}, nil
}

// Await returns nil if the cache reflects all writes for the owner. Otherwise, it returns a RequeueAfter of one second,
// which the handler should return. If the controller watches the children with Owns, an event for a child causes an
// earlier reconcile.
//
// If the cache does not show a write within ten seconds, Await reads the child from the API server. If the response to
// a create was lost, Await sends the create again, with the same name. It returns the error from that request unless
// the API server rejects the create.
func (e *Expectations) Await(ctx context.Context, owner dynamiccontroller.ObjectIdentifiers) error {
	expected := e.runs.For(ctx)
	waiting := false
	for child, expectation := range expected.of(owner) {
		met, err := e.isMet(ctx, child, &expectation)
		if err != nil {
			expected.update(owner, child, expectation)
			return fmt.Errorf("compare %s with the cache: %w", child, err)
		}
		if met {
			expected.remove(owner, child)
			continue
		}
		expected.update(owner, child, expectation)
		waiting = true
	}
	if waiting {
		return dynamiccontroller.RequeueAfter(awaitRequeue)
	}
	return nil
}

// isMet reports whether an expectation is met or has timed out.
func (e *Expectations) isMet(
	ctx context.Context, child dynamiccontroller.ObjectIdentifiers, expectation *expectation,
) (bool, error) {
	now := time.Now()
	if now.Sub(expectation.since) >= e.config.Timeout {
		return true, nil
	}
	cached, err := e.config.Cache.Get(ctx, child.GVR, child.Namespace(), child.Name())
	switch {
	case apierrors.IsNotFound(err):
		if expectation.deleted {
			return true, nil
		}
	case err != nil:
		return false, err
	case expectation.isMetBy(cached):
		return true, nil
	}
	if now.Sub(expectation.confirmed) < confirmInterval {
		return false, nil
	}
	expectation.confirmed = now
	if expectation.create != nil {
		return e.createAgain(ctx, child, expectation)
	}
	current, err := live.Get(ctx, e.config.Client, child)
	switch {
	case apierrors.IsNotFound(err):
		return !expectation.deleted, nil // the child must also disappear from the cache
	case err != nil:
		return false, err
	case current.GetUID() != expectation.uid:
		return !expectation.deleted, nil
	}
	return expectation.deleted && current.GetDeletionTimestamp() == nil, nil // the delete was not executed
}

// createAgain repeats a create whose response was lost. It returns true if the API server rejects the create, because
// the child is then no longer expected.
func (e *Expectations) createAgain(
	ctx context.Context, child dynamiccontroller.ObjectIdentifiers, expectation *expectation,
) (rejected bool, err error) {
	objects := live.Resource(e.config.Client, child.GVR, child.Namespace())
	current, err := objects.Create(ctx, expectation.create, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		current, err = live.Get(ctx, e.config.Client, child)
	}
	switch {
	case isRejected(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("create again: %w", err)
	}
	expectation.uid, expectation.create = current.GetUID(), nil
	return false, nil
}

// CatchUp makes Await also wait until the cache has caught up with the API server for the objects of the type that are
// in the namespace and match the selector. An empty namespace means all namespaces. CatchUp sends a list request when
// it is first called for an owner and a type in a run of the controller, and when it is first called after Forget.
// Otherwise it does nothing. It needs list on the type.
func (e *Expectations) CatchUp(
	ctx context.Context, owner dynamiccontroller.ObjectIdentifiers,
	gvr schema.GroupVersionResource, namespace string, selector labels.Selector,
) error {
	expected := e.runs.For(ctx)
	if expected.hasCaughtUp(owner, gvr) {
		return nil
	}
	// The cache is read first: an object in the cache that is missing from the later list has been deleted. In the reverse
	// order, such an object could be new instead.
	cached, err := e.config.Cache.List(ctx, gvr, namespace, selector)
	if err != nil {
		return fmt.Errorf("list %s in the cache for %s: %w", gvr.Resource, owner, err)
	}
	current, err := live.List(ctx, e.config.Client, gvr, namespace, selector)
	if err != nil {
		return fmt.Errorf("list %s for %s: %w", gvr.Resource, owner, err)
	}
	expectations := map[dynamiccontroller.ObjectIdentifiers]expectation{}
	for _, child := range cached {
		expectations[live.Identify(gvr, child)] = expectation{deleted: true, uid: child.GetUID()}
	}
	for _, child := range current {
		deleted := child.GetDeletionTimestamp() != nil
		expectations[live.Identify(gvr, child)] = expectation{deleted: deleted, uid: child.GetUID()}
	}
	for child, expectation := range expectations {
		expected.add(owner, child, expectation, e.config.Timeout)
	}
	expected.setCaughtUp(owner, gvr)
	return nil
}

// Create creates a child, which is expected even before the request is sent. If the child has no name, Create generates
// one from its generateName and a random suffix, so that the child can be found if the response is lost. After a lost
// response, the child is expected until Await has found out whether it exists. A child that the API server rejects is
// not expected.
//
// Create needs create on the type of the child, and get for children that do not appear in the cache. If the admission
// plugin OwnerReferencesPermissionEnforcement is enabled, an owner reference with blockOwnerDeletion also needs update
// on the finalizers subresource of the owner.
func (e *Expectations) Create(
	ctx context.Context, owner dynamiccontroller.ObjectIdentifiers,
	gvr schema.GroupVersionResource, child *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	expected := e.runs.For(ctx)
	fields, err := jsonvalue.Object(child.Object)
	if err != nil {
		return nil, fmt.Errorf("create %s for %s: %w", gvr.Resource, owner, err)
	}
	child = (&unstructured.Unstructured{Object: fields}).DeepCopy()
	if child.GetName() == "" {
		if child.GetGenerateName() == "" {
			return nil, fmt.Errorf("create %s for %s: the child has neither a name nor a generateName", gvr.Resource, owner)
		}
		child.SetName(generateName(child.GetGenerateName()))
	}
	id := live.Identify(gvr, child)
	expected.add(owner, id, expectation{create: child}, e.config.Timeout)
	created, err := live.Resource(e.config.Client, gvr, child.GetNamespace()).Create(ctx, child, metav1.CreateOptions{})
	if err != nil {
		if isRejected(err) {
			expected.remove(owner, id)
		}
		return nil, fmt.Errorf("create %s for %s: %w", id, owner, err)
	}
	expected.add(owner, id, expectation{uid: created.GetUID()}, e.config.Timeout)
	return created, nil
}

// Delete deletes a child. The cache is then expected to drop the child or to show its deletionTimestamp. Delete returns
// nil if the child no longer exists or has been replaced by another object with the same name.
//
// Delete needs delete on the type of the child, and get for children that do not disappear from the cache.
func (e *Expectations) Delete(
	ctx context.Context, owner dynamiccontroller.ObjectIdentifiers,
	gvr schema.GroupVersionResource, child *unstructured.Unstructured,
) error {
	expected := e.runs.For(ctx)
	id, uid := live.Identify(gvr, child), child.GetUID()
	expected.add(owner, id, expectation{deleted: true, uid: uid}, e.config.Timeout)
	err := live.Resource(e.config.Client, gvr, child.GetNamespace()).Delete(ctx, child.GetName(), metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &uid},
		PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
	})
	if apierrors.IsConflict(err) {
		// Either the child has been replaced, or the conflict comes from an admission webhook.
		now, getErr := live.Get(ctx, e.config.Client, id)
		if apierrors.IsNotFound(getErr) || getErr == nil && now.GetUID() != uid {
			return nil
		}
	}
	if patch.IsGone(err) {
		return nil // the child must still disappear from the cache
	}
	if err != nil {
		if isRejected(err) {
			expected.remove(owner, id)
		}
		return fmt.Errorf("delete %s for %s: %w", id, owner, err)
	}
	return nil
}

// Forget drops the expectations of an owner that no longer exists.
func (e *Expectations) Forget(owner dynamiccontroller.ObjectIdentifiers) {
	for _, expected := range e.runs.All() {
		expected.forget(owner)
	}
}

// isRejected reports whether err is a response that shows that the API server did not execute the request. After any
// other error, the request may have been executed.
func isRejected(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusRequestTimeout
}

func generateName(base string) string {
	return base[:min(len(base), maxGenerateNameLength)] + utilrand.String(suffixLength)
}
