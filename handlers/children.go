package handlers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// ErrNotOurs is what an object that a parent wants as its child is refused with, because it is there already and
// somebody else's: another controller's, another parent's, or nobody's and not to be adopted. It is never taken over.
var ErrNotOurs = errors.New("the object exists and is not this parent's")

// childrenPoll is how soon a parent is called again that begins to wait for a deletion. Later it is as soon as
// it has waited, up to slowestChildrenPoll. Where the engine is told to hear of children, their events call it sooner.
const childrenPoll, slowestChildrenPoll = time.Second, 30 * time.Second

// longestName leaves room for what a name is the prefix of: a field manager has at most 128 characters.
const longestName = 100

// ChildrenConfig says how [Children] works. Client, Mapper and Name are needed.
type ChildrenConfig struct {
	// Client writes, and reads what must not be stale.
	Client dynamic.Interface
	// Mapper tells a kind's resource and scope. What it does not know, and a parent
	// has children of, is looked for where they were written, and is gone only if the API server does not serve that.
	Mapper meta.RESTMapper
	// Name is a domain, "platform.example.com". It is the field manager of children, and the prefix of what marks them:
	// the label <name>/parent and the annotations <name>/applied and <name>/self of a child, the annotation
	// <name>/inventory and the finalizer <name>/children of a parent. Two controllers of the same parents need two names.
	Name string
	// Cache is used to read children. For each type that it serves, it must hold all objects with the label
	// <name>/parent, of all namespaces. It can hold other objects too, but does not need to: an object that Get does
	// not find is read live before it is created. Get must return whole objects; List must return at least their
	// metadata. Children of types that the cache does not serve are read live. By default all children are read live,
	// which costs one request for each child and type.
	Cache Reader
	// Owned lists, instead of Cache.List, those of a type's objects in the cache that the owner controls, whole or their
	// metadata: an index by owner makes the cost that of the parent's children, not of all. An error that wraps
	// dynamiccontroller.ErrNotServed or ErrNotSynced makes it a live list. What it returns is not changed. Optional.
	Owned func(gvr schema.GroupVersionResource, owner types.UID) ([]runtime.Object, error)
	// Kinds lists all kinds of children, including those of earlier versions of the controller. Anyone who can update a
	// parent can change its inventory. Children are therefore pruned and cleaned up only if their kind is in Kinds or
	// wanted by the same call of Reconcile. Entries of other kinds stay in the inventory, so that a version that lists
	// them can prune their children. They cost no requests, and their children are deleted with the parent by their
	// owner references. A child can be outside its parent's namespace only if its kind is in Kinds with Elsewhere set.
	// By default only children of the kinds that a call wants are pruned.
	Kinds []ChildKind
	// Selector adopts a child that is wanted, exists, matches and has no controller, and releases one that matches no
	// longer, as [Claim] does. What is wanted must match it. By default nothing is adopted or released.
	Selector labels.Selector
}

// Children keeps the children of parents as they are wanted. All that must be known after a crash is in the API server:
//
//   - A child is written by server-side apply with the parent as its controller (an owner reference), so that Kubernetes
//     deletes it with the parent.
//   - The kinds of a parent's children are recorded on the parent, in its inventory, before the first child of a kind
//     is written. Children that are no longer wanted are therefore found and deleted, even by another process, if their
//     kind is in ChildrenConfig.Kinds or wanted by the call.
//   - A child outside the namespace of a namespaced parent, where an owner reference has no effect, is marked with a
//     label, and with an annotation that contains its own name and distinguishes it from copies. Its kind must be in
//     ChildrenConfig.Kinds with Elsewhere set. The parent is given a finalizer before the first such child is written.
//     When the parent is deleted, Reconcile deletes such children, waits until they are gone, and removes the
//     finalizer. A child whose mark is removed no longer belongs to the parent. If the finalizer is removed, the same
//     applies to all such children.
//
// Nothing is written when nothing changed. A child is applied when what is wanted changed (by a hash in an annotation),
// when the cache shows another value in an applied field, or shows that the field is no longer ours (managedFields): so
// drift is corrected, by force. An API server may write a value in another way ("1000m" becomes "1"). That looks like
// drift, and is applied once more after a start of the process, to no effect, and then remembered. A list without keys
// that somebody adds to is made as it was, one with keys keeps the items of others. Fields that others own are left alone.
//
// The stringData of a Secret is applied as data, which is the form that the API server stores, so that drift is
// corrected.
//
// Before the first child of a pass is created the parent is read live, for a cache may show one that is gone.
//
// It needs on children get, list, create, patch and delete, on parents get and patch; and update on the parents' finalizers
// subresource where the admission plugin OwnerReferencesPermissionEnforcement is on, for owner references block
// their owner's deletion in the foreground.
//
// It is safe for concurrent use with different parents; the engine never calls a handler twice at once for one. What it
// remembers of a parent is dropped with Forget and when it cleaned up.
type Children struct {
	config ChildrenConfig
	kinds  childKinds
	memory memory
}

