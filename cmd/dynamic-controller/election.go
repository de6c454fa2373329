package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

// The flags of leader election, named as Kubernetes' own components name them.
const (
	flagLeaderElect       = "leader-elect"
	flagLeaseDuration     = "leader-elect-lease-duration"
	flagRenewDeadline     = "leader-elect-renew-deadline"
	flagRetryPeriod       = "leader-elect-retry-period"
	flagResourceName      = "leader-elect-resource-name"
	flagResourceNamespace = "leader-elect-resource-namespace"
)

// electionOptions are what the command line says about who leads.
type electionOptions struct {
	elect                                     bool
	leaseDuration, renewDeadline, retryPeriod time.Duration
	name, namespace                           string
}

func (o *electionOptions) addFlags(cmd *cobra.Command) {
	defaults, f := replica.DefaultOptions(), cmd.Flags()
	f.BoolVar(&o.elect, flagLeaderElect, true,
		"reconcile only while this replica holds the lease; with false there must be no other replica")
	f.DurationVar(&o.leaseDuration, flagLeaseDuration, defaults.LeaseDuration,
		"how long others wait for a leader that does not renew its lease, in whole seconds; more than the two below together by a tenth of it")
	f.DurationVar(&o.renewDeadline, flagRenewDeadline, defaults.RenewDeadline,
		"how long the leader tries to renew its lease before it stops leading")
	f.DurationVar(&o.retryPeriod, flagRetryPeriod, defaults.RetryPeriod,
		"the wait between tries to get or renew the lease")
	f.StringVar(&o.name, flagResourceName, "dynamic-controller", "the lease's `NAME`")
	f.StringVar(&o.namespace, flagResourceNamespace, "",
		"the lease's `NAMESPACE` (default: that of --namespace)")
}

// flagOf names the flag that sets a field of [replica.Options]. Longer words come first.
var flagOf = strings.NewReplacer(
	"Options.LeaseDuration", "--"+flagLeaseDuration, "LeaseDuration", "--"+flagLeaseDuration,
	"Options.RenewDeadline", "--"+flagRenewDeadline, "RenewDeadline", "--"+flagRenewDeadline,
	"Options.RetryPeriod", "--"+flagRetryPeriod, "RetryPeriod", "--"+flagRetryPeriod,
	"Options.LeaseNamespace", "--"+flagResourceNamespace,
	"Options.LeaseName", "--"+flagResourceName,
)

// replica returns a replica that does not run yet. It waits for its end a little longer than an engine does for its own,
// so that whichever reconcile holds it up is named.
func (o *electionOptions) replica(log logr.Logger, cfg *rest.Config, shutdownTimeout time.Duration) (*replica.Replica, error) {
	const grace = 5 * time.Second
	if err := o.positive(); err != nil {
		return nil, err
	}
	r, err := replica.New(cfg, replica.Options{
		LeaderElection:  &o.elect,
		LeaseName:       o.name,
		LeaseNamespace:  o.namespace,
		LeaseDuration:   o.leaseDuration,
		RenewDeadline:   o.renewDeadline,
		RetryPeriod:     o.retryPeriod,
		ShutdownTimeout: shutdownTimeout + grace,
		Log:             log,
	})
	if err != nil {
		return nil, errors.New(flagOf.Replace(err.Error()))
	}
	return r, nil
}

// positive refuses what would stand for a default to the replica, which somebody who says 0 has not meant.
func (o *electionOptions) positive() error {
	var errs []error
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{flagLeaseDuration, o.leaseDuration},
		{flagRenewDeadline, o.renewDeadline},
		{flagRetryPeriod, o.retryPeriod},
	} {
		if o.elect && d.value <= 0 {
			errs = append(errs, fmt.Errorf("--%s must be above zero, not %s", d.flag, d.value))
		}
	}
	return errors.Join(errs...)
}
