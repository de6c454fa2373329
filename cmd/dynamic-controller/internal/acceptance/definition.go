package acceptance

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// definitionReconciler decides which revision of each Blueprint is served, and starts and stops serving revisions. It
// runs on every replica. It stores its decisions in the registry and then enqueues the Blueprint in the instances
// engine, so that the leader updates the status of the Blueprint.
type definitionReconciler struct {
	log         logr.Logger
	definitions instances.Engine
	mapper      Mapper
	registry    *registry
	cache       cache
	validator   *validator
	store       *historyStore
	clients     instances.Clients
}

func (r *definitionReconciler) reconcile(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	if !r.mapper.HasSynced() {
		return dynamiccontroller.RequeueAfter(soon)
	}
	defer r.clients.Engine.Enqueue(id)
	name := id.Name()
	b, own, err := r.cache.blueprint(name)
	if err != nil {
		return err
	}
	before, known := r.registry.get(name)
	if b == nil || before.uid != "" && before.uid != b.UID {
		if err := r.forget(ctx, name, before); err != nil || b == nil {
			return err
		}
		before = decision{}
	}
	stored, err := r.cache.history(name)
	if errors.Is(err, dynamiccontroller.ErrNotSynced) {
		return r.waitForHistory(b, before)
	}
	if err != nil {
		return err
	}
	r.registry.setDependencies(name, dependencies{crd: own.crd, kinds: kindsOfInterest(b, stored)})
	if !known {
		r.enqueue(r.registry.claimants(own.crd), name) // the Blueprint may be older than other claimants
	}
	next, missing, err := r.decide(ctx, b, own, before, stored)
	if err != nil {
		r.reportUndecided(ctx, b, before, err)
		return err
	}
	r.registry.set(name, next)
	if freesMemory(before, next) {
		r.enqueue(r.registry.overBudget(), name)
	}
	if before.faulty != next.faulty {
		r.enqueue(r.registry.claimants(own.crd), name) // the type may now belong to a different Blueprint
	}
	switch {
	case missing:
		return dynamiccontroller.RequeueAfter(reviewDelay(before.attempts))
	case next.incomplete, next.lacksOlder():
		return dynamiccontroller.RequeueAfter(SchemaRetryPeriod)
	}
	return nil
}

// decide validates the Blueprint, and selects the revision to serve. missing reports whether a permission is missing.
func (r *definitionReconciler) decide(
	ctx context.Context, b *blueprint.Blueprint, own claim, before decision, stored history,
) (next decision, missing bool, err error) {
	crd, err := r.cache.crd(own.crd)
	if err != nil {
		return next, false, err
	}
	next = decision{
		uid: b.UID, generation: b.Generation, deleting: b.DeletionTimestamp != nil, running: before.running,
		hasCRD: crd != nil,
		served: before.served || stored.newest(b.UID) != nil || isOwnedBy(crd, b.UID),
	}
	var missingNow, missingBefore []permission
	v := r.validator
	next.validation, missingNow, err = v.validate(ctx, b, own, before.validation, v.memory.reject)
	if err != nil && next.deleting && ctx.Err() == nil {
		next.validation, err = v.validateType(b, own, crd) // a deletion does not need the rest
	}
	if err != nil {
		return next, false, err
	}
	if next.lacksConsent() && !next.served {
		next.gvr = schema.GroupVersionResource{} // nothing has been served, so there is nothing to clean up
	}
	wanted, missingBefore, err := r.selectRevision(ctx, b, own, &next, stored)
	if err != nil {
		return next, false, err
	}
	if missing = len(missingNow)+len(missingBefore) > 0; missing {
		next.attempts = before.attempts + 1
	}
	return next, missing, r.serve(ctx, b, own, &next, wanted, stored)
}

// waitForHistory requeues the Blueprint until the stored revisions have been read. Until then, the current revision
// remains served.
func (r *definitionReconciler) waitForHistory(b *blueprint.Blueprint, before decision) error {
	const slow = 2 * time.Second
	problem := r.cache.historyProblem()
	if problem == "" {
		return dynamiccontroller.RequeueAfter(soon)
	}
	if before.undecided == nil || before.undecided.message != problem {
		r.log.Info("Stored revisions cannot be read, will retry", keyBlueprint, b.Name, keyProblem, problem)
	}
	r.registry.set(b.Name, undecided(b, before, rejection{reasonNoRevisions, problem}))
	return dynamiccontroller.RequeueAfter(slow)
}

