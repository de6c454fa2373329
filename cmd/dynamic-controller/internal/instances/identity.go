package instances

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/children"
)

const (
	// minIdentityInterval and maxIdentityInterval limit the delay before a rejected identity is resolved again. The delay
	// is one eighth of the time for which the instance has not been ready.
	minIdentityInterval = 5 * time.Second
	maxIdentityInterval = time.Minute
	// cleanupInterval is the delay before the next attempt to delete children that the identity cannot delete.
	cleanupInterval = 15 * time.Second
)

// Identities resolves the identities of instances. [identity.Manager] implements it.
type Identities interface {
	Resolve(ctx context.Context, request identity.Request) (identity.Identity, error)
	Client(id identity.Identity) (dynamic.Interface, error)
	CanRead(ctx context.Context, id identity.Identity, gvr schema.GroupVersionResource, namespace string) (bool, error)
}

// access reads and writes the children of one instance as an identity, during one reconcile.
type access struct {
	client  *childClient
	reader  cacheReader
	as      children.Identity
	lookups *lookups
}

// accessFor resolves the identity of an instance and returns an access that uses it. If the error is an
// [identity.Rejection], the access can be used only for cleanup, and its requests to read or write children return the
// rejection.
func (r *Reconciler) accessFor(ctx context.Context, self *unstructured.Unstructured) (access, error) {
	client := &childClient{
		compiled: r.Compiled, children: r.Children, denials: r.denials,
		requests: newRequests(), budget: &identity.ResponseBudget{Bytes: blueprint.MaxChildBytes},
	}
	id, err := r.identities.Resolve(ctx, identity.Request{
		Blueprint: r.Blueprint, ServiceAccountName: r.Spec.ServiceAccountName, Namespace: self.GetNamespace(),
	})
	if err == nil {
		client.identity = id
		client.Interface, err = r.identities.Client(id)
	}
	if err != nil && !errors.As(err, &client.rejection) {
		return access{}, err
	}
	cached := cacheReader{
		Reader: handlers.Cached(r.lister), live: boundedReader{handlers.Live(client)},
		canRead: func(ctx context.Context, gvr schema.GroupVersionResource, namespace string) bool {
			if client.rejection != nil {
				return false
			}
			// If the access review fails, children are read from the API server, whose response contains the reason.
			can := false
			err := r.denials.Do(identity.Attempt{Identity: id, Verb: "review"}, func() (err error) {
				can, err = r.identities.CanRead(ctx, id, gvr, namespace)
				return err
			})
			return can && err == nil
		},
	}
	a := access{client: client, lookups: r.newLookups(client, self), reader: cached}
	a.reader.Reader = r.latest(self)
	a.as = children.Identity{Client: client, Cache: childCache{cached, r.lister}}
	if !id.IsPlatform() {
		a.as.Name = id.Username()
	}
	return a, err
}

// latest returns a reader of the cached children of an instance. The children are never older than what the platform
// has written, so that everything that is computed in a reconcile is computed from the same objects, and no value goes
// back.
func (r *Reconciler) latest(self *unstructured.Unstructured) children.Latest {
	id := dynamiccontroller.ObjectIdentifiers{GVR: r.GVR, NamespacedKey: keyOf(self)}
	return r.children.Latest(id, handlers.Cached(r.lister))
}

// identityOf returns the identity that deletes the children of an instance that no longer exists. If the identity is
// rejected, the children are kept until it is not.
func (r *Reconciler) identityOf(ctx context.Context, instance *unstructured.Unstructured) (children.Identity, error) {
	access, err := r.accessFor(ctx, instance)
	if rejectionIn(err) != nil { // the instance has no condition from which the delay could grow
		err = errors.Join(err, dynamiccontroller.RequeueAfter(maxIdentityInterval))
	}
	return access.as, err
}

// hideUnreadable removes the details of children that the identity cannot read, because these children were found with
// the permissions of the platform. It keeps only the kind, and whether the child is being deleted.
func (a access) hideUnreadable(ctx context.Context, pending []children.PendingChild) {
	for i, child := range pending {
		if a.reader.canRead == nil || !a.reader.canRead(ctx, child.GVR, child.Namespace()) {
			pending[i] = children.PendingChild{Kind: child.Kind, Deleting: child.Deleting}
		}
	}
}

// cacheReader reads objects as an identity. Get returns a cached object only if it was cached with its content and the
// identity can read it. Otherwise, Get reads the object from the API server. If the object is not in the cache, Get
// returns a NotFound error.
//
// List returns cached objects regardless of the identity. It is not used.
type cacheReader struct {
	handlers.Reader
	live    handlers.Reader
	canRead func(ctx context.Context, gvr schema.GroupVersionResource, namespace string) bool
}

