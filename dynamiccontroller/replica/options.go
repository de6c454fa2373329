package replica

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/election"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/leasename"
	"github.com/dynamic-controller/engine/internal/shards"
)

// Options configures a Replica. All fields except LeaseName have defaults.
type Options struct {
	// LeaderElection determines whether leader-gated runnables wait for a lease. Defaults to true. If it is false, as in
	// local development, all runnables start with Run. Term 1 lasts as long as Run, and no lease is requested.
	LeaderElection *bool
	// LeaseName is the name of the Lease (coordination.k8s.io/v1) that all replicas share. It must be a DNS-1123
	// subdomain. It has no default, because two programs that share a lease by accident block each other.
	LeaseName string
	// LeaseNamespace is the namespace of the Lease. Defaults to $POD_NAMESPACE, else to the namespace of the mounted
	// service account, else to kube-system.
	LeaseNamespace string
	// Identity identifies this replica in the Lease. Defaults to $POD_NAME, else to the host name. An underscore and a UID
	// are always appended, so that no two processes share an identity.
	Identity string
	// Shards is the number of parts into which the types are divided. Each shard has a Lease and a leader of its own. It
	// must be a power of two, at most 256. Several shards per replica make it possible to balance them; 2 to 4 times the
	// largest number of replicas is a good choice. Each shard costs two requests for Leases per RetryPeriod. Defaults to
	// 1: a single leader. It is ignored without leader election.
	Shards int
	// NodeName is the name of the machine, so that the two replicas that keep a shard warm run on different machines if
	// possible. Defaults to $NODE_NAME.
	NodeName string
	// Capacity limits the number of objects in the caches of the shards that this replica leads or keeps warm, as
	// reported by a [ShardMeter]. It limits which shards are assigned to the replica. A shard that grows on its leader
	// remains there until another replica has room. If the replicas have too little capacity together, some shards have
	// no standby, or no leader: see [ShardStatus]. Defaults to 0: no limit. It is ignored without shards.
	Capacity int
	// Labels are set on the Lease, and with shards on all Leases of the fleet. Other labels are not changed.
	Labels map[string]string

	// LeaseDuration is how long a lease blocks other replicas after its last renewal. After the leader crashes,
	// there is no leader for about that long. It must be a number of whole seconds, because a Lease stores seconds, and at
	// least two seconds. It must exceed RenewDeadline + RetryPeriod + a tenth of itself; see [Replica.Fence].
	// Defaults to 15 seconds.
	LeaseDuration time.Duration
	// RenewDeadline is how long the leader retries a renewal before it gives up the lease. It must exceed 1.2 x
	// RetryPeriod, so that a failed renewal is retried. A single request for the lease is cancelled after half of
	// RenewDeadline or one second, whichever is longer, and never later than RenewDeadline. If the API server always takes
	// longer to answer, no replica ever leads. Defaults to 10 seconds.
	RenewDeadline time.Duration
	// RetryPeriod is the interval between attempts to acquire or renew the lease, at least 100 milliseconds. The wall
	// clock is checked at the same interval, so contexts can be cancelled up to RetryPeriod after the wall clock has
	// jumped. Defaults to 2 seconds.
	RetryPeriod time.Duration

	// ShutdownTimeout limits the time that Run takes to return after its ctx is cancelled or after it starts to end for
	// another reason. Three steps share this time: stopping the leader-gated runnables, releasing the lease, and stopping
	// the per-replica runnables. The last two steps can take one second each even if the time is used up, so the
	// total can be up to 2 seconds longer. ShutdownTimeout should exceed the shutdown timeout of every runnable. With
	// shards, their runnables are stopped first. They have a tenth of ShutdownTimeout less, at most a second, so that the
	// leader of the fleet can leave.
	//
	// Defaults to 25 seconds, which is more than a DynamicController's default of 20 seconds. Even with the additional 2
	// seconds, it is less than the 30 seconds that Kubernetes gives a terminating Pod. The time that a preStop hook takes
	// counts towards these 30 seconds too. Zero selects the default.
	ShutdownTimeout time.Duration
	// OnLostLease selects the reaction to a lost lease. Defaults to CampaignAgain.
	OnLostLease LossPolicy
	// OnFailure selects the reaction to a leader-gated runnable that returns an error, returns early, or panics. Defaults
	// to ExitOnFailure. The failure of a per-replica runnable always ends Run.
	OnFailure FailurePolicy

	// OnNewLeader is called with the identity of the leader when this replica observes a new leader, including the first
	// one. The leader can be this replica, whose identity is in [Status]. OnNewLeader is not called when the lease has no
	// holder. If the same replica leads again afterwards, OnNewLeader is called again. Without leader election, it is
	// called once with the identity of this replica.
	//
	// Its context is that of a per-replica runnable. Calls are made one at a time, in a goroutine of their own. Terms do
	// not wait for it, so the work of a leader belongs in a leader-gated runnable. If the leader changes several times
	// during a call, the next call is for the latest leader only. A change that is observed while Run ends may not be
	// reported. Run waits for a call to return as it waits for a per-replica runnable. A panic ends Run with an error.
	OnNewLeader func(ctx context.Context, identity string)

	log logr.Logger // the argument of New
}

