package fleet

import (
	"encoding/json"
	"fmt"
	"slices"
)

// State is what a member reports about itself.
type State struct {
	// Format is the number of the format. It is omitted for the first one. A new format is written one version after it
	// can be read, because members of both versions can be in a fleet.
	Format int `json:"format,omitempty"`
	// Shards is the number of shards that the member is configured for.
	Shards int `json:"shards"`
	// Node is the machine that the member runs on, or empty if it is unknown.
	Node string `json:"node,omitempty"`
	// Layout is the number of shards that Warm refers to.
	Layout int `json:"layout,omitempty"`
	// Warm lists the shards whose watches have synced, in order.
	Warm []int `json:"warm,omitempty"`
	// Kept lists the shards that the member leads and that cannot be moved now, in order.
	Kept []int `json:"kept,omitempty"`
	// Capacity is the number of objects that the copies of the member can have together, or zero.
	Capacity int `json:"capacity,omitempty"`
	// Loads contains the loads of shards that the member leads: their indexes, work and objects; see [plan.Load].
	Loads [][3]int `json:"loads,omitempty"`
	// Leaving reports that the member is shutting down.
	Leaving bool `json:"leaving,omitempty"`
}

// Encode returns the state as the value of an annotation.
func (s State) Encode() string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // the state has no field that cannot be encoded
	}
	return string(text)
}

// differs reports whether the states differ in more than the loads, which can wait.
func (s State) differs(other State) bool {
	s.Loads, other.Loads = nil, nil
	return s.Encode() != other.Encode()
}

const stateFormat = 1

// maxState limits the length of a state that is decoded.
const maxState = 16 << 10

// DecodeState parses the value of an annotation.
func DecodeState(text string) (State, error) {
	var s State
	if len(text) > maxState {
		return s, fmt.Errorf("the state of a member is %d bytes long, at most %d are allowed", len(text), maxState)
	}
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return State{}, fmt.Errorf("decode the state of a member: %w", err)
	}
	if s.Format > stateFormat {
		return State{}, fmt.Errorf("the state of a member has format %d, which a later version writes; the newest known "+
			"one is %d", s.Format, stateFormat)
	}
	slices.Sort(s.Warm)
	s.Capacity = max(s.Capacity, 0)
	return s, nil
}