func (r cacheReader) Get(
	ctx context.Context, gvr schema.GroupVersionResource, namespace, name string,
) (*unstructured.Unstructured, error) {
	object, err := r.Reader.Get(ctx, gvr, namespace, name)
	if err == nil {
		err = reserve(ctx, object)
	}
	if err != nil || r.isUsable(ctx, gvr, object) {
		return object, err
	}
	return r.live.Get(ctx, gvr, namespace, name)
}

// childCache is the cache of children for an identity.
type childCache struct {
	cacheReader
	lister func(schema.GroupVersionResource) (dynamiccontroller.SecondaryLister, error)
}

func (c childCache) Lister(gvr schema.GroupVersionResource) (dynamiccontroller.Lister, error) {
	return c.lister(gvr)
}

// boundedReader explains errors from reads that exceed the budget of a [childClient].
type boundedReader struct{ handlers.Reader }

func (r boundedReader) Get(
	ctx context.Context, gvr schema.GroupVersionResource, namespace, name string,
) (*unstructured.Unstructured, error) {
	object, err := r.Reader.Get(ctx, gvr, namespace, name)
	if errors.Is(err, identity.ErrResponseTooLarge) {
		err = fmt.Errorf("the children that must be read from the API server have more than %d bytes; reduce the number or "+
			"the size of children larger than %d bytes, and permit the ServiceAccount to get all objects of their kinds: %w",
			blueprint.MaxChildBytes, maxCachedBytes, err)
	}
	return object, err
}

// isUsable reports whether an object was cached with its content and the identity can read it.
func (r cacheReader) isUsable(
	ctx context.Context, gvr schema.GroupVersionResource, cached *unstructured.Unstructured,
) bool {
	return !isOmitted(cached) && r.canRead(ctx, gvr, cached.GetNamespace())
}

// retryRejected converts an [identity.Rejection] to a requeue request because a rejection does not count as a failure.
// It returns other errors unchanged.
func retryRejected(self *unstructured.Unstructured, err error) error {
	rejection := rejectionIn(err)
	if rejection == nil {
		return err
	}
	delay := minIdentityInterval
	if ready := ConditionOf(self, conditionReady); ready != nil && ready.Status == metav1.ConditionFalse {
		delay = min(max(time.Since(ready.LastTransitionTime.Time)/8, minIdentityInterval), maxIdentityInterval)
	}
	return errors.Join(rejection, dynamiccontroller.RequeueAfter(delay))
}

// rejectionIn returns the rejection that err is or wraps, or nil.
func rejectionIn(err error) (rejection *identity.Rejection) {
	errors.As(err, &rejection)
	return rejection
}

// reportCleanup returns the result of a reconcile whose cleanup returned err. If the identity cannot delete or release
// some children, or the platform cannot find them, reportCleanup writes to the status how to delete the instance
// without its children.
func (r *Reconciler) reportCleanup(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured, client *childClient,
	err error,
) error {
	finalizers, problem := self.GetFinalizers(), ""
	var unreadable *children.UnknownPropagationError
	switch {
	case errors.As(err, &unreadable):
		problem = unreadable.Error() + "; grant the permissions"
	case errors.Is(err, children.ErrNamespaceNotListed):
		problem = explain(r.Compiled, children.Result{}, err)
	case apierrors.IsForbidden(err) && len(client.denied) > 0:
		problem = fmt.Sprintf("cannot %s %s: %s; grant the permissions",
			client.deniedVerb, joinFirst(client.denied, ", "), client.deniedErr)
	}
	if problem == "" || !slices.Contains(finalizers, ChildrenFinalizer) {
		return retryRejected(self, err)
	}
	forbidden := metav1.Condition{
		Type: conditionReady, Status: metav1.ConditionFalse, Reason: reasonCleanupForbidden,
		Message: Truncate(problem + ", " + ReleaseAdvice(id.GVR.GroupResource(), id.Namespace(), id.Name(), finalizers)),
	}
	if !r.hasStatus() {
		logr.FromContextOrDiscard(ctx).Info("Cleanup forbidden, will retry", "message", forbidden.Message)
	}
	return r.report(ctx, id, self, forbidden, nil, dynamiccontroller.RequeueAfter(cleanupInterval))
}

// ReleaseAdvice describes how to remove the platform's finalizer from an instance with the given finalizers.
func ReleaseAdvice(resource schema.GroupResource, namespace, name string, finalizers []string) string {
	left := slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool { return f == ChildrenFinalizer })
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": left}})
	if err != nil {
		panic(err) // cannot happen: strings can be encoded
	}
	command := fmt.Sprintf("kubectl patch %s %s", resource, name)
	if namespace != "" {
		command += " -n " + namespace
	}
	return "or release the instance without its children: " + command + " --type=merge -p '" + string(patch) + "'"
}
