package acceptance

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// State is the state of a Blueprint on this replica.
type State string

const (
	StateServed   State = "Served"   // the newest generation is accepted, and instances are reconciled
	StateWaiting  State = "Waiting"  // instances are not reconciled yet, for example because the type does not exist yet
	StateUnknown  State = "Unknown"  // the newest generation cannot be validated. An earlier one may be served
	StateRejected State = "Rejected" // the newest generation is rejected. An earlier one may be served
	StateDeleting State = "Deleting" // the Blueprint is being deleted
)

// AllStates lists the states.
var AllStates = []State{StateServed, StateWaiting, StateUnknown, StateRejected, StateDeleting}

// StateOf derives the state of a Blueprint from its conditions. The metric, the status of a replica, its page and the
// commands all use it, so that they agree with the conditions.
func StateOf(deleting bool, accepted, serving metav1.Condition) State {
	switch {
	case deleting:
		return StateDeleting
	case accepted.Status == metav1.ConditionFalse:
		return StateRejected
	case accepted.Status != metav1.ConditionTrue:
		return StateUnknown
	case serving.Status != metav1.ConditionTrue:
		return StateWaiting
	}
	return StateServed
}

// States returns the number of Blueprints in each state. It includes states without Blueprints.
func (c *Controller) States() map[State]int { return c.registry.states() }

func (r *registry) states() map[State]int {
	states := map[State]int{}
	for _, state := range AllStates {
		states[state] = 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.decisions {
		states[d.state()]++
	}
	return states
}

// Outliving returns the number of children of instances that no longer exist, of all Blueprints.
func (c *Controller) Outliving() int { return c.registry.outliving() }

func (r *registry) outliving() (count int) {
	r.mu.Lock()
	decisions := slices.Collect(maps.Values(r.decisions))
	r.mu.Unlock()
	for _, d := range decisions {
		if d.running != nil && d.running.reconcilers != nil {
			count += d.running.reconcilers.Outliving()
		}
	}
	return count
}

// state returns the state of the Blueprint. Problems with the watches of a served type do not affect it.
func (d decision) state() State {
	serving := trueCondition(blueprint.Serving, reasonServing, "")
	if d.cleansUpOnly() {
		serving = notServing(d)
	}
	return StateOf(d.deleting, d.accepted(), serving)
}

// accepted returns the Accepted condition. It has no message if the condition is True.
func (d decision) accepted() metav1.Condition {
	if d.undecided != nil {
		c := falseCondition(blueprint.Accepted, d.undecided.reason, d.undecided.message)
		c.Status = metav1.ConditionUnknown
		return c
	}
	if rejected := d.rejected(); rejected != nil {
		return falseCondition(blueprint.Accepted, rejected.reason, rejected.message)
	}
	return trueCondition(blueprint.Accepted, reasonCompiled, "")
}
