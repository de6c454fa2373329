package handlers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

const (
	// expectationsTimeout is ExpectationsTimeout of Kubernetes' own controllers (pkg/controller/controller_utils.go).
	expectationsTimeout = 5 * time.Minute
	// expectationsPoll is how soon an owner is called again whose children's events do not call it.
	expectationsPoll = time.Second
	// confirmAfter is how long a cache may lag before the API server is asked about a child, once each so long: a child
	// that was made and deleted in between is never seen in a cache.
	confirmAfter = 10 * time.Second
	// maxGeneratedName leaves room for the suffix within the 63 characters of a label's value, as Kubernetes does.
	maxGeneratedName, suffixLength = 58, 5
)

// Expectations remembers which children were made and deleted for an owner and are not yet so in the cache, so that a
// handler which counts its children in a cache that lags neither makes one twice nor deletes another:
//
//	if err := e.CatchUp(ctx, owner, gvr, namespace, selector); err != nil {
//		return err
//	}
//	if err := e.Await(ctx, owner); err != nil {
//		return err
//	}
//	children := ... // from the cache
//	for i := len(children); i < wanted; i++ {
//		_, err := e.Create(ctx, owner, gvr, child)
//		...
//	}
//
// It asks the cache and hears no events, so that nothing has to be wired and an event that is missed does no harm.
//
// What is expected is in memory, and a process begins with nothing. Its cache may lag behind what the process before it did,
// above all that of a standby, which was synced long ago: [Expectations.CatchUp], before Await, asks the API server the first
// time. How many children are wanted should follow from an owner that is no older: see [Fresh]. What can outrun that is a
// request of the earlier process that is still on its way. A handler that must have exactly n therefore deletes what is too
// many; one whose children must never be two gives them names and uses [Children].
//
// It is safe for concurrent use. An owner that expects nothing and never caught up costs nothing; one that is gone is dropped
// by Forget, or, if it never caught up, when its expectations time out.
type Expectations struct {
	client  dynamic.Interface
	cache   Reader
	timeout time.Duration

	mu     sync.Mutex // guards the rest; held across no request
	owners map[dynamiccontroller.ObjectIdentifiers]map[dynamiccontroller.ObjectIdentifiers]expected
	swept  time.Time
	caught map[dynamiccontroller.ObjectIdentifiers]map[schema.GroupVersionResource]bool // owners that caught up with a type
}

// expected is a child that the cache is to show, or no longer to show.
type expected struct {
	deleted bool
	uid     types.UID                  // of the child that is meant; unknown while a create's answer is
	create  *unstructured.Unstructured // what to send again while that is so
	since   time.Time
	asked   time.Time // when the API server last was, or since
}

// NewExpectations writes through client and sees what was written in cache, which must be the one in which the handler
// counts children. What is not seen within the timeout is no longer
// awaited: a timeout of zero is 5 minutes, as in kube-controller-manager.
func NewExpectations(client dynamic.Interface, cache Reader, timeout time.Duration) *Expectations {
	if timeout <= 0 {
		timeout = expectationsTimeout
	}
	return &Expectations{
		client: client, cache: cache, timeout: timeout,
		owners: map[dynamiccontroller.ObjectIdentifiers]map[dynamiccontroller.ObjectIdentifiers]expected{},
		caught: map[dynamiccontroller.ObjectIdentifiers]map[schema.GroupVersionResource]bool{},
	}
}

// Await returns nil when the cache shows all that was done for the owner. Until then it returns RequeueAfter a second,
// which the handler is to return: children's events, where the engine is told to hear them, come sooner.
//
// What does not show for ten seconds is asked of the API server. A create whose answer is unknown is then sent again under
// the name that it had, so that it is known: that it cannot be is the error.
func (e *Expectations) Await(ctx context.Context, owner dynamiccontroller.ObjectIdentifiers) error {
	e.mu.Lock()
	children := maps.Clone(e.owners[owner])
	e.mu.Unlock()
	waiting := false
	for child, want := range children {
		met, err := e.isMet(ctx, child, &want)
		if err != nil {
			e.keep(owner, child, want)
			return fmt.Errorf("see whether the cache has %s: %w", child, err)
		}
		if met {
			e.drop(owner, child)
			continue
		}
		e.keep(owner, child, want)
		waiting = true
	}
	if waiting {
		return dynamiccontroller.RequeueAfter(expectationsPoll)
	}
	return nil
}

