package platform

import (
	"slices"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// decision is what this replica made of a Blueprint. It is never changed once it is in the registry.
type decision struct {
	uid        types.UID
	generation int64
	ending     bool // the Blueprint is being deleted

	judgement
	// running is what is served, of an earlier generation if the newest is refused; nil if nothing is.
	running *program
	// loadRefusal is why the stored revision is not served. It is nil if the revision is served or none is stored.
	loadRefusal *refusal
	// revisionsProblem is why the stored revisions cannot be read. Nothing is decided as long as it is set.
	revisionsProblem string
	// asked is how often in a row a right was missing.
	asked int
	// defined reports whether the CustomResourceDefinition exists.
	defined bool
	// handled reports whether instances may have been handled for this Blueprint, now or by an earlier version.
	handled bool
	// served reports whether the type was created for this Blueprint, or a spec of it was accepted and stored. Unlike
	// handled, it does not depend on the status.
	served bool
	// blocked reports whether another Blueprint has not released the type yet. Its release reconciles this one.
	blocked bool
}

// onlyCleans tells whether nothing runs that makes anything of instances.
func (d decision) onlyCleans() bool { return d.running == nil || d.running.compiled == nil }

// lacksConsent reports whether the type does not allow the Blueprint to serve it.
func (d decision) lacksConsent() bool { return d.refusal != nil && d.refusal.reason == reasonConsent }

// definitionToApply returns the CustomResourceDefinition to apply, and the digest of its schema. It is that of the newest
// generation or, if that is refused, of the generation that is served. It is nil if there is none to apply.
func (d decision) definitionToApply() (crd *apiextensionsv1.CustomResourceDefinition, schema string) {
	if d.refusal != nil && !d.onlyCleans() {
		return d.running.definition, d.running.schema
	}
	return d.definition, d.schema
}

// deletes reports whether the instances and their type are deleted with the Blueprint. A Blueprint that was never served
// deletes nothing, because what exists was retained for its name.
func (d decision) deletes(b *blueprint.Blueprint) bool { return d.canDelete(b) && d.served }

// canDelete reports whether the deletion policy applies if the Blueprint was served.
func (d decision) canDelete(b *blueprint.Blueprint) bool {
	return b.Spec.DeletionPolicy == blueprint.Delete && !d.lacksConsent()
}

// judgement is what comes of a generation of a Blueprint in the cluster as it is.
type judgement struct {
	// inputs tells what the judgement is of, but for the rights: the same inputs make the same judgement.
	inputs string
	// refusal is nil if the generation is accepted.
	refusal *refusal
	// faulty reports whether the generation would be refused even if no other Blueprint claimed its type.
	faulty bool
	// program is to be served, nil if that is refused, or if nobody knows the type yet.
	program *program
	// definition is to be made, nil if the Blueprint names one or if it is refused.
	definition *apiextensionsv1.CustomResourceDefinition
	// schema is the digest of the definition's schema.
	schema string
	// type that the Blueprint has, whether or not it is accepted; empty if there is none yet or it is not the Blueprint's.
	gvr schema.GroupVersionResource
	// rights that it takes.
	rights []right
	// unread: what the API server publishes could not be read, and is to be when it can.
	unread bool
}

// refusal is why a Blueprint is not accepted.
type refusal struct{ reason, message string }

// interest is what a decision depends on, besides the Blueprint.
type interest struct {
	crd   string // its own
	kinds []schema.GroupKind
}

// registry holds the decisions by the Blueprints' names. It may be used concurrently.
type registry struct {
	mu        sync.Mutex // guards what follows
	decisions map[string]decision
	interests map[string]interest
	served    map[schema.GroupVersionResource]string // by whom
}

func newRegistry() *registry {
	return &registry{decisions: map[string]decision{}, interests: map[string]interest{}, served: map[schema.GroupVersionResource]string{}}
}

func (r *registry) get(name string) (d decision, found bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d, found = r.decisions[name]
	return d, found
}

func (r *registry) set(name string, d decision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.decisions[name] = d
}

// expect notes what the Blueprint depends on. It goes before looking at that: what changes afterwards is told.
func (r *registry) expect(name string, i interest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.interests[name] = i
}

// forget lists the others that depend on the same definition.
func (r *registry) forget(name string) (others []string) {
	r.mu.Lock()
	crd := r.interests[name].crd
	delete(r.decisions, name)
	delete(r.interests, name)
	r.mu.Unlock()
	return r.inCRD(crd)
}

// interested lists the Blueprints that depend on something.
func (r *registry) interested(in func(interest) bool) (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, i := range r.interests {
		if in(i) {
			names = append(names, name)
		}
	}
	return names
}

// rivals returns the Blueprints that claim the same definition, including the named one.
func (r *registry) rivals(name string) []string {
	r.mu.Lock()
	crd := r.interests[name].crd
	r.mu.Unlock()
	return r.inCRD(crd)
}

func (r *registry) inCRD(crd string) []string {
	return r.interested(func(i interest) bool { return i.crd == crd })
}

// inType lists the Blueprints whose type or whose children's type is the resource, as far as its group tells.
func (r *registry) inType(crd, group string) []string {
	return r.interested(func(i interest) bool {
		return i.crd == crd || slices.ContainsFunc(i.kinds, func(kind schema.GroupKind) bool { return kind.Group == group })
	})
}

func (r *registry) inKind(kind schema.GroupKind) []string {
	return r.interested(func(i interest) bool { return slices.Contains(i.kinds, kind) })
}

// take reserves a type for a Blueprint, if no other has it.
func (r *registry) take(gvr schema.GroupVersionResource, name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if by, is := r.served[gvr]; is && by != name {
		return false
	}
	r.served[gvr] = name
	return true
}

func (r *registry) release(gvr schema.GroupVersionResource) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.served, gvr)
}
