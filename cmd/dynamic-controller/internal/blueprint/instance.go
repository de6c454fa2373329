package blueprint

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Instance is what becomes of one object of a Blueprint's type. It is pure: the same objects make the same steps. It may be
// used concurrently, and reads the object that it was made of: all of it but what the platform itself writes there, which are
// resourceVersion, managedFields, finalizers, and of the status conditions and observedGeneration.
type Instance struct {
	compiled *Compiled
	self     map[string]any
}

// Instance returns what becomes of the object.
func (c *Compiled) Instance(self *unstructured.Unstructured) *Instance {
	return &Instance{compiled: c, self: selfOf(self.Object)}
}

// Step is what there is to do now. Each resource is in one of Rendered, Waiting, Excluded and Problems.
type Step struct {
	// Rendered are the objects as they should be, whether they are there or not, each after those that it refers to.
	Rendered []Rendered
	// Waiting are resources that cannot be rendered yet. One that has been before stays as it is.
	Waiting []Reason
	// Unready are resources that are rendered and not there, or not ready.
	Unready []Reason
	// Excluded lists the resources that are not wanted. Their objects must be deleted, regardless of the state of the
	// others.
	Excluded []Excluded
	// Problems are what is wrong, which only another spec or another instance mends.
	Problems Problems
	// Ready is whether all that is wanted is there and ready.
	Ready bool
	// Cost is what the expressions cost, in Kubernetes' units.
	Cost uint64
}

// Rendered is an object as it should be. It is the caller's.
type Rendered struct {
	ID     string
	Object *unstructured.Unstructured
}

// Reason is why a resource waits, or is not ready.
type Reason struct{ ID, Reason string }

func (r Reason) String() string { return r.ID + ": " + r.Reason }

// Step says what there is to do, given what is there: by id, and without those that are being deleted. What it is given is
// not changed. The error is that ctx ended, and wraps its cause.
func (i *Instance) Step(ctx context.Context, observed map[string]*unstructured.Unstructured) (Step, error) {
	s := &stepping{
		evaluation: evaluation{self: i.self, left: MaxInstanceBytes},
		compiled:   i.compiled,
		observed:   observed,
		ready:      map[string]any{"self": i.self},
		state:      map[*resource]state{},
		blocked:    map[*resource]string{},
		made:       map[identity]string{},
	}
	for _, r := range i.compiled.resources {
		s.include(ctx, r)
	}
	used := s.placesInUse(ctx, i.compiled.resources)
	for _, r := range i.compiled.resources {
		s.step(ctx, r)
		if ctx.Err() != nil {
			return Step{}, fmt.Errorf("work out what becomes of an instance: %w", context.Cause(ctx))
		}
	}
	s.dropShared(used)
	s.out.Cost = s.cost
	s.out.Ready = len(s.out.Waiting)+len(s.out.Unready)+len(s.out.Problems) == 0
	return s.out, nil
}

// state is how far a resource is.
type state int

const (
	blocked state = iota // what refers to it waits
	excluded
	ready
)

type identity struct {
	kind            schema.GroupKind
	namespace, name string
}

// stepping is a step that is being worked out.
type stepping struct {
	evaluation
	compiled *Compiled
	observed map[string]*unstructured.Unstructured
	ready    map[string]any // self and what is there and ready: what templates may refer to
	state    map[*resource]state
	blocked  map[*resource]string // why what refers to it waits
	made     map[identity]string
	out      Step
}

// step renders a resource that is wanted, as far as that can be done now.
func (s *stepping) step(ctx context.Context, r *resource) {
	if _, failed := s.blocked[r]; failed || s.state[r] == excluded {
		return // see include
	}
	for _, o := range r.needs {
		if s.state[o] != ready {
			s.wait(r, "waiting for "+s.blocked[o])
			return
		}
	}
	object, waits, problem := s.render(ctx, r)
	switch {
	case problem != nil:
		s.problem(r, *problem)
		return
	case waits != "":
		s.wait(r, waits)
		return
	}
	s.out.Rendered = append(s.out.Rendered, Rendered{ID: r.id, Object: object})
	if reason := s.unready(ctx, r); reason != "" {
		s.out.Unready = append(s.out.Unready, Reason{r.id, reason})
		s.blocked[r] = r.id + ", which " + reason
		return
	}
	s.state[r] = ready
	s.ready[r.id] = s.observed[r.id].Object
}

func (s *stepping) wait(r *resource, reason string) {
	s.out.Waiting = append(s.out.Waiting, Reason{r.id, reason})
	s.blocked[r] = r.id + ", which waits itself"
}

func (s *stepping) problem(r *resource, p Problem) {
	s.out.Problems = append(s.out.Problems, p)
	s.blocked[r] = r.id + ", which cannot be made"
}

// unready is why a resource that is rendered is not ready, empty if it is.
func (s *stepping) unready(ctx context.Context, r *resource) string {
	there := s.observed[r.id]
	if there == nil {
		return "is not there yet"
	}
	for _, condition := range r.ready {
		is, reason := s.condition(ctx, condition, map[string]any{"self": s.self, r.id: there.Object})
		text := cut(condition.String(), maxQuoted)
		switch {
		case reason != "":
			return fmt.Sprintf("is not ready: readyWhen %s: %s", text, reason)
		case !is:
			return fmt.Sprintf("is not ready: readyWhen %s is false", text)
		}
	}
	return ""
}