// NewChildren says all that is wrong with the config.
func NewChildren(config ChildrenConfig) (*Children, error) {
	var errs []error
	if config.Client == nil || config.Mapper == nil {
		errs = append(errs, errors.New("ChildrenConfig.Client and Mapper must not be nil"))
	}
	for _, problem := range validation.IsDNS1123Subdomain(config.Name) {
		errs = append(errs, fmt.Errorf("invalid ChildrenConfig.Name %q: %s", config.Name, problem))
	}
	if len(config.Name) > longestName {
		errs = append(errs, fmt.Errorf("invalid ChildrenConfig.Name %q: it must have no more than %d characters", config.Name, longestName))
	}
	if config.Selector != nil && config.Selector.Empty() {
		errs = append(errs, errors.New("ChildrenConfig.Selector is empty, and would match everybody's objects"))
	}
	kinds, err := newChildKinds(config.Kinds)
	if err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return &Children{config: config, kinds: kinds}, nil
}

// Desired is what a parent wants.
type Desired struct {
	// Stages are applied in order, each when all children of the one before are, and those within one too, but they do
	// not wait for each other. A child needs apiVersion, kind and name; without a namespace it has its parent's. A status is
	// not applied. One of a kind that the mapper does not know is its own error: an earlier stage may define the kind.
	Stages [][]*unstructured.Unstructured
	// Partial reports whether more children may be wanted than are known yet. If it is set, nothing is pruned.
	Partial bool
	// Absent lists objects that must not be children of the parent, by apiVersion, kind, name and namespace. The
	// namespace defaults to the parent's. Those that are children of the parent are deleted before anything is applied,
	// even if Partial is set or Stages cannot be applied. An object that is also in Stages is not deleted. The objects
	// are read from ChildrenConfig.Cache, so that objects that do not exist cost no requests. Optional.
	Absent []*unstructured.Unstructured
	// Kinds lists the kinds of children that other calls may want, in the versions that they want. They are recorded
	// together with the kinds of Stages, which saves a write to the parent for each, and stay recorded even if there
	// are no children of them. A kind that the mapper does not know is recorded with its first child. Optional.
	Kinds []schema.GroupVersionKind
}

// Reconcile deletes the children in desired.Absent, applies those in desired.Stages, and prunes the others once all
// wanted children exist. It returns the wanted children that exist, in order, as last seen. It updates the metadata of
// parent after each write to the parent.
//
// The error joins what went wrong with each child, by name; [ErrNotOurs] among it says that an object is somebody
// else's. If nothing went wrong but something is waited for, a child being deleted for instance, it is RequeueAfter.
//
// For a parent that is being deleted, Reconcile deletes the children in desired.Absent and the children that Kubernetes
// cannot delete, and ignores the rest of desired. For a parent that is gone, call Forget.
func (c *Children) Reconcile(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured, desired Desired) ([]*unstructured.Unstructured, error) {
	pass := &pass{Children: c, id: id, parent: parent, mayAdopt: recheck(ctx, c.config.Client, id, parent)}
	absentErr := pass.deleteAbsent(ctx, desired)
	if parent.GetDeletionTimestamp() != nil {
		return nil, cmp.Or(absentErr, c.cleanUp(ctx, id, parent))
	}
	plan, err := c.plan(id, parent, desired)
	if err != nil {
		return nil, fmt.Errorf("children of %s: %w", id, errors.Join(absentErr, err))
	}
	pass.plan = plan
	deleted, err := pass.prepare(ctx, parent)
	if err != nil {
		return nil, fmt.Errorf("children of %s: %w", id, errors.Join(absentErr, err))
	}
	if deleted {
		return nil, absentErr // the event of the deletion reconciles it again
	}
	children, err := pass.applyAll(ctx)
	if errors.Is(err, errParentGone) {
		return children, absentErr // the event of the deletion reconciles it again
	}
	err = errors.Join(absentErr, err)
	if err == nil && !pass.waiting && !desired.Partial {
		err = pass.prune(ctx)
	}
	if err == nil && !pass.waiting && !desired.Partial {
		c.memory.keep(id, plan.wants)
	}
	if err == nil && pass.waiting {
		return children, dynamiccontroller.RequeueAfter(c.memory.waits(id))
	}
	c.memory.waitsNoMore(id)
	return children, err
}

