package replica

import (
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
	"k8s.io/client-go/tools/leaderelection"
)

// Options tunes a Replica. All but LeaseName has a default.
type Options struct {
	// LeaderElection tells whether the leading half waits for a lease. Defaults to true. With false, for work on one's own
	// machine, both halves run at once: term 1 begins with Run and ends with it, and no lease is ever asked for.
	LeaderElection *bool
	// LeaseName is the name of the Lease (coordination.k8s.io/v1) that all replicas share, a DNS-1123 subdomain. It has no
	// default: two programs that share a lease by accident stop each other.
	LeaseName string
	// LeaseNamespace is the namespace of the Lease. Defaults to $POD_NAMESPACE, else the namespace of the service account
	// that is mounted into the Pod, else kube-system.
	LeaseNamespace string
	// Identity is what the Lease calls this replica. Defaults to $POD_NAME, else the host's name. An underscore and a UID
	// are always added, so that no two processes share an identity.
	Identity string
	// Labels are set on the Lease; others that it has are left alone.
	Labels map[string]string

	// LeaseDuration is how long a lease that is not renewed keeps other replicas from leading: a crash costs about that
	// much. Whole seconds, which is what a Lease stores, and at least two. Defaults to 15 seconds. It must exceed
	// RenewDeadline + RetryPeriod + a tenth of itself (see [Replica.FencedConfig] for that tenth).
	LeaseDuration time.Duration
	// RenewDeadline is how long the leader retries a renewal before it gives up the lease. It must exceed 1.2 x RetryPeriod,
	// which is client-go's jitter. Defaults to 10 seconds. A single request for the lease is cancelled after half of it
	// or one second, whichever is longer, and never later than RenewDeadline. If the API server always takes longer to
	// answer, no replica ever leads.
	RenewDeadline time.Duration
	// RetryPeriod is the time between two attempts to acquire or to renew the lease, at least 100 milliseconds.
	// Defaults to 2 seconds. The wall clock is checked at the same interval, so that contexts can end this much late
	// after it has jumped.
	RetryPeriod time.Duration

	// ShutdownTimeout is how long Run takes to end, from when its ctx ends or it ends by itself: the leading half's
	// runnables, the release of the lease, and the per-replica half share it. The two latter have a second each even if
	// it is used up, so that the whole end takes 2 seconds more at the most. It should exceed that of every runnable that
	// has one of its own. Defaults to 25 seconds: more than a DynamicController's 20, and with those 2 less than the 30
	// that Kubernetes gives a terminating Pod; a preStop hook takes its time from these 30 too. As zero stands for the
	// default there is no way to ask for no time at all.
	ShutdownTimeout time.Duration
	// OnLostLease says what happens when the lease is lost. Defaults to CampaignAgain.
	OnLostLease LossPolicy
	// OnFailure says what happens when a runnable of the leading half fails, panics or returns early. Defaults to
	// ExitOnFailure. One of the per-replica half always ends Run.
	OnFailure FailurePolicy

	// Log hears what happens. The zero Logger logs nothing.
	Log logr.Logger
}

// LossPolicy says what a replica does that has lost its lease.
type LossPolicy int

const (
	// CampaignAgain waits until the lost term's runnables have returned and then tries to lead again. The per-replica half
	// is not disturbed.
	CampaignAgain LossPolicy = iota
	// ExitOnLoss ends Run with an error that is ErrLeaseLost.
	ExitOnLoss
)

// FailurePolicy says what a replica does when a runnable of its leading half fails.
type FailurePolicy int

const (
	// ExitOnFailure ends Run, cleanly, with an error that names the runnable.
	ExitOnFailure FailurePolicy = iota
	// StepDown ends the term cleanly, releases the lease so that another replica may try, and campaigns again after a
	// backoff: 2 x RetryPeriod, doubled with every term that ends so, up to a minute; a term that lasted longer than
	// that minute forgets the ones before. Where the lease cannot be released, as after a panic, the backoff is longer by
	// the time that others need to win it. Without leader election there is nobody to step down for, and this is
	// ExitOnFailure.
	StepDown
)

// DefaultOptions are the defaults that do not depend on where the process runs.
func DefaultOptions() Options {
	return Options{
		LeaseDuration:   15 * time.Second,
		RenewDeadline:   10 * time.Second,
		RetryPeriod:     2 * time.Second,
		ShutdownTimeout: 25 * time.Second,
	}
}