// isMet tells whether a child need no longer be awaited.
func (e *Expectations) isMet(ctx context.Context, child dynamiccontroller.ObjectIdentifiers, want *expected) (bool, error) {
	now := time.Now()
	if now.Sub(want.since) >= e.timeout {
		return true, nil
	}
	seen, err := e.cache.Get(ctx, child.GVR, child.Namespace(), child.Name())
	switch {
	case apierrors.IsNotFound(err):
		if want.deleted {
			return true, nil
		}
	case err != nil:
		return false, err
	case want.deleted:
		if seen.GetUID() != want.uid || seen.GetDeletionTimestamp() != nil {
			return true, nil
		}
	case want.uid == "" || seen.GetUID() == want.uid:
		return true, nil
	}
	if now.Sub(want.asked) < confirmAfter {
		return false, nil
	}
	want.asked = now
	if want.create != nil {
		return e.createAgain(ctx, child, want)
	}
	there, err := Live(e.client).Get(ctx, child.GVR, child.Namespace(), child.Name())
	switch {
	case apierrors.IsNotFound(err):
		return !want.deleted, nil // the cache is to show that what was there is gone
	case err != nil || there.GetUID() != want.uid:
		return err == nil && !want.deleted, err
	}
	return want.deleted && there.GetDeletionTimestamp() == nil, nil // nobody deleted it
}

// createAgain settles a create whose answer is unknown: it was never carried out, or this one is one too many.
func (e *Expectations) createAgain(ctx context.Context, child dynamiccontroller.ObjectIdentifiers, want *expected) (met bool, err error) {
	there, err := resource(e.client, child.GVR, child.Namespace()).Create(ctx, want.create, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		there, err = Live(e.client).Get(ctx, child.GVR, child.Namespace(), child.Name())
	}
	switch {
	case isRefused(err):
		return true, nil // there is none, and the handler counts anew
	case err != nil:
		return false, fmt.Errorf("create it again: %w", err)
	}
	want.uid, want.create = there.GetUID(), nil
	return false, nil
}

// CatchUp makes Await wait, too, until the cache shows what the API server says now of the objects of a type that the selector
// matches in the namespace, or in all if that is empty. It does so the first time for an owner and a type, and again after
// Forget or ForgetAll: then it costs a list, and later nothing. It needs list on the type.
func (e *Expectations) CatchUp(ctx context.Context, owner dynamiccontroller.ObjectIdentifiers, gvr schema.GroupVersionResource, namespace string, selector labels.Selector) error {
	e.mu.Lock()
	done := e.caught[owner][gvr]
	e.mu.Unlock()
	if done {
		return nil
	}
	// The cache first: what it shows and the API server does not will go from it. The other way round that could be new.
	shown, err := e.cache.List(ctx, gvr, namespace, selector)
	if err != nil {
		return fmt.Errorf("list %s in the cache for %s: %w", gvr.Resource, owner, err)
	}
	there, err := Live(e.client).List(ctx, gvr, namespace, selector)
	if err != nil {
		return fmt.Errorf("list %s for %s: %w", gvr.Resource, owner, err)
	}
	want := map[dynamiccontroller.ObjectIdentifiers]expected{}
	for _, child := range shown {
		want[identify(gvr, child)] = expected{deleted: true, uid: child.GetUID()}
	}
	for _, child := range there {
		want[identify(gvr, child)] = expected{deleted: child.GetDeletionTimestamp() != nil, uid: child.GetUID()}
	}
	for child, want := range want {
		e.expect(owner, child, want)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.caught[owner] == nil {
		e.caught[owner] = map[schema.GroupVersionResource]bool{}
	}
	e.caught[owner][gvr] = true
	return nil
}

// Create makes a child and expects it, from before the request is sent. A child without a name is given one here, of its
// generateName and a random suffix, so that it is known what to look for when the answer is lost: such a child is expected
// as if it had been made, and Await finds out. One that the API server refuses is not expected.
//
// It needs create on the child's type, and get for children that are long in showing. Where the admission plugin
// OwnerReferencesPermissionEnforcement is on, an owner reference with blockOwnerDeletion needs update on the owner's
// finalizers subresource too.
func (e *Expectations) Create(ctx context.Context, owner dynamiccontroller.ObjectIdentifiers, gvr schema.GroupVersionResource, child *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	child = child.DeepCopy()
	if child.GetName() == "" {
		if child.GetGenerateName() == "" {
			return nil, fmt.Errorf("create a %s for %s: it has neither a name nor a generateName", gvr.Resource, owner)
		}
		child.SetName(generatedName(child.GetGenerateName()))
	}
	id := identify(gvr, child)
	e.expect(owner, id, expected{create: child})
	made, err := resource(e.client, gvr, child.GetNamespace()).Create(ctx, child, metav1.CreateOptions{})
	if err != nil {
		if isRefused(err) {
			e.drop(owner, id)
		}
		return nil, fmt.Errorf("create %s for %s: %w", id, owner, err)
	}
	e.expect(owner, id, expected{uid: made.GetUID()})
	return made, nil
}

// Delete deletes exactly this child and expects it to go, or to be seen being deleted. One that is gone, or another one
// of its name, is no error.
//
// It needs delete on the child's type, and get for one that is long in going.
func (e *Expectations) Delete(ctx context.Context, owner dynamiccontroller.ObjectIdentifiers, gvr schema.GroupVersionResource, child *unstructured.Unstructured) error {
	id, uid := identify(gvr, child), child.GetUID()
	e.expect(owner, id, expected{deleted: true, uid: uid})
	err := resource(e.client, gvr, child.GetNamespace()).Delete(ctx, child.GetName(), metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &uid},
		PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
	})
	if apierrors.IsConflict(err) {
		// It is another one by now, or an admission webhook says so.
		now, getErr := Live(e.client).Get(ctx, gvr, child.GetNamespace(), child.GetName())
		if apierrors.IsNotFound(getErr) || getErr == nil && now.GetUID() != uid {
			return nil
		}
	}
	if isGoneOrReplaced(err) {
		return nil // the cache is to show that, too
	}
	if err != nil {
		if isRefused(err) {
			e.drop(owner, id)
		}
		return fmt.Errorf("delete %s for %s: %w", id, owner, err)
	}
	return nil
}

