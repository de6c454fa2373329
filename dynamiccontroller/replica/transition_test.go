package replica

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

var (
	phaseNames = map[leadPhase]string{phaseLeading: "leading", phaseStopping: "stopping", phaseDone: "done"}
	eventNames = map[leadEvent]string{
		eventShutdown: "shutdown", eventFailure: "failure", eventLoss: "loss", eventTimeout: "timeout",
		eventReturned: "returned", eventReturnedUnjoined: "returned, unjoined", eventStepDown: "step down",
	}
	actionNames = map[leadAction]string{
		actionStop: "stop", actionStartTimeout: "start timeout", actionLoseTerm: "lose term",
		actionReportLoss: "report loss", actionFinishTerm: "finish term",
	}
)

// String returns the phase and the flags, in alphabetical order.
func (s leadState) String() string {
	name := phaseNames[s.phase]
	for flag, set := range map[string]bool{"ending": s.ending, "failed": s.failed, "lost": s.lost} {
		if set {
			name += "+" + flag
		}
	}
	flags := strings.Split(name, "+")
	slices.Sort(flags[1:])
	return strings.Join(flags, "+")
}

// transitions lists the transitions from every reachable state with the policies StepDown and CampaignAgain:
// state | event | next state | actions.
const transitions = `
leading                     | shutdown           | stopping+ending             | stop, start timeout
leading                     | failure            | stopping+failed             | stop, start timeout
leading                     | loss               | stopping+lost               | stop, start timeout
leading                     | timeout            | stopping+lost               | lose term, stop, start timeout
leading                     | returned           | done                        | finish term
leading                     | returned, unjoined | done+lost                   | lose term, finish term
leading                     | step down          | stopping                    | stop, start timeout

stopping                    | shutdown           | stopping+ending             | start timeout
stopping                    | failure            | stopping+failed             |
stopping                    | loss               | stopping+lost               |
stopping                    | timeout            | stopping+lost               | lose term
stopping                    | returned           | done                        | finish term
stopping                    | returned, unjoined | done+lost                   | lose term, finish term
stopping                    | step down          | stopping                    |

stopping+ending             | shutdown           | stopping+ending             |
stopping+ending             | failure            | stopping+ending+failed      |
stopping+ending             | loss               | stopping+ending+lost        |
stopping+ending             | timeout            | done+ending+lost            | lose term
stopping+ending             | returned           | done+ending                 | finish term
stopping+ending             | returned, unjoined | done+ending+lost            | lose term, finish term
stopping+ending             | step down          | stopping+ending             |

stopping+failed             | shutdown           | stopping+ending+failed      | start timeout
stopping+failed             | failure            | stopping+failed             |
stopping+failed             | loss               | stopping+failed+lost        |
stopping+failed             | timeout            | stopping+failed+lost        | lose term
stopping+failed             | returned           | done+failed                 | finish term
stopping+failed             | returned, unjoined | done+failed+lost            | lose term, finish term
stopping+failed             | step down          | stopping+failed             |

stopping+lost               | shutdown           | stopping+ending+lost        | start timeout
stopping+lost               | failure            | stopping+failed+lost        |
stopping+lost               | loss               | stopping+lost               |
stopping+lost               | timeout            | stopping+lost               |
stopping+lost               | returned           | done+lost                   | finish term
stopping+lost               | returned, unjoined | done+lost                   | finish term
stopping+lost               | step down          | stopping+lost               |

stopping+ending+failed      | shutdown           | stopping+ending+failed      |
stopping+ending+failed      | failure            | stopping+ending+failed      |
stopping+ending+failed      | loss               | stopping+ending+failed+lost |
stopping+ending+failed      | timeout            | done+ending+failed+lost     | lose term
stopping+ending+failed      | returned           | done+ending+failed          | finish term
stopping+ending+failed      | returned, unjoined | done+ending+failed+lost     | lose term, finish term
stopping+ending+failed      | step down          | stopping+ending+failed      |

stopping+ending+lost        | shutdown           | stopping+ending+lost        |
stopping+ending+lost        | failure            | stopping+ending+failed+lost |
stopping+ending+lost        | loss               | stopping+ending+lost        |
stopping+ending+lost        | timeout            | done+ending+lost            |
stopping+ending+lost        | returned           | done+ending+lost            | finish term
stopping+ending+lost        | returned, unjoined | done+ending+lost            | finish term
stopping+ending+lost        | step down          | stopping+ending+lost        |

stopping+failed+lost        | shutdown           | stopping+ending+failed+lost | start timeout
stopping+failed+lost        | failure            | stopping+failed+lost        |
stopping+failed+lost        | loss               | stopping+failed+lost        |
stopping+failed+lost        | timeout            | stopping+failed+lost        |
stopping+failed+lost        | returned           | done+failed+lost            | finish term
stopping+failed+lost        | returned, unjoined | done+failed+lost            | finish term
stopping+failed+lost        | step down          | stopping+failed+lost        |

stopping+ending+failed+lost | shutdown           | stopping+ending+failed+lost |
stopping+ending+failed+lost | failure            | stopping+ending+failed+lost |
stopping+ending+failed+lost | loss               | stopping+ending+failed+lost |
stopping+ending+failed+lost | timeout            | done+ending+failed+lost     |
stopping+ending+failed+lost | returned           | done+ending+failed+lost     | finish term
stopping+ending+failed+lost | returned, unjoined | done+ending+failed+lost     | finish term
stopping+ending+failed+lost | step down          | stopping+ending+failed+lost |
`

