package acceptance

import (
	"cmp"
	"slices"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

// decision is the result of a definition reconcile on this replica. It is immutable once it is in the registry.
type decision struct {
	uid        types.UID
	generation int64
	deleting   bool

	validation
	// running is the served revision, or nil if nothing is served. It belongs to an earlier generation if the newest one
	// is rejected.
	running *servedRevision
	// loadRejection is the reason why the stored revision is not served. It is nil if the revision is served or does not
	// exist.
	loadRejection *rejection
	// olderProblem describes why an older revision that instances still use has not been loaded. It is empty if there is
	// no problem.
	olderProblem string
	// undecided is the reason why no decision could be made about this generation. The fields of the validation are then
	// empty, and the revision that was running remains served.
	undecided *rejection
	// attempts is the number of consecutive reconciles in which a permission was missing.
	attempts int
	// hasCRD reports whether the CustomResourceDefinition exists.
	hasCRD bool
	// served reports whether the type was created for this Blueprint or one of its specs is stored.
	served bool
	// blocked reports whether another Blueprint still serves the type. This Blueprint is reconciled again when that
	// Blueprint releases the type.
	blocked bool
}

// servedRevision is an accepted spec that is served or can be served. It is immutable.
type servedRevision struct {
	instances.Revision
	inputs     string // identifies the inputs that affect how instances are reconciled
	generation int64
	// crd is the CustomResourceDefinition of the spec, and digest is the digest of its schema. crd is nil if the Blueprint
	// names an existing CustomResourceDefinition.
	crd    *apiextensionsv1.CustomResourceDefinition
	digest string
	// reconcilers is nil until the revision is served. started is the time at which serving began.
	reconcilers *instances.Reconcilers
	started     time.Time
}

// validation is the result of validating a generation of a Blueprint against the current state of the cluster.
type validation struct {
	// inputs identifies the inputs of the validation, except permissions, claims and the memory budget.
	inputs string
	// rejection is nil if the generation is accepted.
	rejection *rejection
	// faulty reports whether the generation would be rejected even if no other Blueprint claimed the type.
	faulty bool
	// revision is nil if the generation is rejected, or if the type is not known yet.
	revision *servedRevision
	// crd is the CustomResourceDefinition to apply, and digest is the digest of its schema. crd is nil if the Blueprint
	// names an existing CustomResourceDefinition or is rejected.
	crd    *apiextensionsv1.CustomResourceDefinition
	digest string
	// gvr is the type of the Blueprint. It is set even if the Blueprint is rejected. It is empty if the type is unknown or
	// belongs to another Blueprint.
	gvr         schema.GroupVersionResource
	permissions []permission
	// incomplete reports whether some published schemas could not be read. They are read again later.
	incomplete bool
	// refusal is the reason why the API server has refused crd. Only the leader applies crd and sets this field.
	refusal *rejection
}

// rejection describes why a Blueprint is not accepted.
type rejection struct{ reason, message string }

// cleansUpOnly reports whether nothing is served, or only deletions of instances are processed.
func (d decision) cleansUpOnly() bool { return d.running == nil || d.running.Compiled == nil }

// lacksConsent reports whether the Blueprint is rejected because its CustomResourceDefinition has no annotation that
// allows the Blueprint.
func (d decision) lacksConsent() bool { return d.rejection.is(reasonConsent) }

// rejected returns the reason why the newest generation is not accepted, or nil if there is none.
func (v validation) rejected() *rejection { return cmp.Or(v.rejection, v.refusal) }

// deletes reports whether the type and its instances are deleted with the Blueprint. If the Blueprint was never served,
// the type and its instances belong to an earlier Blueprint and are kept.
func (d decision) deletes(b *blueprint.Blueprint) bool { return d.canDelete(b) && d.served }

// ends reports whether the Blueprint is deleted without its instances while they are still reconciled.
func (d decision) ends(b *blueprint.Blueprint) bool {
	return d.deleting && !d.deletes(b) && !d.cleansUpOnly()
}

// canDelete reports whether the Blueprint has the deletion policy Delete and is allowed to serve its type.
func (d decision) canDelete(b *blueprint.Blueprint) bool {
	return b.Spec.DeletionPolicy == blueprint.Delete && !d.lacksConsent()
}

// dependencies identifies the types that a decision depends on.
type dependencies struct {
	crd   string // name of the Blueprint's own CustomResourceDefinition
	kinds []schema.GroupKind
}

// registry contains the decisions by Blueprint name. It is safe for concurrent use.
type registry struct {
	mu           sync.Mutex // guards the fields below
	decisions    map[string]decision
	dependencies map[string]dependencies
	types        map[schema.GroupVersionResource]string // the Blueprint that serves each type
}

func newRegistry() *registry {
	return &registry{
		decisions: map[string]decision{}, dependencies: map[string]dependencies{},
		types: map[schema.GroupVersionResource]string{},
	}
}

func (r *registry) get(name string) (d decision, found bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d, found = r.decisions[name]
	return d, found
}

// setRefusal records the refusal of d, unless the inputs have changed since the decision d was made. It reports whether
// the generation was refused before but no longer is, or the reverse.
func (r *registry) setRefusal(name string, d decision) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.decisions[name]
	if now.uid != d.uid || now.inputs != d.inputs {
		return false
	}
	changed = (now.refusal != nil) != (d.refusal != nil)
	now.refusal = d.refusal
	r.decisions[name] = now
	return changed
}