// Forget drops what is expected for an owner that is gone.
func (e *Expectations) Forget(owner dynamiccontroller.ObjectIdentifiers) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.owners, owner)
	delete(e.caught, owner)
}

// ForgetAll drops what is expected for all owners, and that they caught up. It is for a process that led, ended to, and is
// to lead again: call it before the engine's Run.
func (e *Expectations) ForgetAll() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.owners)
	clear(e.caught)
}

func (e *Expectations) expect(owner, child dynamiccontroller.ObjectIdentifiers, want expected) {
	want.since = time.Now()
	want.asked = want.since
	e.put(owner, child, want)
}

func (e *Expectations) put(owner, child dynamiccontroller.ObjectIdentifiers, want expected) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sweepLocked()
	if e.owners[owner] == nil {
		e.owners[owner] = map[dynamiccontroller.ObjectIdentifiers]expected{}
	}
	e.owners[owner][child] = want
}

// keep is put, unless the child is no longer expected.
func (e *Expectations) keep(owner, child dynamiccontroller.ObjectIdentifiers, want expected) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.owners[owner][child]; ok {
		e.owners[owner][child] = want
	}
}

func (e *Expectations) drop(owner, child dynamiccontroller.ObjectIdentifiers) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if delete(e.owners[owner], child); len(e.owners[owner]) == 0 {
		delete(e.owners, owner)
	}
}

// sweepLocked drops, once a timeout, the owners that nobody awaits any more.
func (e *Expectations) sweepLocked() {
	now := time.Now()
	if now.Sub(e.swept) < e.timeout {
		return
	}
	e.swept = now
	for owner, children := range e.owners {
		maps.DeleteFunc(children, func(_ dynamiccontroller.ObjectIdentifiers, want expected) bool {
			return now.Sub(want.since) >= e.timeout
		})
		if len(children) == 0 {
			delete(e.owners, owner)
		}
	}
}

// isRefused tells an answer of the API server that says that nothing was done from an error after which it may have been.
func isRefused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusRequestTimeout
}

func generatedName(base string) string {
	return base[:min(len(base), maxGeneratedName)] + utilrand.String(suffixLength)
}

// identify names an object as the engine does.
func identify(gvr schema.GroupVersionResource, object metav1.Object) dynamiccontroller.ObjectIdentifiers {
	return dynamiccontroller.ObjectIdentifiers{NamespacedKey: cache.MetaObjectToName(object).String(), GVR: gvr}
}
