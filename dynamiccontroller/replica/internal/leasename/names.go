package leasename

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Labels returns the labels with the one by which the members of a fleet find its Leases.
func Labels(name string, labels map[string]string) map[string]string {
	labels = maps.Clone(labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[Label] = LabelValue(name)
	return labels
}

// Shard returns the name of the Lease of a shard.
func Shard(name string, index int) string {
	return fmt.Sprintf("%s%d", ShardPrefix(name), index)
}

// ShardPrefix returns the common prefix of the names of the shards' Leases.
func ShardPrefix(name string) string { return name + "-shard-" }

// Plan returns the name of the Lease that holds the plan.
func Plan(name string) string { return name + "-plan" }

// Member returns the name of a member's Lease. The identity is hashed, because it can contain characters that the
// name of an object must not.
func Member(name, identity string) string {
	sum := sha256.Sum256([]byte(identity))
	return name + "-member-" + hex.EncodeToString(sum[:8])
}

// MaxSuffix is the maximum number of characters that the functions add to the name of a fleet.
const MaxSuffix = len("-member-") + 16

// Label is set on all Leases of a fleet, except the fleet's own. See [LabelValue].
const Label = "dynamic-controller.github.io/fleet"

// LabelValue returns the value of [Label] for the fleet with the name. A name that is too long for a label is hashed.
func LabelValue(name string) string {
	if len(name) <= validation.LabelValueMaxLength {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16])
}