func (r *registry) set(name string, d decision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.decisions[name] = d
}

// setDependencies sets the types that the decision on a Blueprint depends on. It must be called before the types are
// read, so that a later change to one of them triggers a reconcile.
func (r *registry) setDependencies(name string, d dependencies) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dependencies[name] = d
}

// forget removes a Blueprint and returns the other Blueprints that claim its type.
func (r *registry) forget(name string) (rivals []string) {
	r.mu.Lock()
	crd := r.dependencies[name].crd
	delete(r.decisions, name)
	delete(r.dependencies, name)
	r.mu.Unlock()
	return r.claimants(crd)
}

func (r *registry) dependents(matches func(dependencies) bool) (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, d := range r.dependencies {
		if matches(d) {
			names = append(names, name)
		}
	}
	return names
}

// rivals returns all Blueprints that claim the type of the named Blueprint, including the named Blueprint.
func (r *registry) rivals(name string) []string {
	r.mu.Lock()
	crd := r.dependencies[name].crd
	r.mu.Unlock()
	return r.claimants(crd)
}

// claimants returns the Blueprints that claim the type with the given CustomResourceDefinition name.
func (r *registry) claimants(crd string) []string {
	return r.dependents(func(d dependencies) bool { return d.crd == crd })
}

// dependentsOfCRD returns the Blueprints that claim the type or have children in its API group.
func (r *registry) dependentsOfCRD(crd, group string) []string {
	return r.dependents(func(d dependencies) bool {
		return d.crd == crd || slices.ContainsFunc(d.kinds, func(kind schema.GroupKind) bool { return kind.Group == group })
	})
}

func (r *registry) dependentsOfKind(kind schema.GroupKind) []string {
	return r.dependents(func(d dependencies) bool { return slices.Contains(d.kinds, kind) })
}

// overBudget returns the Blueprints that are rejected because they exceed the memory budget.
func (r *registry) overBudget() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, d := range r.decisions {
		if d.rejection.is(reasonBudget) || d.loadRejection.is(reasonBudget) {
			names = append(names, name)
		}
	}
	return names
}

func (r *rejection) is(reason string) bool { return r != nil && r.reason == reason }

// acquire reserves a type for a Blueprint. It returns false if the type is reserved for another Blueprint.
func (r *registry) acquire(gvr schema.GroupVersionResource, name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if by, is := r.types[gvr]; is && by != name {
		return false
	}
	r.types[gvr] = name
	return true
}

func (r *registry) release(gvr schema.GroupVersionResource) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.types, gvr)
}
