package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// The flags of client-side throttling, named as in Kubernetes components.
const (
	flagQPS   = "kube-api-qps"
	flagBurst = "kube-api-burst"
)

// throttleOptions limit the requests to the API server.
type throttleOptions struct {
	qps   float32
	burst int
}

func (o *throttleOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Float32Var(&o.qps, flagQPS, 0,
		"maximum number of requests per second to the API server, except watches and requests for the lease; 0 for no limit: "+
			"the number of workers bounds the requests, and the API server has its own priority and fairness")
	f.IntVar(&o.burst, flagBurst, 0, "maximum burst of requests, with --"+flagQPS+" (default: twice its value)")
}

// apply makes all clients of the config and of its copies share one limit. A client for the lease must not have it, or a
// busy leader would lose its lease: package replica clears it.
func (o *throttleOptions) apply(cfg *rest.Config) error {
	switch {
	case o.qps < 0:
		return fmt.Errorf("--%s must not be negative, got %v", flagQPS, o.qps)
	case o.burst < 0:
		return fmt.Errorf("--%s must not be negative, got %d", flagBurst, o.burst)
	case o.qps == 0 && o.burst > 0:
		return errors.New("--" + flagBurst + " has no effect without --" + flagQPS)
	case o.qps == 0:
		cfg.QPS = -1
		return nil
	}
	burst := o.burst
	if burst == 0 {
		burst = max(1, int(2*o.qps))
	}
	cfg.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(o.qps, burst)
	return nil
}
