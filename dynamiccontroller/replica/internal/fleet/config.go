package fleet

import (
	"time"

	"github.com/go-logr/logr"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/leasename"
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
func (c Config) leaseLabels() map[string]string { return leasename.Labels(c.Name, c.Labels) }

const (
	// StateAnnotation holds the state of a member.
	StateAnnotation = "dynamic-controller.github.io/member"
	// PlanAnnotation holds the plan.
	PlanAnnotation = "dynamic-controller.github.io/plan"
)