// Forget drops what is remembered of a parent that is gone.
func (c *Children) Forget(id dynamiccontroller.ObjectIdentifiers) { c.memory.forget(id) }

// prepare writes the finalizer and the inventory to the parent, before its children are written. It reports whether the
// parent turned out to be deleted.
func (p *pass) prepare(ctx context.Context, parent *unstructured.Unstructured) (deleted bool, err error) {
	if p.plan.hasForeign && !slices.Contains(parent.GetFinalizers(), p.finalizer()) {
		now, err := addFinalizer(ctx, p.parents(p.id), parent, p.finalizer())
		if isGoneOrReplaced(err) || err == nil && now.GetDeletionTimestamp() != nil {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("add finalizer %s: %w", p.finalizer(), err)
		}
		adoptMetadata(parent, now)
	}
	return p.record(ctx, parent)
}

// pass is one call of Reconcile.
type pass struct {
	*Children
	id       dynamiccontroller.ObjectIdentifiers
	parent   *unstructured.Unstructured
	plan     *plan
	mayAdopt func() error
	deleted  map[childKey]bool // children that were deleted because they are in Desired.Absent
	isAlive  bool              // the parent, by the API server itself
	waiting  bool              // for something that is being deleted
}

func (c *Children) parents(id dynamiccontroller.ObjectIdentifiers) dynamic.ResourceInterface {
	return resource(c.config.Client, id.GVR, id.Namespace())
}

func (c *Children) finalizer() string   { return c.config.Name + "/children" }
func (c *Children) parentLabel() string { return c.config.Name + "/parent" }
func (c *Children) appliedKey() string  { return c.config.Name + "/applied" }

func (c *Children) selfKey() string { return c.config.Name + "/self" }

// isMarked tells whether a child carries the parent's mark.
func (c *Children) isMarked(child, parent metav1.Object) bool {
	return child.GetLabels()[c.parentLabel()] == string(parent.GetUID())
}

// isOurs tells whether a child is the parent's: by its controller, or by its mark where an owner reference cannot be.
func (c *Children) isOurs(child, parent metav1.Object) bool {
	controller := metav1.GetControllerOfNoCopy(child)
	if canOwn(parent, child.GetNamespace()) {
		return controller != nil && controller.UID == parent.GetUID()
	}
	return controller == nil && c.isOriginal(child, parent)
}

// isOriginal tells whether a child is marked and is the one that was: who copies an object to another place, as backups do
// and people, copies its labels and annotations too.
func (c *Children) isOriginal(child, parent metav1.Object) bool {
	return c.isMarked(child, parent) && child.GetAnnotations()[c.selfKey()] == cache.MetaObjectToName(child).String()
}

// adoptMetadata brings the caller's object up to date with what was written to its metadata. Its resourceVersion moves
// only if that does not pretend that a newer spec was looked at.
func adoptMetadata(object, now *unstructured.Unstructured) {
	object.SetFinalizers(now.GetFinalizers())
	object.SetAnnotations(now.GetAnnotations())
	object.SetManagedFields(now.GetManagedFields())
	if object.GetGeneration() == now.GetGeneration() {
		object.SetResourceVersion(now.GetResourceVersion())
	}
}
