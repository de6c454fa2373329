package blueprint

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/memory"
)

// Instance computes the children of one instance of a Blueprint's type. The results depend only on the Blueprint, the
// instance, the arguments of Step and the objects that the [Lookup] returns. An Instance is safe for concurrent use. It
// does not modify the given object, and it ignores the fields that the platform writes. See selfOf.
type Instance struct {
	compiled *Compiled
	self     map[string]any
	lookup   Lookup
	// isInstance reports whether objects of a kind are instances of a Blueprint. If isInstance is nil, no children are
	// treated as instances.
	isInstance func(schema.GroupVersionKind) bool
}

// Instance returns the Instance of the given object.
func (c *Compiled) Instance(self *unstructured.Unstructured) *Instance {
	return &Instance{compiled: c, self: selfOf(self.Object, c.writtenStatus)}
}

// WithInstances returns a copy of the Instance that supports children that are instances of a Blueprint themselves.
// Such a child is not ready until it has a Ready condition. isInstance reports whether objects of a kind are instances
// of a Blueprint.
func (i *Instance) WithInstances(isInstance func(schema.GroupVersionKind) bool) *Instance {
	next := *i
	next.isInstance = isInstance
	return &next
}

// Step is the result of one step of an instance. Each template is in exactly one of Rendered, Waiting, Excluded and
// Problems. Each reference is in exactly one of Referenced, Waiting, Excluded and Problems.
type Step struct {
	// Rendered lists the desired objects, sorted so that each one follows those that it refers to.
	Rendered []Rendered
	// Referenced lists the references that have been looked up.
	Referenced []string
	// Waiting lists resources that cannot be rendered yet, and resources whose includeWhen cannot be evaluated yet. Their
	// existing objects must be kept.
	Waiting []Reason
	// Unready lists rendered resources and references whose objects are missing or not ready.
	Unready []Reason
	// Excluded lists the resources that are not wanted. Their objects must be deleted, regardless of the state of other
	// resources.
	Excluded []Excluded
	// Problems lists failed expressions and invalid results.
	Problems Problems
	// Report is the part of the instance's status that the Blueprint defines. It is nil if it depends on a reference whose
	// lookup failed.
	Report *Report
	// Named lists the objects that Report depends on and whose resources are not rendered. Only their API versions, kinds,
	// namespaces and names are set. Objects of collections and objects whose names are not known yet are omitted.
	Named []Rendered
	// Collections maps the id of each rendered collection to its number of objects.
	Collections map[string]int
	// Ready reports whether all wanted resources exist and are ready, and Report has no problems.
	Ready bool
	// Cost is the total cost of the expressions, in the units of Kubernetes' cost model.
	Cost uint64
	// Memory is the memory in bytes that Step has reserved for the result.
	Memory int64
}

// Rendered is a desired object. The caller can modify it.
type Rendered struct {
	ID string // the id of the resource
	// Key identifies the object among the objects of the instance. It is the id of the resource or, in a collection, an
	// ItemKey.
	Key    string
	Object *unstructured.Unstructured

	DeletionPolicy DeletionPolicy
	Adopt          bool
	OnImmutable    OnImmutable
	KeepExisting   []KeptField // shared by all objects of the resource; must not be modified
	Generate       []Generated // like KeepExisting
}

// rendered returns an object of a resource with its policies.
func (r *resource) rendered(key string, object *unstructured.Unstructured) Rendered {
	return Rendered{
		ID: r.ID, Key: key, Object: object, DeletionPolicy: r.DeletionPolicy, Adopt: r.Adopt, OnImmutable: r.OnImmutable,
		KeepExisting: r.KeepExisting, Generate: r.Generate,
	}
}

// Reason explains why a resource is waiting or is not ready.
type Reason struct{ ID, Reason string }

func (r Reason) String() string { return r.ID + ": " + r.Reason }

