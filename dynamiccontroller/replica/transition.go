package replica

// A term ends for one of these reasons:
//
//	the Lease names somebody else, or cannot be renewed   election.Machine: Lose
//	the clocks have passed the last renewal               term.expire
//	certainty beyond the Lease is lost                    fence.condition
//	the replica is to leave the Lease to another one      leadership.stepDown
//	a runnable fails, or Run ends                         this state machine
//
// leadState is the state of a replica from the start of its leader-gated runnables until they have returned. Its zero
// value is the state of a replica that has just become the leader.
type leadState struct {
	phase  leadPhase
	failed bool // a runnable failed before it was stopped
	lost   bool // the lease was lost, or is left to expire
	ending bool // Run returns after this term
}

type leadPhase int

const (
	phaseLeading  leadPhase = iota // the runnables are running
	phaseStopping                  // their context is cancelled, and some have not returned
	phaseDone                      // the term is over
)

// leadEvent is an input of the state machine.
type leadEvent int

const (
	eventShutdown         leadEvent = iota // the context of Run was cancelled
	eventFailure                           // a runnable failed before it was stopped
	eventStepDown                          // this replica ends its campaign, so that another one can lead
	eventLoss                              // the lease was lost
	eventTimeout                           // runnables have not returned in time
	eventReturned                          // all runnables have returned
	eventReturnedUnjoined                  // all runnables have returned, but goroutines of one may still be running
)

// leadAction is an output of the state machine.
type leadAction int

const (
	actionStop         leadAction = iota // cancel the context of the runnables
	actionStartTimeout                   // send eventTimeout after what is left of ShutdownTimeout; replaces the timer
	actionLoseTerm                       // close the fence without releasing the lease
	actionReportLoss                     // make Run return ErrLeaseLost
	actionFinishTerm                     // close the fence
)

// leadPolicy is the part of Options that determines which events end Run.
type leadPolicy struct {
	exitOnFailure bool
	exitOnLoss    bool
}

// next returns the state after the event and the actions to perform, in order. It has no side effects.
//
// eventStepDown only stops the runnables. A timeout ends the term only if Run is ending. Otherwise, the lease is left
// to expire and the replica waits until the runnables have returned, because the next term must not begin while they
// are still running. If Run begins to shut down in the meantime, the timeout starts again.
func (s leadState) next(e leadEvent, p leadPolicy) (leadState, []leadAction) {
	if s.phase == phaseDone {
		return s, nil
	}
	before, actions := s, []leadAction(nil)
	loseLease := func(exit bool) {
		s.lost = true
		if exit {
			s.ending = true
			actions = append(actions, actionReportLoss)
		}
	}
	switch e {
	case eventShutdown:
		s.ending = true
	case eventFailure:
		s.failed = true
		s.ending = s.ending || p.exitOnFailure
	case eventLoss:
		if !s.lost {
			loseLease(p.exitOnLoss)
		}
	case eventTimeout:
		if !s.lost {
			actions = append(actions, actionLoseTerm)
			loseLease(p.exitOnLoss && !s.ending)
		}
		if s.ending {
			s.phase = phaseDone
		}
	case eventReturnedUnjoined:
		if !s.lost {
			actions = append(actions, actionLoseTerm)
			s.lost = true
		}
		fallthrough
	case eventReturned:
		s.phase = phaseDone
		actions = append(actions, actionFinishTerm)
	}
	if s.phase == phaseLeading && (s != before || e == eventStepDown) {
		s.phase = phaseStopping
		return s, append(actions, actionStop, actionStartTimeout)
	}
	if s.phase == phaseStopping && s.ending && !before.ending {
		actions = append(actions, actionStartTimeout)
	}
	return s, actions
}