const (
	shortestLease = 2 * time.Second // see released
	// shortestRetry keeps a replica from asking for the lease without a pause.
	shortestRetry = 100 * time.Millisecond
	// skewShare is the part of LeaseDuration by which the fence closes before others may lead: clocks of two machines
	// may run at rates that differ by that much, which is a hundred times what NTP's slewing does (0.05 %), so that most
	// of it is left for what lies between the look at the clock and the packet: the scheduler, the garbage collector.
	skewShare = 10
)

// skew is how long before the lease's end the fence closes.
func (o Options) skew() time.Duration { return o.LeaseDuration / skewShare }

// certain is for how long after a confirmed renewal was sent a replica can be sure that it leads.
func (o Options) certain() time.Duration { return o.LeaseDuration - o.skew() }

func (o Options) elects() bool { return o.LeaderElection == nil || *o.LeaderElection }

// serviceAccountNamespace is where a Pod finds its namespace.
const serviceAccountNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// withDefaults fills in what is zero.
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
		o.LeaseNamespace = namespaceHere(serviceAccountNamespace)
	}
	if o.Identity == "" {
		o.Identity = os.Getenv("POD_NAME")
	}
	if o.Identity == "" {
		host, err := os.Hostname()
		if err != nil {
			return o, fmt.Errorf("find a default for Options.Identity: %w", err)
		}
		o.Identity = host
	}
	o.Identity += "_" + string(uuid.NewUUID())
	return o, nil
}

func namespaceHere(file string) string {
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

// validate says everything that is wrong, by field.
func (o Options) validate() error {
	var errs []error
	refuse := func(field string, value any, format string, args ...any) {
		errs = append(errs, fmt.Errorf("invalid Options.%s %v: %s", field, value, fmt.Sprintf(format, args...)))
	}
	if o.ShutdownTimeout < 0 {
		refuse("ShutdownTimeout", o.ShutdownTimeout, "must not be negative")
	}
	if o.OnLostLease != CampaignAgain && o.OnLostLease != ExitOnLoss {
		refuse("OnLostLease", int(o.OnLostLease), "there is no such policy")
	}
	if o.OnFailure != ExitOnFailure && o.OnFailure != StepDown {
		refuse("OnFailure", int(o.OnFailure), "there is no such policy")
	}
	if !o.elects() {
		return errors.Join(errs...)
	}

	if o.LeaseName == "" {
		refuse("LeaseName", `""`, "is required with leader election")
	} else {
		for _, why := range validation.IsDNS1123Subdomain(o.LeaseName) {
			refuse("LeaseName", o.LeaseName, "%s", why)
		}
	}
	for _, why := range validation.IsDNS1123Label(o.LeaseNamespace) {
		refuse("LeaseNamespace", o.LeaseNamespace, "%s", why)
	}
	for _, err := range metav1validation.ValidateLabels(o.Labels, field.NewPath("Labels")) {
		refuse("Labels", o.Labels, "%s", err)
	}
	jitter := time.Duration(leaderelection.JitterFactor * float64(o.RetryPeriod))
	switch {
	case o.RetryPeriod < shortestRetry:
		refuse("RetryPeriod", o.RetryPeriod, "must be at least %s", shortestRetry)
	case o.RenewDeadline <= jitter:
		refuse("RenewDeadline", o.RenewDeadline, "must exceed %v x RetryPeriod, which makes %s", leaderelection.JitterFactor, jitter)
	}
	switch least := o.RenewDeadline + o.RetryPeriod + o.skew(); {
	case o.LeaseDuration < shortestLease:
		refuse("LeaseDuration", o.LeaseDuration, "must be at least %s", shortestLease)
	case o.LeaseDuration%time.Second != 0:
		refuse("LeaseDuration", o.LeaseDuration, "must be whole seconds, which is what a Lease stores")
	case o.LeaseDuration <= least:
		refuse("LeaseDuration", o.LeaseDuration, "must exceed RenewDeadline %s + RetryPeriod %s + a tenth of itself %s, which makes %s",
			o.RenewDeadline, o.RetryPeriod, o.skew(), least)
	}
	return errors.Join(errs...)
}
