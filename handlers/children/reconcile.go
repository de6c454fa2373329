package children

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/children/internal/desire"
	"github.com/dynamic-controller/engine/handlers/internal/gonehook"
	"github.com/dynamic-controller/engine/handlers/internal/live"
)

// ErrNotOwned is returned if an object with the name of a desired child exists but does not belong to the parent and
// cannot be adopted. It has another controller or another parent's mark, or Adopt is not set.
// Such an object is never changed.
var ErrNotOwned = decide.ErrNotOwned

// ErrAdoptionNotEnabled is returned if Reconcile could adopt the existing object, but Adopt is not set. It wraps
// [ErrNotOwned].
var ErrAdoptionNotEnabled = decide.ErrAdoptionNotEnabled

// ErrRetained is returned if Reconcile could adopt an object that an earlier parent with the same name has retained,
// but Adopt is not set. It wraps [ErrAdoptionNotEnabled].
var ErrRetained = decide.ErrRetained

// ErrInvalidMark is returned for an object whose label <name>/parent is that of the parent's children, and whose
// annotations are not. Such an object can be a child whose annotations have been edited. It wraps [ErrNotOwned].
var ErrInvalidMark = decide.ErrInvalidMark

// ErrNotConfirmed is returned if the existing object was the child of an earlier parent, and can belong to this one
// after a restore from a backup. The error describes the annotation that confirms this. It wraps [ErrNotOwned].
var ErrNotConfirmed = decide.ErrNotConfirmed

// ErrNamespaceNotListed is returned if the namespace of a desired child, or a namespace in a parent's inventory, is not
// in Config.Namespaces. Children in such a namespace cannot be found. Therefore, nothing is written in the first case,
// and the inventory and the finalizer are kept in the second.
var ErrNamespaceNotListed = desire.ErrNamespaceNotListed

// Desired describes the desired children of a parent.
type Desired struct {
	// Stages are applied in order. A stage is applied once all children in the previous stage exist. Within a stage,
	// children are applied concurrently; see Config.MaxConcurrentApplies. Namespaces come first, then service accounts,
	// roles, PriorityClasses, RuntimeClasses and CustomResourceDefinitions, and then all others. If the mapper lacks a
	// child's kind, only that child fails, because an earlier stage can define the kind. The same applies if the discovery
	// of the kind's group fails, and if the error is [ErrKindNotSupported].
	// Children are deleted in the reverse order: a stage is deleted once all later stages are gone. The index of a child's
	// stage is recorded in an annotation. If the children in a later stage are not known yet, an empty stage in its place
	// saves a write to the parent.
	Stages [][]Child
	// Partial means that not all desired children are known yet, so nothing is pruned.
	Partial bool
	// Absent lists objects that must not be children of the parent. They are identified by apiVersion, kind, name and
	// namespace, which defaults to the parent's. Those that are children of the parent are deleted before anything is
	// applied, even if Partial is set or Stages cannot be applied. An object that is also in Stages is not deleted. The
	// objects are read from the cache, so objects that do not exist cost no requests. Optional.
	Absent []*unstructured.Unstructured
	// Kinds lists the kinds of children that other calls can desire, in the versions that those calls use. Recording them
	// together with the kinds in Stages saves one write to the parent per kind. They stay recorded even if the parent has
	// no such children. A kind that the mapper lacks is recorded with its first child, and so are namespaces other
	// than the parent's. All of them must be in Config.Kinds. Optional.
	Kinds []schema.GroupVersionKind
	// As is the identity that reads and writes the children. Defaults to Config.Client.
	As Identity
	// LeftBehind is called before Reconcile removes the finalizer of a parent whose children can still exist. If it
	// returns an error, Reconcile returns that error and keeps the finalizer. By default, the children are logged.
	LeftBehind func(ctx context.Context, children []LeftBehind) error
}

