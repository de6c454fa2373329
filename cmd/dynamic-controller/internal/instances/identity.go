package instances

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/children"
)

const (
	// minIdentityInterval and maxIdentityInterval limit the delay before a rejected identity is resolved again. The delay
	// is an eighth of the time for which the instance has not been ready.
	minIdentityInterval = 5 * time.Second
	maxIdentityInterval = time.Minute
	// cleanupInterval is the delay before another attempt to delete children that the identity cannot delete.
	cleanupInterval = 15 * time.Second
)

// Identities resolves the identities of instances. It is implemented by [identity.Manager].
type Identities interface {
	Resolve(ctx context.Context, request identity.Request) (identity.Identity, error)
	Client(id identity.Identity) (dynamic.Interface, error)
	CanRead(ctx context.Context, id identity.Identity, gvr schema.GroupVersionResource, namespace string) (bool, error)
}

// access reads and writes the children of an instance as an identity, during one reconcile.
type access struct {
	client *childClient
	reader cacheReader
	as     children.Identity
}

// accessFor resolves the identity of an instance. If the error is an [identity.Rejection], the access can only be used
// to clean up, and requests to read or write children return the rejection.
func (r *Reconciler) accessFor(ctx context.Context, self *unstructured.Unstructured) (access, error) {
	client := &childClient{
		compiled: r.Compiled, children: r.Children, denials: r.denials,
		reads: map[dynamiccontroller.ObjectIdentifiers]read{},
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
	a := access{client: client, reader: cacheReader{
		Reader: handlers.Cached(r.lister), live: handlers.Live(client),
		canRead: func(ctx context.Context, gvr schema.GroupVersionResource, namespace string) bool {
			if client.rejection != nil {
				return false
			}
			// If the review fails, children are read from the API server, which reports the reason.
			can := false
			err := r.denials.Do(identity.Attempt{Identity: id, Verb: "review"}, func() (err error) {
				can, err = r.identities.CanRead(ctx, id, gvr, namespace)
				return err
			})
			return can && err == nil
		},
	}}
	a.as = children.Identity{Client: client, Cache: a.reader}
	if !id.IsPlatform() {
		a.as.Name = id.Username()
	}
	return a, err
}

// hideUnreadable removes what identifies a child from those that the identity cannot read, because they were found with
// the permissions of the platform.
func (a access) hideUnreadable(ctx context.Context, pending []children.PendingChild) {
	for i, child := range pending {
		if a.reader.canRead == nil || !a.reader.canRead(ctx, child.GVR, child.Namespace()) {
			pending[i] = children.PendingChild{Kind: child.Kind, Deleting: child.Deleting}
		}
	}
}

// pendingIn returns the children that are pending according to an error.
func pendingIn(err error) []children.PendingChild {
	var pending *children.PendingDeletionError
	if errors.As(err, &pending) {
		return pending.Children
	}
	return nil
}

// cacheReader reads objects as an identity. A cached object is returned only if it has its content and the identity can
// read it. Otherwise, the object is read from the API server. Objects that are not in the cache are not found.
//
// List returns cached objects regardless of the identity. Only their metadata is used, to find children to delete.
type cacheReader struct {
	handlers.Reader
	live    handlers.Reader
	canRead func(ctx context.Context, gvr schema.GroupVersionResource, namespace string) bool
}

func (r cacheReader) Get(
	ctx context.Context, gvr schema.GroupVersionResource, namespace, name string,
) (*unstructured.Unstructured, error) {
	object, err := r.Reader.Get(ctx, gvr, namespace, name)
	if err != nil || r.isUsable(ctx, gvr, object) {
		return object, err
	}
	return r.live.Get(ctx, gvr, namespace, name)
}

// isUsable reports whether a cached object has its content and can be read by the identity.
func (r cacheReader) isUsable(
	ctx context.Context, gvr schema.GroupVersionResource, cached *unstructured.Unstructured,
) bool {
	return !isOmitted(cached) && r.canRead(ctx, gvr, cached.GetNamespace())
}

// retryRejected returns a requeue request if the error is, or wraps, an [identity.Rejection], because a rejection does
// not count as a failure. It returns other errors unchanged.
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

// rejectionIn returns the rejection that the error is or wraps, or nil.
func rejectionIn(err error) (rejection *identity.Rejection) {
	errors.As(err, &rejection)
	return rejection
}

// reportCleanup returns the result of a cleanup. If the identity cannot delete some of the children, or the platform
// cannot find them, the status explains how to delete the instance without them.
func (r *Reconciler) reportCleanup(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured, client *childClient,
	err error,
) error {
	finalizers, problem := self.GetFinalizers(), ""
	switch {
	case errors.Is(err, children.ErrNamespaceNotListed):
		problem = explain(err).Error()
	case apierrors.IsForbidden(err) && len(client.undeleted) > 0:
		problem = client.undeletedMessage() + "; grant the permissions"
	}
	if problem == "" || !slices.Contains(finalizers, ChildrenFinalizer) {
		return retryRejected(self, err)
	}
	forbidden := metav1.Condition{
		Type: conditionReady, Status: metav1.ConditionFalse, Reason: reasonCleanupForbidden,
		Message: Truncate(problem + ", or release the instance without its children: " +
			releaseCommand(id, finalizers)),
	}
	if !r.hasStatus() {
		logr.FromContextOrDiscard(ctx).Info("Cleanup forbidden, will retry", "message", forbidden.Message)
	}
	return r.report(ctx, id, self, forbidden, dynamiccontroller.RequeueAfter(cleanupInterval))
}

// releaseCommand returns the command that removes the platform's finalizer from an instance.
func releaseCommand(id dynamiccontroller.ObjectIdentifiers, finalizers []string) string {
	left := slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool { return f == ChildrenFinalizer })
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": left}})
	if err != nil {
		panic(err) // strings can be encoded
	}
	command := fmt.Sprintf("kubectl patch %s %s", id.GVR.GroupResource(), id.Name())
	if id.Namespace() != "" {
		command += " -n " + id.Namespace()
	}
	return command + " --type=merge -p '" + string(patch) + "'"
}

// undeletedMessage names the first few children that could not be deleted, and the reason for the first one.
func (c *childClient) undeletedMessage() string {
	const most = 10
	names := slices.Clone(c.undeleted[:min(len(c.undeleted), most)])
	if more := len(c.undeleted) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("cannot delete %s: %s", strings.Join(names, ", "), c.undeletedErr)
}
