package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// options are what the command line says.
type options struct {
	kubeconfig string
	context    string
	log        logOptions
	election   electionOptions
	platform   platformOptions
	endpoints  endpointOptions
	throttle   throttleOptions
	engine     dynamiccontroller.Config
}

// addFlags gives cmd a flag for each option.
func (o *options) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "",
		"the kubeconfig `FILE` (default: those of $KUBECONFIG, else ~/.kube/config, else what a Pod is given)")
	f.StringVar(&o.context, "context", "", "the kubeconfig's context `NAME` (default: its current one)")

	f.StringVar(&o.log.format, "log-format", formatJSON, "the log's `FORMAT`, json or console")
	f.IntVarP(&o.log.verbosity, "verbosity", "v", 0, "how much is logged: 0 for operators, 1 and above for developers")

	o.throttle.addFlags(cmd)
	o.platform.addFlags(cmd)
	o.election.addFlags(cmd)
	o.endpoints.addFlags(cmd)

	defaults, engine := dynamiccontroller.DefaultConfig(), &o.engine
	f.IntVar(&engine.Workers, "workers", defaults.Workers, "how many objects are reconciled at once, over all types")
	f.DurationVar(&engine.ResyncPeriod, "resync-period", defaults.ResyncPeriod,
		"about how often every object is reconciled though nothing happened to it, never if negative")
	// Whoever makes an instance has no way to bring back one that was left, and need not know that there is a queue.
	f.IntVar(&engine.QueueMaxRetries, "queue-max-retries", -1,
		"after how many failures in a row an object is left until something happens to it, never if negative (0: the library's default)")
	f.DurationVar(&engine.ShutdownTimeout, "shutdown-timeout", defaults.ShutdownTimeout,
		"how long the end waits for reconciles that run")
	f.DurationVar(&engine.MinRetryDelay, "min-retry-delay", defaults.MinRetryDelay,
		"the wait before the first retry; it doubles with each")
	f.DurationVar(&engine.MaxRetryDelay, "max-retry-delay", defaults.MaxRetryDelay, "the longest wait before a retry")
}

// restConfig tells how to connect. It finds the cluster as kubectl does.
func (o *options) restConfig() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	rules.WarnIfAllMissing = false // the error says so
	overrides := &clientcmd.ConfigOverrides{CurrentContext: o.context}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		searched := "~/.kube/config"
		if files := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); files != "" {
			searched = "KUBECONFIG=" + files
		}
		return nil, fmt.Errorf("no cluster to connect to: nothing in %s, and this is no Pod: give --kubeconfig or set KUBECONFIG", searched)
	}
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	return cfg, o.throttle.apply(cfg)
}

var errFormat = errors.New("--log-format must be json or console")
