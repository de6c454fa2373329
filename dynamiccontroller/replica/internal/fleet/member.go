package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"
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
	return s, nil
}

// The Leases of a fleet. The name of the fleet is the name of its own Lease.

// ShardLease returns the name of the Lease of a shard.
func ShardLease(name string, index int) string {
	return fmt.Sprintf("%s%d", ShardLeasePrefix(name), index)
}

// ShardLeasePrefix returns the common prefix of the names of the shards' Leases.
func ShardLeasePrefix(name string) string { return name + "-shard-" }

// PlanLease returns the name of the Lease that holds the plan.
func PlanLease(name string) string { return name + "-plan" }

// MemberLease returns the name of a member's Lease. The identity is hashed, because it can contain characters that the
// name of an object must not.
func MemberLease(name, identity string) string {
	sum := sha256.Sum256([]byte(identity))
	return name + "-member-" + hex.EncodeToString(sum[:8])
}

// MaxSuffix is the maximum number of characters that the functions add to the name of a fleet.
const MaxSuffix = len("-member-") + 16

const (
	// Label is set on all Leases of a fleet, except the fleet's own. See [LabelValue].
	Label = "dynamic-controller.github.io/fleet"
	// StateAnnotation holds the state of a member.
	StateAnnotation = "dynamic-controller.github.io/member"
	// PlanAnnotation holds the plan.
	PlanAnnotation = "dynamic-controller.github.io/plan"
)

// LabelValue returns the value of [Label] for the fleet with the name. A name that is too long for a label is hashed.
func LabelValue(name string) string {
	if len(name) <= validation.LabelValueMaxLength {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16])
}