// exitOnFailureTransitions lists the transitions that differ with the policy ExitOnFailure.
const exitOnFailureTransitions = `
leading                     | failure            | stopping+ending+failed      | stop, start timeout
stopping                    | failure            | stopping+ending+failed      | start timeout
stopping+failed             | failure            | stopping+ending+failed      | start timeout
stopping+lost               | failure            | stopping+ending+failed+lost | start timeout
stopping+failed+lost        | failure            | stopping+ending+failed+lost | start timeout
`

// exitOnLossTransitions lists the transitions that differ with the policy ExitOnLoss.
const exitOnLossTransitions = `
leading                     | loss               | stopping+ending+lost        | report loss, stop, start timeout
leading                     | timeout            | done+ending+lost            | lose term, report loss
stopping                    | loss               | stopping+ending+lost        | report loss, start timeout
stopping                    | timeout            | done+ending+lost            | lose term, report loss
stopping+ending             | loss               | stopping+ending+lost        | report loss
stopping+failed             | loss               | stopping+ending+failed+lost | report loss, start timeout
stopping+failed             | timeout            | done+ending+failed+lost     | lose term, report loss
stopping+ending+failed      | loss               | stopping+ending+failed+lost | report loss
`

// transition is a state and an event, and result is the next state and the actions that the tables list for them.
type (
	transition struct{ state, event string }
	result     struct{ state, actions string }
)

func addTransitions(t *testing.T, table map[transition]result, text string) {
	for line := range strings.Lines(strings.TrimSpace(text)) {
		cells := strings.Split(line, "|")
		if strings.TrimSpace(line) == "" {
			continue
		}
		if len(cells) != 4 {
			t.Fatalf("the table of transitions has the invalid line %q", line)
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		table[transition{cells[0], cells[1]}] = result{cells[2], cells[3]}
	}
}

func TestLeadState_Transitions(t *testing.T) {
	for _, p := range []leadPolicy{{}, {exitOnFailure: true}, {exitOnLoss: true}, {true, true}} {
		t.Run(fmt.Sprintf("%+v", p), func(t *testing.T) {
			table := map[transition]result{}
			addTransitions(t, table, transitions)
			if p.exitOnFailure {
				addTransitions(t, table, exitOnFailureTransitions)
			}
			if p.exitOnLoss {
				addTransitions(t, table, exitOnLossTransitions)
			}
			for _, state := range activeStates() {
				for event, name := range eventNames {
					want, ok := table[transition{state.String(), name}]
					if got := nextResult(state, event, p); !ok || got != want {
						t.Errorf("%s, %s: got %+v, want %+v", state, name, got, want)
					}
				}
			}
		})
	}
}

func nextResult(s leadState, e leadEvent, p leadPolicy) result {
	next, actions := s.next(e, p)
	names := make([]string, 0, len(actions))
	for _, a := range actions {
		names = append(names, actionNames[a])
	}
	return result{next.String(), strings.Join(names, ", ")}
}

func TestLeadState_DoneIsFinal(t *testing.T) {
	for event, name := range eventNames {
		for _, state := range activeStates() {
			state.phase = phaseDone
			if next, actions := state.next(event, leadPolicy{true, true}); next != state || len(actions) > 0 {
				t.Errorf("%s, %s: got the state %s and the actions %v, want no change", state, name, next, actions)
			}
		}
	}
}

// activeStates returns all states before phaseDone that some sequence of events leads to.
func activeStates() (states []leadState) {
	for pending := []leadState{{}}; len(pending) > 0; pending = pending[1:] {
		s := pending[0]
		if s.phase == phaseDone || slices.Contains(states, s) {
			continue
		}
		states = append(states, s)
		for event := range eventNames {
			next, _ := s.next(event, leadPolicy{})
			pending = append(pending, next)
		}
	}
	return states
}