// LossPolicy is the reaction to a lost lease.
type LossPolicy int

const (
	// CampaignAgain waits until the runnables of the lost term, and the work that they have left running, have returned,
	// and then campaigns again. Per-replica runnables are not affected.
	CampaignAgain LossPolicy = iota
	// ExitOnLoss ends Run with an error that wraps ErrLeaseLost.
	ExitOnLoss
)

// FailurePolicy is the reaction to the failure of a leader-gated runnable.
type FailurePolicy int

const (
	// ExitOnFailure shuts down cleanly and ends Run with an error that names the runnable.
	ExitOnFailure FailurePolicy = iota
	// StepDown ends the term, releases the lease so that another replica can lead, and campaigns again after a backoff.
	// The backoff starts at 2 x RetryPeriod and doubles with every term that fails, up to one minute. A term that lasts
	// longer than one minute resets the backoff. If the lease cannot be released, for example after a panic, the backoff
	// is extended by the time that another replica needs to acquire the lease. Without leader election, StepDown is
	// equivalent to ExitOnFailure.
	StepDown
)

// DefaultOptions returns the defaults that do not depend on the environment of the process.
func DefaultOptions() Options {
	return Options{
		LeaseDuration:   15 * time.Second,
		RenewDeadline:   10 * time.Second,
		RetryPeriod:     2 * time.Second,
		ShutdownTimeout: 25 * time.Second,
	}
}

const (
	minLeaseDuration = 2 * time.Second        // a released lease has a duration of one second; see election.Record
	minRetryPeriod   = 100 * time.Millisecond // prevents a busy loop
	// renewFactor is the least RenewDeadline in multiples of RetryPeriod, as in client-go.
	renewFactor = 1.2
)

// clockSkew returns the time by which the fence closes before the lease expires.
func (o Options) clockSkew() time.Duration { return o.LeaseDuration - o.renewalValidity() }

// renewalValidity returns how long a confirmed renewal is valid, counted from the time at which it was sent. During
// that time, the replica is certain that it leads.
func (o Options) renewalValidity() time.Duration { return election.Validity(o.LeaseDuration) }

// isSharded reports whether the replica takes part in a fleet.
func (o Options) isSharded() bool { return o.Shards > 1 && o.elects() }

func (o Options) elects() bool { return o.LeaderElection == nil || *o.LeaderElection }

// serviceAccountNamespace is the file that contains the namespace of a Pod.
const serviceAccountNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// withDefaults returns the options with defaults in place of zero values.
func (o Options) withDefaults() (Options, error) {
	defaults := DefaultOptions()
	for value, otherwise := range map[*time.Duration]time.Duration{
		&o.LeaseDuration:   defaults.LeaseDuration,
		&o.RenewDeadline:   defaults.RenewDeadline,
		&o.RetryPeriod:     defaults.RetryPeriod,
		&o.ShutdownTimeout: defaults.ShutdownTimeout,
	} {
		if *value == 0 {
			*value = otherwise
		}
	}
	if o.LeaseNamespace == "" {
		o.LeaseNamespace = defaultNamespace(serviceAccountNamespace)
	}
	if o.Identity == "" {
		o.Identity = os.Getenv("POD_NAME")
	}
	if o.Identity == "" {
		host, err := os.Hostname()
		if err != nil {
			return o, fmt.Errorf("determine the default of Options.Identity: %w", err)
		}
		o.Identity = host
	}
	o.Identity += "_" + string(uuid.NewUUID())
	if o.NodeName == "" {
		o.NodeName = os.Getenv("NODE_NAME")
	}
	return o, nil
}

