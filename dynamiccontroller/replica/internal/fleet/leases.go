package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/validation"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// Config describes a member. All fields except Labels are required.
type Config struct {
	// Name is that of the fleet and of its own Lease.
	Name, Namespace string
	Identity        string
	Labels          map[string]string // of the Leases of the fleet
	Shards          int               // for which the member is configured
	// The durations are those of the options of package replica.
	LeaseDuration, RetryPeriod time.Duration
	RequestTimeout             time.Duration // limits each request
	Client                     coordinationclient.LeaseInterface
	Log                        logr.Logger
}

// leaseLabels returns the labels of the Leases of the fleet, except the fleet's own.
func (c Config) leaseLabels() map[string]string { return Labels(c.Name, c.Labels) }

// Labels returns the labels with the one by which the members of a fleet find its Leases.
func Labels(name string, labels map[string]string) map[string]string {
	labels = maps.Clone(labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[Label] = LabelValue(name)
	return labels
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