// Identity reads and writes children. Parents are still read and written with Config.Client and Config.Cache, which are
// also used to list the children to delete. An identity therefore does not need list.
type Identity struct {
	// Name distinguishes identities. If it changes, all children are applied again.
	Name   string
	Client dynamic.Interface
	// Cache is used to get children. Its Lister is not called. Defaults to Config.Cache.
	Cache Cache
}

// Reconcile deletes the children in desired.Absent, applies those in desired.Stages, and prunes all others once all
// desired children exist. After each write to the parent, it updates the metadata and the status of the given parent.
//
// The result describes each desired child. The error is what a handler usually returns. It is nil if all children have
// their desired state, and all others are gone. It joins the errors of the children and Result.Failure. It wraps a
// dynamiccontroller.RequeueAfter, and thus does not count as a failure, if Reconcile only waits for children to be
// deleted, or if children drift and nothing else failed.
//
// Values of other types than those into which JSON is decoded, such as int or map[string]string, are converted. A value
// that JSON cannot represent is an error that contains its path, and nothing is written.
//
// For a parent that is being deleted, Reconcile uses only desired.Absent, desired.As and desired.LeftBehind. It deletes
// the children in desired.Absent, and the children that Kubernetes would not delete or would not delete in order. For a
// parent that no longer exists, call Forget.
func (r *Reconciler) Reconcile(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured, desired Desired,
) (Result, error) {
	if parent.GetDeletionTimestamp() != nil && slices.Contains(parent.GetFinalizers(), r.names.Finalizer()) {
		r.Release(ctx, id, parent.GetUID()) // the parent exists until the finalizer has been removed
	}
	err := r.deleteWritten(ctx, id, parent.GetUID(), func(context.Context, *unstructured.Unstructured) (Identity, error) {
		return desired.As, nil // an earlier parent had the same name and namespace
	})
	switch {
	case err == nil:
	case parent.GetDeletionTimestamp() == nil && !apierrors.IsForbidden(err):
		return Result{Failure: failureOf(err)}, err
	default: // children of an earlier parent that the identity cannot delete must not block this one
		logr.FromContextOrDiscard(ctx).Info("Failed to delete the children of an earlier parent", "error", err.Error())
	}
	if len(r.memory.runs.For(ctx).of(id, parent.GetUID())) > 0 {
		gonehook.Add(ctx, id, r.settings, r.Forget) // the parent can have been out of the selection of the type
	}
	c := newCall(ctx, r.settings, id, parent, desired.As, r.entryOf(ctx, id))
	c.forgotten = r.Forget
	return c.reconcile(ctx, desired)
}

// reconcile deletes, applies and prunes the children.
func (c *call) reconcile(ctx context.Context, desired Desired) (Result, error) {
	c.reportLeft = desired.LeftBehind
	if err := c.checkInventory(c.parent); err != nil {
		err = fmt.Errorf("children of %s: %w", c.id, err)
		return Result{Failure: err}, err
	}
	decoded, invalid := desired.desire().Decoded()
	if c.parent.GetDeletionTimestamp() != nil {
		err := c.cleanUp(ctx, decoded)
		return Result{Pending: c.pending, Failure: failureOf(err)}, err
	}
	if invalid != nil {
		err := fmt.Errorf("children of %s: %w", c.id, invalid)
		return Result{Failure: err}, err
	}
	absentErr := c.deleteAbsent(ctx, decoded)
	gone, err := c.prepare(ctx, decoded)
	if err != nil {
		err = fmt.Errorf("children of %s: %w", c.id, errors.Join(absentErr, err))
		return Result{Failure: err}, err
	}
	if !gone {
		gone, err = c.applyAndPrune(ctx, desired.Partial)
	}
	if gone {
		return Result{Failure: absentErr}, absentErr // the parent's deletion causes another reconcile
	}
	return c.result(errors.Join(absentErr, err))
}

