package children

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
)

// observer reads children, their parent and its namespace, from the cache or from the API server. It decides nothing
// and writes nothing.
type observer struct {
	*settings
	rules        *decide.Parent // decides about the children of the parent
	as           Identity
	entry        *parentEntry
	own          *ownWrites
	id           dynamiccontroller.ObjectIdentifiers
	parent       *unstructured.Unstructured
	namespaceUID func() (types.UID, error)
	isPlan       bool     // whether nothing is kept and written
	noNamespace  bool     // whether the parent's namespace cannot be read
	ignored      []string // apparent children in namespaces that are not in the inventory
}

// see returns the child as the cache holds it. Only the API server knows whether the child exists in two cases: the
// cache does not serve the type, or it lacks a child that this run has applied or failed to create. In the second case,
// either the cache lags behind, or the existing object is not a child and therefore not in the cache. All other
// children that the cache lacks are assumed not to exist; if one exists, creating it fails.
func (o *observer) see(ctx context.Context, child *child) decide.Seen {
	current, err := o.readCached(ctx, child.id)
	child.uncached = errors.Is(err, dynamiccontroller.ErrNotServed)
	switch {
	case isUncached(err), apierrors.IsNotFound(err) && child.known.MustExist():
		return decide.Seen{Unknown: true}
	case apierrors.IsNotFound(err):
		return decide.Seen{}
	}
	return decide.Seen{Object: current, Err: err}
}

// readCached returns the latest known version of an object. If the cache lacks an object that this run has written, or
// holds one that this run has deleted, only the API server knows whether the object exists. The error is then
// ErrNotSynced.
func (o *observer) readCached(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers,
) (*unstructured.Unstructured, error) {
	if o.as.Cache == nil {
		return nil, dynamiccontroller.ErrNotServed
	}
	cached, err := o.as.Cache.Get(ctx, id.GVR, id.Namespace(), id.Name())
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	switch is, last := o.own.read(id, cached); is {
	case behind:
		return last, nil
	case missing, deleted:
		return nil, dynamiccontroller.ErrNotSynced
	}
	return cached, err
}

// written stores a version of a child that the API server has returned, and returns the newest known one. Versions of
// types that the cache does not serve are not stored: no event would drop them.
func (o *observer) written(child *child, now *unstructured.Unstructured) *unstructured.Unstructured {
	if child.uncached {
		return now
	}
	return o.own.record(child.id, now)
}

// isUncached reports whether the error means that the cache does not serve the type, or does not serve it yet.
func isUncached(err error) bool {
	return errors.Is(err, dynamiccontroller.ErrNotServed) || errors.Is(err, dynamiccontroller.ErrNotSynced) ||
		errors.Is(err, dynamiccontroller.ErrOtherShard)
}

// readParent reads the parent from the API server. It returns decide.ErrParentGone if the parent is being deleted or no
// longer exists.
func (o *observer) readParent(ctx context.Context) (*unstructured.Unstructured, error) {
	now, err := o.parents(o.id).Get(ctx, o.id.Name(), metav1.GetOptions{})
	switch {
	case decide.IsGone(err):
		return nil, decide.ErrParentGone
	case err != nil:
		return nil, fmt.Errorf("read the parent before creating: %w", err)
	case now.GetUID() != o.parent.GetUID() || now.GetDeletionTimestamp() != nil:
		return nil, decide.ErrParentGone
	}
	return now, nil
}

func (o *observer) readWitness(ctx context.Context) (*unstructured.Unstructured, error) {
	return o.witnesses().Get(ctx, o.witnessName(), metav1.GetOptions{})
}

func (o *observer) witnesses() dynamic.ResourceInterface {
	return o.as.Client.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace(o.parent.GetNamespace())
}

// witnessName returns the name of the parent's witness. Each controller of the parent has a witness of its own.
func (o *observer) witnessName() string {
	return "children-of-" + string(o.parent.GetUID()) + "-" + decide.IdentityLabel(o.config.Name)[:8]
}

// readNamespaceUID returns the UID of the parent's namespace. It cannot change during the life of the parent. The
// result is empty if the Reconciler cannot read the namespace. It is called at most once per call, see
// call.namespaceUID.
func (o *observer) readNamespaceUID(ctx context.Context) (types.UID, error) {
	if o.entry.namespace.parent == o.parent.GetUID() {
		return o.entry.namespace.uid, nil
	}
	namespace, err := o.readNamespace(ctx)
	if err != nil || namespace == nil {
		return "", err
	}
	o.entry.namespace = namespaceOfParent{parent: o.parent.GetUID(), uid: namespace.GetUID()}
	return namespace.GetUID(), nil
}

// readNamespace reads the parent's namespace. It returns nil if the Reconciler cannot read it, and does not repeat the
// request in this call.
func (o *observer) readNamespace(ctx context.Context) (*unstructured.Unstructured, error) {
	if o.noNamespace {
		return nil, nil
	}
	namespaces := o.config.Client.Resource(corev1.SchemeGroupVersion.WithResource("namespaces"))
	namespace, err := namespaces.Get(ctx, o.parent.GetNamespace(), metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		o.noNamespace = true
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the namespace of the parent: %w", err)
	}
	return namespace, nil
}
