package acceptance

// State is the state of a Blueprint on this replica.
type State string

const (
	StateServed   State = "Served"   // the newest generation is accepted, and instances are reconciled
	StateWaiting  State = "Waiting"  // instances are not reconciled yet, for example because the type does not exist yet
	StateRejected State = "Rejected" // the newest generation is rejected. An earlier one may be served
	StateDeleting State = "Deleting" // the Blueprint is being deleted
)

// States returns the number of Blueprints in each state. It includes states without Blueprints.
func (c *Controller) States() map[State]int { return c.registry.states() }

func (r *registry) states() map[State]int {
	states := map[State]int{StateServed: 0, StateWaiting: 0, StateRejected: 0, StateDeleting: 0}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.decisions {
		states[d.state()]++
	}
	return states
}

func (d decision) state() State {
	switch {
	case d.deleting:
		return StateDeleting
	case d.rejected() != nil:
		return StateRejected
	case d.cleansUpOnly():
		return StateWaiting
	}
	return StateServed
}
