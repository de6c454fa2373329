package children

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/internal/ownerref"
)

// ErrNotOwned is returned when a desired child exists, but does not belong to the parent and cannot be adopted: it has
// another controller or another parent's mark, or has no controller and Adopt is not set. Such an object is never
// changed.
var ErrNotOwned = errors.New("the object exists and does not belong to this parent")

// ErrNamespaceNotListed is returned when a parent's inventory contains a namespace that is not in Config.Namespaces.
// Children in this namespace cannot be found. The inventory and the finalizer are therefore kept.
var ErrNamespaceNotListed = errors.New("the controller is limited to other namespaces")

// Desired describes the desired children of a parent.
type Desired struct {
	// Stages are applied in order. A stage is applied when all children of the previous stage exist. The children of a
	// stage are also applied in order, but do not wait for each other. If the mapper does not know a child's kind, only
	// that child fails, because an earlier stage can define the kind. Children are deleted in the reverse order: those of
	// a stage when those of later stages are gone. The index of a child's stage is recorded in an annotation. If a later
	// stage is not known yet, an empty stage in its place saves a write to the parent.
	Stages [][]Child
	// Partial means that there may be further desired children that are not known yet. If it is set, nothing is pruned.
	Partial bool
	// Absent lists objects that must not be children of the parent. They are identified by apiVersion, kind, name and
	// namespace. The namespace defaults to the parent's. Those that are children of the parent are deleted before anything
	// is applied, even if Partial is set or Stages cannot be applied. An object that is also in Stages is not deleted. The
	// objects are read from the cache, so objects that do not exist cost no requests. Optional.
	Absent []*unstructured.Unstructured
	// Kinds lists the kinds of children that other calls can desire, in the versions that those calls use. Recording these
	// kinds together with those of Stages saves a write to the parent for each kind. They stay recorded even if the parent
	// has no children of these kinds. A kind that the mapper does not know is recorded with its first child, and so are
	// namespaces other than the parent's. Optional.
	Kinds []schema.GroupVersionKind
	// As is the identity that reads and writes the children. Defaults to Config.Client.
	As Identity
}

// Identity gets and writes children. Config.Client and Config.Cache are used for parents, and to list the children that
// must be deleted. An identity therefore does not need list.
type Identity struct {
	// Name distinguishes identities. If it changes, all children are applied again.
	Name   string
	Client dynamic.Interface
	// Cache is used to get children. Defaults to Config.Cache.
	Cache handlers.Reader
}

// Reconcile deletes the children in desired.Absent, applies those in desired.Stages, and prunes all others once all
// desired children exist. It returns the latest known versions of the desired children that exist, in order. It updates
// the metadata of parent after each write to the parent.
//
// The error joins the errors of all children, each with the child's name. It wraps [ErrNotOwned] if an object belongs
// to someone else. If nothing failed but Reconcile is waiting for children to be deleted, the error is a
// [PendingDeletionError].
//
// For a parent that is being deleted, Reconcile deletes the children in desired.Absent and those that Kubernetes does
// not delete, or not in order, and ignores the rest of desired. For a parent that no longer exists, call Forget.
func (r *Reconciler) Reconcile(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured, desired Desired,
) ([]*unstructured.Unstructured, error) {
	c := r.newCall(ctx, id, parent, desired.As)
	absentErr := c.deleteAbsent(ctx, desired)
	if parent.GetDeletionTimestamp() != nil {
		return nil, cmp.Or(absentErr, c.cleanUp(ctx))
	}
	var err error
	if c.desired, err = c.newDesiredSet(desired); err != nil {
		return nil, fmt.Errorf("children of %s: %w", id, errors.Join(absentErr, err))
	}
	gone, err := c.prepareParent(ctx, parent)
	if err != nil {
		return nil, fmt.Errorf("children of %s: %w", id, errors.Join(absentErr, err))
	}
	if gone {
		return nil, absentErr // the parent's deletion causes another reconcile
	}
	children, err := c.applyStages(ctx)
	if errors.Is(err, errParentGone) {
		return children, absentErr // the parent's deletion causes another reconcile
	}
	if err == nil && !c.waiting && !desired.Partial {
		err = c.prune(ctx)
	}
	err = errors.Join(absentErr, err)
	if err == nil && (c.waiting || c.postponed) {
		return children, c.pendingError()
	}
	if err == nil && !desired.Partial {
		c.forgetUndesired()
	}
	c.cache.waitStarted = time.Time{}
	return children, err
}

// call holds the state of one call of Reconcile.
type call struct {
	*Reconciler
	as           Identity
	cache        *parentEntry
	id           dynamiccontroller.ObjectIdentifiers
	parent       *unstructured.Unstructured
	desired      *desiredSet
	canAdopt     func() error
	deleted      map[childKey]error // results of the call's attempts to delete children
	parentExists bool               // the parent has been read from the API server and is not being deleted
	ignored      []string           // objects that claim to be children, in namespaces that are not in the inventory
	pending      []PendingChild
	waiting      bool // whether the call waits for pending children before it continues
	postponed    bool // whether pending children must be deleted by a later call
}

func (r *Reconciler) newCall(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured, as Identity,
) *call {
	if as.Client == nil {
		as.Client = r.config.Client
	}
	if as.Cache == nil {
		as.Cache = r.config.Cache
	}
	return &call{
		Reconciler: r, as: as, cache: r.caches.For(ctx).entry(id), id: id, parent: parent,
		canAdopt: ownerref.CanAdoptFunc(ctx, r.config.Client, id, parent), deleted: map[childKey]error{},
	}
}

// forgetUndesired drops undesired children from the apply cache.
func (c *call) forgetUndesired() {
	if len(c.cache.children) <= len(c.desired.keys) {
		return
	}
	desired := make(map[dynamiccontroller.ObjectIdentifiers]appliedChild, len(c.desired.keys))
	for _, stage := range c.desired.stages {
		for _, child := range stage {
			desired[child.id] = c.cache.children[child.id]
		}
	}
	c.cache.children = desired
}

// isKnown reports whether a kind is in Config.Kinds or desired by this call.
func (c *call) isKnown(kind schema.GroupKind) bool {
	return c.isListed(kind) || slices.Contains(c.desired.kinds, kind)
}

// prepareParent adds the finalizer and the desired kinds to the parent, before its children are written. It reports
// whether the parent is being deleted or gone.
func (c *call) prepareParent(ctx context.Context, parent *unstructured.Unstructured) (gone bool, err error) {
	return c.changeParent(ctx, parent, c.desired.needsCleanUp, func(now inventory) inventory {
		return now.with(c.desired.inventory())
	})
}

// updateMetadata updates the caller's object after a write to its metadata. If the spec has changed too, the caller has
// not seen the new spec, so the resourceVersion is not updated.
func updateMetadata(object, now *unstructured.Unstructured) {
	object.SetFinalizers(now.GetFinalizers())
	object.SetAnnotations(now.GetAnnotations())
	object.SetManagedFields(now.GetManagedFields())
	if object.GetGeneration() == now.GetGeneration() {
		object.SetResourceVersion(now.GetResourceVersion())
	}
}