// defaultNamespace returns the default of Options.LeaseNamespace.
func defaultNamespace(file string) string {
	if ns := os.Getenv("POD_NAMESPACE"); ns != "" {
		return ns
	}
	if data, err := os.ReadFile(file); err == nil {
		if ns := strings.TrimSpace(string(data)); ns != "" {
			return ns
		}
	}
	return "kube-system"
}

// invalidOptions collects the errors for invalid options.
type invalidOptions []error

func (e *invalidOptions) add(field string, value any, format string, args ...any) {
	*e = append(*e, fmt.Errorf("invalid Options.%s %v: %s", field, value, fmt.Sprintf(format, args...)))
}

// validate returns an error that lists all invalid options.
func (o Options) validate() error {
	var errs invalidOptions
	if o.ShutdownTimeout < 0 {
		errs.add("ShutdownTimeout", o.ShutdownTimeout, "must not be negative")
	}
	if o.OnLostLease != CampaignAgain && o.OnLostLease != ExitOnLoss {
		errs.add("OnLostLease", int(o.OnLostLease), "unknown policy")
	}
	if o.OnFailure != ExitOnFailure && o.OnFailure != StepDown {
		errs.add("OnFailure", int(o.OnFailure), "unknown policy")
	}
	if o.Capacity < 0 {
		errs.add("Capacity", o.Capacity, "must not be negative")
	}
	if o.Shards < 0 || o.Shards > 1 && !fleet.ValidCount(o.Shards) {
		errs.add("Shards", o.Shards, "must be a power of two, at most %d", shards.Max)
	}
	if o.elects() {
		o.validateLease(&errs)
		o.validateDurations(&errs)
	}
	return errors.Join(errs...)
}

func (o Options) validateLease(errs *invalidOptions) {
	if o.LeaseName == "" {
		errs.add("LeaseName", `""`, "is required with leader election")
	} else {
		for _, reason := range validation.IsDNS1123Subdomain(o.LeaseName) {
			errs.add("LeaseName", o.LeaseName, "%s", reason)
		}
		if limit := validation.DNS1123SubdomainMaxLength - leasename.MaxSuffix; o.isSharded() && len(o.LeaseName) > limit {
			errs.add("LeaseName", o.LeaseName, "with shards, must have at most %d characters", limit)
		}
	}
	for _, reason := range validation.IsDNS1123Label(o.LeaseNamespace) {
		errs.add("LeaseNamespace", o.LeaseNamespace, "%s", reason)
	}
	for _, err := range metav1validation.ValidateLabels(o.Labels, field.NewPath("Labels")) {
		errs.add("Labels", o.Labels, "%s", err)
	}
}

func (o Options) validateDurations(errs *invalidOptions) {
	least := time.Duration(renewFactor * float64(o.RetryPeriod))
	switch {
	case o.RetryPeriod < minRetryPeriod:
		errs.add("RetryPeriod", o.RetryPeriod, "must be at least %s", minRetryPeriod)
	case o.RenewDeadline <= least:
		errs.add("RenewDeadline", o.RenewDeadline, "must exceed %v x RetryPeriod = %s", renewFactor, least)
	}
	switch least := o.RenewDeadline + o.RetryPeriod + o.clockSkew(); {
	case o.LeaseDuration < minLeaseDuration:
		errs.add("LeaseDuration", o.LeaseDuration, "must be at least %s", minLeaseDuration)
	case o.LeaseDuration%time.Second != 0:
		errs.add("LeaseDuration", o.LeaseDuration, "must be a number of whole seconds, because a Lease stores seconds")
	case o.LeaseDuration <= least:
		errs.add("LeaseDuration", o.LeaseDuration,
			"must exceed RenewDeadline %s + RetryPeriod %s + a tenth of itself %s = %s",
			o.RenewDeadline, o.RetryPeriod, o.clockSkew(), least)
	}
}