// prepare computes the desired children, and records their kinds and namespaces in the parent. It reports whether the
// parent is being deleted or no longer exists.
func (c *call) prepare(ctx context.Context, desired desire.Desired) (gone bool, err error) {
	set, err := c.newDesiredSet(desired)
	if err != nil {
		return false, err
	}
	c.desired = set
	if set.needsWitness {
		if c.witnessErr = c.ensureWitness(ctx); errors.Is(c.witnessErr, decide.ErrParentGone) {
			return true, nil
		}
	}
	return c.prepareParent(ctx, c.parent)
}

// applyAndPrune applies the desired children, and prunes the others if none of the desired ones blocks this. It reports
// whether the parent is being deleted or no longer exists.
func (c *call) applyAndPrune(ctx context.Context, partial bool) (gone bool, err error) {
	if err := c.applyStages(ctx); errors.Is(err, decide.ErrParentGone) {
		return true, nil
	}
	complete := true
	for child := range c.desired.all() {
		complete = complete && !child.blocks()
		if child.pending != nil {
			c.pending = append(c.pending, *child.pending)
			c.waiting = true
		}
	}
	if complete && !partial && !c.waiting {
		err = c.prune(ctx)
		if err == nil && !c.waiting && !c.postponed {
			c.forgetUndesired(ctx)
		}
	}
	return false, cmp.Or(err, c.witnessErr)
}

// call is one call to Reconcile. Each of its parts depends only on those that it embeds: call applies children,
// deletion deletes them, witnessing keeps the witness, ledger keeps what the parent records, and observer reads.
type call struct {
	*deletion
	forgotten func(context.Context, dynamiccontroller.ObjectIdentifiers) error // Reconciler.Forget
}

func newCall(
	ctx context.Context, s *settings, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured,
	as Identity, entry *parentEntry,
) *call {
	if as.Client == nil {
		as.Client = s.config.Client
	}
	if as.Cache == nil {
		as.Cache = s.config.Cache
	}
	o := &observer{
		settings: s, as: as, entry: entry, own: &ownWrites{}, id: id, parent: parent,
		rules: &decide.Parent{Unstructured: parent, Names: s.names, Writer: as.Name, Buckets: s.config.LabelBuckets},
	}
	if as.Cache != nil {
		o.own = &entry.own
		o.own.expire()
	}
	o.namespaceUID = sync.OnceValues(func() (types.UID, error) { return o.readNamespaceUID(ctx) })
	return &call{deletion: &deletion{
		witnessing: &witnessing{&ledger{observer: o, desired: &desiredSet{}}},
		canAdopt:   live.CanAdoptFunc(ctx, s.config.Client, id, parent), deleted: map[decide.Key]decide.Deleting{},
	}}
}

// forgetUndesired drops undesired children from the apply cache and from the Memory.
func (c *call) forgetUndesired(ctx context.Context) {
	if c.planner != nil {
		return
	}
	c.memory.runs.For(ctx).keep(c.id, c.parent.GetUID(), func(child writtenChild) bool {
		return c.desired.keys[childKey{Kind: child.kind, Name: child.id.NamespacedKey}]
	})
	if len(c.entry.children) <= len(c.desired.keys) {
		return
	}
	desired := make(map[childID]*decide.Known, len(c.desired.keys))
	for child := range c.desired.all() {
		desired[child.id] = child.known
	}
	c.entry.children = desired
}

// updateMetadata updates the caller's object after a write to its metadata. If the spec has changed as well, the
// resourceVersion is not updated because the caller has not seen the new spec. The status is updated together with the
// resourceVersion. Otherwise, a later write by the caller could replace a newer status with one from a lagging cache.
func updateMetadata(object, now *unstructured.Unstructured) {
	object.SetFinalizers(now.GetFinalizers())
	object.SetAnnotations(now.GetAnnotations())
	object.SetManagedFields(now.GetManagedFields())
	if object.GetGeneration() == now.GetGeneration() {
		object.SetResourceVersion(now.GetResourceVersion())
		if status, has := now.Object["status"]; has {
			object.Object["status"] = status
		}
	}
}