// Step computes the next step. observed maps the keys of rendered objects to the existing objects. See [Rendered].
// observed must not contain objects that are being deleted, and Step does not modify it. If ctx has a
// [memory.Reservation], Step reserves the memory for the result, which it does not release. Step returns an error only
// if ctx is cancelled, for example because the reservation cannot grow.
func (i *Instance) Step(ctx context.Context, observed map[string]*unstructured.Unstructured) (Step, error) {
	s := &stepping{
		evaluation: evaluation{self: i.self, left: MaxInstanceBytes},
		compiled:   i.compiled,
		lookup:     i.lookup,
		isInstance: i.isInstance,
		memory:     memory.FromContext(ctx),
		observed:   observed,
		ready:      map[string]any{"self": i.self},
		state:      map[*resource]state{},
		blocked:    map[*resource]string{},
		existing:   map[string]any{},
		made:       map[identity]string{},
		out:        Step{Collections: map[string]int{}},
	}
	for _, r := range i.compiled.resources {
		s.include(ctx, r)
	}
	s.nameExcluded(ctx, i.compiled.resources, s.out.Excluded)
	excludedFirst := len(s.out.Excluded)
	for _, r := range i.compiled.resources {
		s.step(ctx, r)
		if ctx.Err() != nil {
			return Step{}, fmt.Errorf("render the children: %w", context.Cause(ctx))
		}
	}
	s.nameExcluded(ctx, i.compiled.resources, s.out.Excluded[excludedFirst:])
	s.dropShared(ctx, i.compiled.resources)
	s.out.Report = s.report(ctx)
	if ctx.Err() != nil {
		return Step{}, fmt.Errorf("compute the status: %w", context.Cause(ctx))
	}
	s.out.Cost = s.cost + s.namingCost
	s.out.Ready = len(s.out.Waiting)+len(s.out.Unready)+len(s.out.Problems) == 0 &&
		(s.out.Report == nil || len(s.out.Report.Problems) == 0)
	return s.out, nil
}

// state is the state of a resource.
type state int

const (
	blocked state = iota // dependent resources must wait
	excluded
	ready
)

type identity struct {
	kind            schema.GroupKind
	namespace, name string
}

// stepping holds the state of one call to Step.
type stepping struct {
	evaluation
	compiled *Compiled
	lookup   Lookup
	// isInstance is the same function as in Instance.
	isInstance func(schema.GroupVersionKind) bool

	memory *memory.Reservation // reserves the memory for the results

	observed map[string]*unstructured.Unstructured
	ready    map[string]any // the variables of templates: self, and ready and excluded resources
	state    map[*resource]state
	blocked  map[*resource]string // why dependent resources must wait
	existing map[string]any       // the objects of references that were looked up, ready or not
	made     map[identity]string
	out      Step

	unread    bool // whether the lookup of a reference that Report reads failed
	collected int  // the total number of objects in collections
	placed    int  // the number of objects in collections whose identities placesOf has computed

	namingCost uint64 // the cost of nameExcluded
}

// step renders a resource if it can be rendered now.
func (s *stepping) step(ctx context.Context, r *resource) {
	if _, failed := s.blocked[r]; failed || s.state[r] == excluded {
		return // include has excluded it or found a problem
	}
	if r.decidedLater && !s.includeLater(ctx, r) {
		return
	}
	for _, o := range r.needs {
		if s.state[o] == blocked { // an excluded one is read only by ?
			s.wait(r, "waiting for "+s.blocked[o])
			return
		}
	}
	if r.Collection {
		s.stepCollection(ctx, r)
		return
	}
	object, waits, problem := s.render(ctx, r, s.ready, "")
	switch {
	case problem != nil:
		s.problem(r, *problem)
		return
	case waits != "":
		s.wait(r, waits)
		return
	}
	if r.Reference {
		s.refer(ctx, r, object)
		return
	}
	s.out.Rendered = append(s.out.Rendered, r.rendered(r.ID, object))
	if reason := s.unready(ctx, r, r.ID); reason != "" {
		s.out.Unready = append(s.out.Unready, Reason{r.ID, reason})
		if s.observed[r.ID] == nil || !r.isReadableUnready() {
			s.blocked[r] = r.ID
			return
		}
	}
	s.state[r] = ready
	s.ready[r.ID] = s.observed[r.ID].Object
}

func (s *stepping) wait(r *resource, reason string) {
	s.out.Waiting = append(s.out.Waiting, Reason{r.ID, reason})
	s.blocked[r] = r.ID
}

func (s *stepping) problem(r *resource, p Problem) {
	s.out.Problems = append(s.out.Problems, p)
	s.blocked[r] = r.ID + ", which has an error"
}

// unready returns why a rendered object is not ready, or "" if it is ready.
func (s *stepping) unready(ctx context.Context, r *resource, key string) string {
	observed := s.observed[key]
	if observed == nil {
		return "does not exist yet"
	}
	if len(r.ready) == 0 {
		return r.waitsFor(observed, s.isInstance != nil && s.isInstance(r.GVK))
	}
	if r.readsOutdated(observed) {
		return notObserved
	}
	return s.unmet(ctx, r, observed.Object)
}

// unmet evaluates readyWhen for the value of a resource. It describes the first condition that is not met, or returns
// "" if all conditions are met.
func (s *stepping) unmet(ctx context.Context, r *resource, value any) string {
	for _, condition := range r.ready {
		is, reason := s.condition(ctx, condition, map[string]any{"self": s.self, r.readyVariable(): value})
		if reason != "" || !is {
			return unmetText(condition, reason)
		}
	}
	return ""
}
