package platform

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/published"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// soon is when something is looked at again that is about to change without any event.
const soon = 50 * time.Millisecond

// decide is the handler of Blueprints on every replica. It writes nothing but the registry, and brings the leader's handler
// to look at what was decided.
func (p *Platform) decide(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	if !p.mapper.HasSynced() {
		return dynamiccontroller.RequeueAfter(soon)
	}
	defer p.engines.Instances.Enqueue(id)
	name := id.Name()
	b, own, err := p.blueprint(name)
	if err != nil {
		return err
	}
	before, known := p.registry.get(name)
	if b == nil || before.uid != "" && before.uid != b.UID {
		if err := p.letGo(ctx, name, before); err != nil || b == nil {
			return err
		}
		before = decision{}
	}
	stored, err := p.historyOf(name)
	if errors.Is(err, dynamiccontroller.ErrNotSynced) {
		return p.decideWithoutHistory(b, before)
	}
	if err != nil {
		return err
	}
	p.registry.expect(name, interest{crd: own.crd, kinds: kindsOfInterest(b, stored)})
	if !known {
		p.lookAgain(p.registry.inCRD(own.crd), name) // of two of one second either may be the older
	}

	next, err := p.newDecision(b, own, before, stored)
	if err != nil {
		return err
	}
	var missing []right
	if next.judgement, missing, err = p.judge(ctx, b, own, before.judgement); err != nil {
		return err
	}
	if next.lacksConsent() && !next.handled {
		next.gvr = schema.GroupVersionResource{} // nothing has been served: there is nothing to clean up
	}
	want, lacking, err := p.wanted(ctx, b, own, &next, stored)
	if err != nil {
		return err
	}
	if missing = append(missing, lacking...); len(missing) > 0 {
		next.asked = before.asked + 1
	}
	if err := p.serve(ctx, b, &next, want, stored); err != nil {
		return err
	}
	p.tell(name, before, next)
	p.registry.set(name, next)
	if freesMemory(before, next) {
		p.lookAgain(p.registry.overBudget(), name)
	}
	if before.faulty != next.faulty {
		p.lookAgain(p.registry.inCRD(own.crd), name) // whether a claim holds a type depends on it
	}
	switch {
	case len(missing) > 0:
		return dynamiccontroller.RequeueAfter(askAgain(before.asked))
	case next.unread:
		return dynamiccontroller.RequeueAfter(published.RetryPeriod)
	}
	return nil
}

// newDecision returns a decision with what is known before the Blueprint is judged.
func (p *Platform) newDecision(b *blueprint.Blueprint, own claim, before decision, stored history) (decision, error) {
	crd, err := p.crdOf(own.crd)
	if err != nil {
		return decision{}, err
	}
	served := before.served || stored.newest(b.UID) != nil || crd != nil && crd.Annotations[madeByKey] == string(b.UID)
	return decision{
		uid: b.UID, generation: b.Generation, ending: b.DeletionTimestamp != nil, running: before.running,
		defined: crd != nil, served: served, handled: before.handled || served || reportsServing(b),
	}, nil
}

// decideWithoutHistory waits for the stored revisions. Until they have been read, it is unknown which specs can be
// served. Programs that are running keep running.
func (p *Platform) decideWithoutHistory(b *blueprint.Blueprint, before decision) error {
	const slow = 2 * time.Second
	problem := p.revisionsProblem()
	if problem == "" {
		return dynamiccontroller.RequeueAfter(soon)
	}
	next := decision{
		uid: b.UID, generation: b.Generation, ending: b.DeletionTimestamp != nil, running: before.running, served: before.served,
		handled: before.handled, revisionsProblem: problem,
	}
	if before.revisionsProblem != problem {
		p.log.Info("Stored revisions cannot be read, will retry", keyBlueprint, b.Name, keyProblem, problem)
	}
	p.registry.set(b.Name, next)
	return dynamiccontroller.RequeueAfter(slow)
}

// blueprint reads one from the cache, nil if it is not there.
func (p *Platform) blueprint(name string) (*blueprint.Blueprint, claim, error) {
	lister, err := p.engines.Definitions.Lister(blueprints)
	if err != nil {
		return nil, claim{}, err
	}
	object, err := lister.Get(name)
	if apierrors.IsNotFound(err) {
		return nil, claim{}, nil
	}
	if err != nil {
		return nil, claim{}, err
	}
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil, claim{}, dynamiccontroller.Terminal(errors.New("the cache does not hold whole Blueprints"))
	}
	b, err := blueprint.FromUnstructured(u)
	if err != nil {
		return nil, claim{}, dynamiccontroller.Terminal(err)
	}
	return b, claimOf(u), nil
}

// serve starts, replaces or stops what runs, so that it is what is wanted. While another Blueprint has the type, it starts
// nothing.
func (p *Platform) serve(ctx context.Context, b *blueprint.Blueprint, d *decision, want *program, h history) error {
	have := d.running
	if have != nil && (want == nil || want.gvr != have.gvr) {
		if err := p.stop(ctx, have); err != nil {
			return err
		}
		d.running = nil
	}
	if want == nil {
		return nil
	}
	followed := p.followedKinds(b, want, h)
	if d.running != nil && d.running.inputs == want.inputs && includes(d.running.followed, followed) {
		return nil
	}
	if !p.registry.take(want.gvr, want.blueprint) {
		d.blocked = true // stop reconciles this Blueprint when the other one releases the type
		return nil
	}
	next, err := p.following(want, followed)
	if err != nil {
		return err
	}
	if err := p.start(ctx, next); err != nil {
		return err
	}
	d.running = next
	return nil
}

// stop ends a program and releases its type. It reconciles the other Blueprints that claim the type.
func (p *Platform) stop(ctx context.Context, have *program) error {
	began := time.Now()
	if err := p.engines.Instances.StopServiceGVK(ctx, have.gvr); err != nil {
		return err
	}
	p.registry.release(have.gvr)
	p.lookAgain(p.registry.inCRD(have.gvr.GroupResource().String()), have.blueprint)
	p.log.Info("type released", keyBlueprint, have.blueprint, keyGVR, nameOf(have.gvr), keyTook, time.Since(began).String())
	return nil
}

// letGo ends all that was decided for a Blueprint that is gone, and brings back who claims the same type.
func (p *Platform) letGo(ctx context.Context, name string, before decision) error {
	if before.running != nil {
		if err := p.stop(ctx, before.running); err != nil {
			return err
		}
	}
	p.lookAgain(p.registry.forget(name), name)
	p.lookAgain(p.registry.overBudget(), name)
	return nil
}

// lookAgain has other Blueprints decided on again.
func (p *Platform) lookAgain(names []string, but string) {
	for _, name := range names {
		if name != but {
			p.engines.Definitions.Enqueue(blueprintID(name))
		}
	}
}

// tell logs what an operator wants to know, once.
func (p *Platform) tell(name string, before, next decision) {
	log := p.log.WithValues(keyBlueprint, name, keyGeneration, next.generation)
	if next.loadRefusal != nil && (before.loadRefusal == nil || *before.loadRefusal != *next.loadRefusal) {
		log.Info("Stored revision refused", keyReason, next.loadRefusal.reason, keyProblem, next.loadRefusal.message)
	}
	switch {
	case next.refusal != nil && (before.refusal == nil || *before.refusal != *next.refusal):
		log.Info("Blueprint refused", keyReason, next.refusal.reason, keyProblem, next.refusal.message)
	case next.running != nil && (before.running == nil || before.running.inputs != next.running.inputs):
		log.Info("Blueprint served", keyGVR, nameOf(next.running.gvr))
	}
}