// reportUndecided records why no decision could be made, so that the leader adds the reason to the status. It does
// nothing if a decision about the generation has been made before, or if the caches have not synced yet.
func (r *definitionReconciler) reportUndecided(
	ctx context.Context, b *blueprint.Blueprint, before decision, err error,
) {
	isDecided := before.uid == b.UID && before.generation == b.Generation && before.undecided == nil
	isEarly := errors.Is(err, dynamiccontroller.ErrNotSynced) || errors.Is(err, dynamiccontroller.ErrNotServed)
	if isDecided || isEarly || ctx.Err() != nil {
		return
	}
	r.registry.set(b.Name, undecided(b, before, rejection{reasonUndecided, instances.Truncate(err.Error())}))
}

func undecided(b *blueprint.Blueprint, before decision, reason rejection) decision {
	return decision{
		uid: b.UID, generation: b.Generation, deleting: b.DeletionTimestamp != nil, running: before.running,
		served: before.served, undecided: &reason,
	}
}

// serve starts, replaces or stops the served revision. It does not start a revision while another Blueprint still
// serves the type. If the instances of a deleted Blueprint are retained, it waits until all reconciles with the served
// revision have returned, so that none of them adds a finalizer to an instance that has been released.
func (r *definitionReconciler) serve(
	ctx context.Context, b *blueprint.Blueprint, own claim, d *decision, wanted *servedRevision, stored history,
) error {
	if d.running != nil && (wanted == nil || wanted.GVR != d.running.GVR || d.ends(b)) {
		if err := r.stop(ctx, d.running); err != nil {
			return err
		}
		d.running = nil
	}
	if wanted == nil {
		return nil
	}
	next := *wanted
	next.Followed, next.started = r.store.followed(wanted, stored), time.Now()
	plan := r.newRollout(b, wanted, stored)
	if d.running != nil {
		plan.Replaces = d.running.reconcilers
	}
	if d.running != nil && d.running.inputs == wanted.inputs && includes(d.running.Followed, next.Followed) {
		d.running.reconcilers.SetPaused(instances.IsPaused(b))
		var changed bool
		if plan.Older, changed, d.olderProblem = r.olderRevisions(ctx, b, own, d.running, stored); !changed {
			return nil
		}
		plan.Gate, next.started = d.running.reconcilers.Gate, d.running.started
	}
	if !r.registry.acquire(wanted.GVR, b.Name) {
		d.blocked = true
		return nil
	}
	var err error
	if next.reconcilers, err = instances.Start(ctx, r.clients, next.Revision, plan, instances.IsPaused(b)); err != nil {
		return err
	}
	d.running = &next
	r.log.V(1).Info("Type started", keyBlueprint, b.Name, keyGVR, nameOf(next.GVR), keyGeneration, next.generation)
	return nil
}

// stop stops serving a revision and releases its type. It enqueues the other Blueprints that claim the type.
func (r *definitionReconciler) stop(ctx context.Context, running *servedRevision) error {
	began := time.Now()
	if err := r.clients.Engine.StopServiceGVK(ctx, running.GVR); err != nil {
		return err
	}
	r.registry.release(running.GVR)
	r.enqueue(r.registry.claimants(running.GVR.GroupResource().String()), running.Blueprint)
	r.log.V(1).Info("Type stopped", keyBlueprint, running.Blueprint, keyGVR, nameOf(running.GVR),
		keyDuration, time.Since(began).String())
	return nil
}

// forget stops serving a Blueprint that no longer exists. It enqueues the other Blueprints that claim its type, and the
// Blueprints that exceed the memory budget.
func (r *definitionReconciler) forget(ctx context.Context, name string, before decision) error {
	if before.running != nil {
		if err := r.stop(ctx, before.running); err != nil {
			return err
		}
	}
	r.enqueue(r.registry.forget(name), name)
	r.enqueue(r.registry.overBudget(), name)
	return nil
}

// enqueue adds the named Blueprints to the queue of the definitions engine. It skips the Blueprint whose name is
// except.
func (r *definitionReconciler) enqueue(names []string, except string) {
	for _, name := range names {
		if name != except {
			r.definitions.Enqueue(instances.BlueprintID(name))
		}
	}
}
