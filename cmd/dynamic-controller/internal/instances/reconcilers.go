package instances

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/rollout"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/children"
)

// Rollout describes how instances of older revisions move to the newest revision.
type Rollout struct {
	// Revision describes the newest revision. Its Name is ignored.
	Revision rollout.Revision
	// Older lists the revisions that instances can keep until they move to the newest revision. All of them use the schema
	// of the newest revision. An instance with any other revision is not reconciled until it has moved.
	Older []Revision
	// Gate is the Gate of the Reconcilers to replace if they have the same newest revision, and nil otherwise.
	Gate *rollout.Gate
	// Replaces is the current Reconcilers of the type, or nil if the type is not served yet.
	Replaces *Reconcilers
	// Changed is called when the result of [Reconcilers.Missing] changes.
	Changed func()
	// HasPredecessor reports whether the type has had another revision, whose schema can differ.
	HasPredecessor bool
}

// Reconcilers reconciles the instances of a Blueprint with its newest revision and, during a rollout, with older ones.
type Reconcilers struct {
	// Gate is nil if the type does not report revisions, or if only deletions are processed. In both cases, there is no
	// gradual rollout.
	Gate    *rollout.Gate
	newest  *Reconciler
	changed func()
	took    atomic.Int64 // the duration of the last count
	needs   needs
	schema  *schemaReader
	mapper  meta.RESTMapper

	mu      sync.Mutex // guards the fields below
	older   map[string]*Reconciler
	missing []string
}

// shared is the state shared by all reconcilers of a Blueprint.
type shared struct {
	gate   *rollout.Gate // the same as Reconcilers.Gate
	paused atomic.Bool   // whether the Blueprint is paused
	// referrers indexes the objects that the instances refer to.
	referrers *referrers
	// written records the children that the current run has written.
	written *children.Memory
	// statuses holds the statuses that the cache can lack.
	statuses *writtenStatuses
	// outlived holds the instances that no longer exist but have children.
	outlived *outlived
	// uncounted reports whether instances have changed since the last count.
	uncounted atomic.Bool
}

func newShared(written *children.Memory) *shared {
	return &shared{
		referrers: newReferrers(), written: written, statuses: &writtenStatuses{}, outlived: &outlived{},
	}
}

// byNamespace makes the instances of a type take turns by namespace, so that a tenant with many instances does not
// delay those of other tenants.
var byNamespace = dynamiccontroller.WithFlow(dynamiccontroller.ObjectIdentifiers.Namespace)

// Start serves the revision on the engine. It replaces the type's previous revision, if any. If paused is true,
// instances are paused until [Reconcilers.SetPaused] is called.
func Start(ctx context.Context, c Clients, revision Revision, plan Rollout, paused bool) (*Reconcilers, error) {
	r, err := newReconcilers(c, revision, plan)
	if err != nil {
		return nil, err
	}
	r.newest.paused.Store(paused)
	canRead := func(context.Context, schema.GroupVersionResource, string) bool { return true }
	reader := cacheReader{handlers.Cached(c.Engine.Lister), r.schema.live, canRead}
	handler := r.withinBudget(handlers.Object(reader, r.reconcile, r.gone))
	within := r.newest.within
	revisions := append(plan.Older, revision)
	options := append(watches(within, revisions...), within, byNamespace)
	options = append(options, r.newest.referrers.watches(c.Engine, revision.GVR, within, revisions...)...)
	return r, c.Engine.StartServingGVK(ctx, revision.GVR, handler, options...)
}

func newReconcilers(c Clients, revision Revision, plan Rollout) (*Reconcilers, error) {
	c.written = &children.Memory{}
	if plan.Replaces != nil {
		c.written = plan.Replaces.newest.written
	}
	newest, err := newReconciler(c, revision)
	if err != nil {
		return nil, err
	}
	contents := c.Contents
	if contents == nil {
		contents = c.Client
	}
	r := &Reconcilers{
		newest: newest, changed: plan.Changed, mapper: c.Mapper, older: map[string]*Reconciler{},
		schema: newSchemaReader(handlers.Live(contents), revision, plan),
	}
	if plan.Replaces != nil {
		// The handler and the watches are replaced at different times, so the old and the new ones must share the index.
		newest.referrers = plan.Replaces.newest.referrers
		newest.statuses = plan.Replaces.newest.statuses
		newest.outlived = plan.Replaces.newest.outlived
	}
	if revision.ReportsRevision && revision.Name != "" {
		if r.Gate = plan.Gate; r.Gate == nil {
			plan.Revision.Name = revision.Name
			r.Gate = rollout.New(plan.Revision)
		}
		newest.gate = r.Gate
	}
	for _, older := range plan.Older {
		if r.older[older.Name], err = newReconciler(c, older); err != nil {
			return nil, err
		}
		r.older[older.Name].shared = newest.shared
	}
	return r, nil
}

func (r *Reconcilers) reconcile(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured,
) error {
	r.newest.observeDeletion(ctx, id, self)
	r.newest.outlived.forget(id.NamespacedKey)
	isBehind := r.newest.statuses.restore(self)
	selected := r.reconcilerFor(id, self)
	switch {
	case selected == nil:
		r.newest.requestCount() // to move the instance or load its revision
		return nil
	case selected == r.newest && selected.rendersFor(self):
		var err error
		if self, err = r.schema.read(ctx, id, self, isBehind); self == nil {
			return err
		}
	}
	return selected.reconcile(ctx, id, self)
}

