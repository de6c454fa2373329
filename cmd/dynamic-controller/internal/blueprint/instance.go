package blueprint

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Instance computes the children of an object of a Blueprint's type. Its results depend only on its inputs. It is safe
// for concurrent use. It does not modify the object, and it ignores the fields that the platform writes: see selfOf.
type Instance struct {
	compiled *Compiled
	self     map[string]any
}

// Instance returns the Instance of an object.
func (c *Compiled) Instance(self *unstructured.Unstructured) *Instance {
	return &Instance{compiled: c, self: selfOf(self.Object)}
}

// Step is the result of one step of an instance. Each resource is in one of Rendered, Waiting, Excluded and Problems.
type Step struct {
	// Rendered lists the desired objects, each after those that it refers to.
	Rendered []Rendered
	// Waiting lists the resources that cannot be rendered yet. Their existing objects must be kept.
	Waiting []Reason
	// Unready lists the rendered resources that do not exist or are not ready.
	Unready []Reason
	// Excluded lists the resources that are not wanted. Their objects must be deleted, regardless of the state of other
	// resources.
	Excluded []Excluded
	// Problems lists errors that can be fixed only by changing the spec or the instance.
	Problems Problems
	// Ready reports whether all wanted resources exist and are ready.
	Ready bool
	// Cost is the cost of the expressions in Kubernetes' units.
	Cost uint64
}

// Rendered is a desired object, which belongs to the caller.
type Rendered struct {
	ID     string
	Object *unstructured.Unstructured

	DeletionPolicy DeletionPolicy
	Adopt          bool
}

// Reason explains why a resource is waiting or not ready.
type Reason struct{ ID, Reason string }

func (r Reason) String() string { return r.ID + ": " + r.Reason }

// Step computes the next step. Observed holds the existing objects by resource id, except those that are being deleted,
// and is not modified. Step returns an error if ctx is cancelled.
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
			return Step{}, fmt.Errorf("render the children: %w", context.Cause(ctx))
		}
	}
	s.dropShared(used)
	s.out.Cost = s.cost
	s.out.Ready = len(s.out.Waiting)+len(s.out.Unready)+len(s.out.Problems) == 0
	return s.out, nil
}

// state is the state of a resource.
type state int

const (
	blocked state = iota // resources that refer to it must wait
	excluded
	ready
)

type identity struct {
	kind            schema.GroupKind
	namespace, name string
}

// stepping is the state of one call of Step.
type stepping struct {
	evaluation
	compiled *Compiled
	observed map[string]*unstructured.Unstructured
	ready    map[string]any // the variables of templates: self, and ready resources
	state    map[*resource]state
	blocked  map[*resource]string // why resources that refer to it must wait
	made     map[identity]string
	out      Step
}

// step renders a resource, if that is possible now.
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
	s.out.Rendered = append(s.out.Rendered, Rendered{r.ID, object, r.DeletionPolicy, r.Adopt})
	if reason := s.unready(ctx, r); reason != "" {
		s.out.Unready = append(s.out.Unready, Reason{r.ID, reason})
		s.blocked[r] = r.ID
		return
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

// unready returns why a rendered resource is not ready, or "".
func (s *stepping) unready(ctx context.Context, r *resource) string {
	observed := s.observed[r.ID]
	if observed == nil {
		return "does not exist yet"
	}
	for _, condition := range r.ready {
		is, reason := s.condition(ctx, condition, map[string]any{"self": s.self, r.ID: observed.Object})
		text := cut(condition.String(), maxQuoted)
		switch {
		case reason != "":
			return fmt.Sprintf("waiting for readyWhen %q: %s", text, reason)
		case !is:
			return fmt.Sprintf("waiting for readyWhen %q", text)
		}
	}
	return ""
}