// reconcilerFor returns the Reconciler for an instance, or nil if the instance must wait until it is moved or its
// revision is loaded.
func (r *Reconcilers) reconcilerFor(
	id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured,
) *Reconciler {
	revision, created := revisionOf(self), self.GetCreationTimestamp().Time
	if r.Gate == nil || r.Gate.IsOpen(id.NamespacedKey, revision, created) {
		return r.newest
	}
	r.mu.Lock()
	older := r.older[r.Gate.RevisionOf(id.NamespacedKey, revision, created)]
	r.mu.Unlock()
	if older == nil && (self.GetDeletionTimestamp() != nil || r.newest.pausedBy(self) != "") {
		return r.newest
	}
	return older
}

// gone handles an instance that no longer exists.
func (r *Reconcilers) gone(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	r.mu.Lock()
	older := slices.Collect(maps.Values(r.older))
	r.mu.Unlock()
	var errs []error
	for _, o := range append(older, r.newest) {
		errs = append(errs, o.gone(ctx, id))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return r.reportOutliving(ctx, id)
}

// SetPaused pauses or resumes all instances and reports whether the state has changed.
func (r *Reconcilers) SetPaused(paused bool) (changed bool) {
	changed = r.newest.SetPaused(paused)
	if changed && r.Gate != nil {
		r.Gate.RestartTimer()
	}
	return changed
}

// Survey updates the rollout with the states of all instances that are not being deleted, and enqueues the instances to
// move next. It drops older revisions that no instance uses.
func (r *Reconcilers) Survey(all []rollout.Instance) {
	if r.Gate == nil {
		return
	}
	for _, key := range r.Gate.Survey(all) {
		r.newest.engine.Enqueue(dynamiccontroller.ObjectIdentifiers{GVR: r.newest.GVR, NamespacedKey: key})
	}
	r.mu.Lock()
	// Watches of the revisions' children remain until the type is served again.
	maps.DeleteFunc(r.older, func(name string, _ *Reconciler) bool { return !r.Gate.InUse(name) })
	missing := slices.DeleteFunc(r.Gate.Outdated(), func(name string) bool { return r.older[name] != nil })
	same := slices.Equal(missing, r.missing)
	r.missing = missing
	r.mu.Unlock()
	if !same {
		r.changed()
	}
}

// Missing returns the older revisions that instances use but that have not been loaded, in the order of
// [rollout.Gate.Outdated]. Until a revision is loaded, its instances are not reconciled.
func (r *Reconcilers) Missing() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.missing)
}

// Older returns the loaded older revisions that are still in use.
func (r *Reconcilers) Older() (revisions []Revision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, older := range r.older {
		revisions = append(revisions, older.Revision)
	}
	slices.SortFunc(revisions, func(a, b Revision) int { return cmp.Compare(a.Name, b.Name) })
	return revisions
}

// CountDuration returns the duration of the last count.
func (r *Reconcilers) CountDuration() time.Duration { return time.Duration(r.took.Load()) }

// regressed returns the Regressed condition of an instance, given its new Ready condition. It returns nil in three
// cases: the instance is not less healthy than before it moved to the newest revision, it has been ready since, or its
// spec has changed.
func (r *Reconciler) regressed(self *unstructured.Unstructured, ready metav1.Condition) *metav1.Condition {
	before := ConditionOf(self, conditionReady)
	if r.gate == nil || before == nil || ready.Status == metav1.ConditionTrue || self.GetDeletionTimestamp() != nil {
		return nil
	}
	if before.Reason == reasonPaused || before.Reason == reasonWaitingForMemory {
		return nil // the condition does not describe a reconcile
	}
	state, was, hasMoved := "did not fail", healthOf(before), revisionOf(self) == r.Name
	if was == rollout.Ready {
		state = "was ready"
	}
	key := cache.MetaObjectToName(self).String()
	readySince := r.gate.HasMoved(key, revisionOf(self), self.GetCreationTimestamp().Time) &&
		(was == rollout.Ready || before.LastTransitionTime.After(r.gate.Since()))
	switch {
	case before.ObservedGeneration != self.GetGeneration():
		return nil
	case healthOf(&ready) < was && !readySince && r.gate.RollsOut(r.Name):
	case hasMoved:
		return ConditionOf(self, ConditionRegressed)
	default:
		return nil
	}
	return &metav1.Condition{
		Type: ConditionRegressed, Status: metav1.ConditionTrue, Reason: "RevisionChanged",
		Message: fmt.Sprintf("the instance %s before revision %s was rolled out", state, r.Name),
	}
}

// healthOf returns the health that a Ready condition describes.
func healthOf(ready *metav1.Condition) rollout.Health {
	switch {
	case ready.Status == metav1.ConditionTrue:
		return rollout.Ready
	case isFailing(ready.Reason):
		return rollout.Failing
	default:
		return rollout.Waiting
	}
}

// revisionOf returns the status.revision of an instance. The platform sets it to the revision with which the instance
// was last reconciled, but others can change it.
func revisionOf(self *unstructured.Unstructured) string {
	revision, _, _ := unstructured.NestedString(self.Object, "status", "revision")
	return revision
}
