package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/platform"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

// run serves Blueprints until ctx is cancelled. It returns nil if all work was completed.
func run(ctx context.Context, o *options) error {
	log := newLogger(os.Stderr, o.logFormat, o.verbosity)
	klog.SetLogger(log.WithName("client-go"))
	o.limitBlueprints(setMemoryLimit(log))
	cfg, err := o.restConfig()
	if err != nil {
		return err
	}
	cfg.WarningHandlerWithContext = warningLogger{}
	o.replica.Log = log
	r, err := replica.New(cfg, o.replica)
	if err != nil {
		return err
	}
	e, err := newEngines(log, o.engine, cfg)
	if err != nil {
		return err
	}
	// Clients with the fenced config reject writes when this replica may have lost the Lease.
	p, err := platform.New(log, platform.Engines{Definitions: e.definitions, Instances: e.instances}, e.mapper,
		cfg, r.FencedConfig(), o.platform)
	if err != nil {
		return err
	}
	if err := checkConnection(ctx, log, cfg, connectTimeout); err != nil {
		if ctx.Err() != nil {
			return nil // shut down before it was connected
		}
		return err
	}
	if err := p.Serve(ctx); err != nil {
		return err
	}
	if err := e.register(r, p); err != nil {
		return err
	}
	if err := registerEndpoint(log, r, flagHealth, o.healthAddress, healthHandler(r)); err != nil {
		return err
	}
	if err := registerEndpoint(log, r, flagMetrics, o.metricsAddress, metricsHandler(e.metrics...)); err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { log.Info("Shutting down", "cause", context.Cause(ctx).Error()) })
	if err := r.Run(ctx); err != nil {
		return err
	}
	log.Info("Shutdown complete")
	return nil
}

// connectTimeout is the maximum time to wait for the first response from the API server.
const connectTimeout = 10 * time.Second

// checkConnection returns an error if the API server cannot be reached or rejects the credentials. Later failures are
// retried, but at startup the most likely reason is a wrong address or an expired token.
func checkConnection(ctx context.Context, log logr.Logger, cfg *rest.Config, timeout time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no response within %s", timeout))
	defer cancel()
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return fmt.Errorf("create a discovery client: %w", err)
	}
	version, err := client.ServerVersionWithContext(ctx)
	var request *url.Error
	switch {
	case err == nil:
		log.Info("Connected to the API server", "server", cfg.Host, "version", version.GitVersion)
		return nil
	case apierrors.IsForbidden(err): // reading the version is not required
		log.Info("Connected to the API server", "server", cfg.Host)
		return nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.As(err, &request):
		err = request.Err // without the URL, which is part of the error below
	}
	return fmt.Errorf("connect to the cluster at %s: %w", cfg.Host, err)
}

// setMemoryLimit sets the memory limit of the Go runtime to 90% of the memory limit of the container, unless
// $GOMEMLIMIT is set. The rest is left for memory that the runtime does not count, and for allocations until the
// garbage collector catches up. It returns the limit in bytes, or 0 without a limit.
func setMemoryLimit(log logr.Logger) int64 {
	limit, err := memlimit.Set(memlimit.WithRatio(0.9))
	if err != nil {
		log.Info("Memory limit of the container not found, set GOMEMLIMIT if there is one", "problem", err.Error())
	}
	if limit == math.MaxInt64 {
		return 0
	}
	log.Info("Memory limit set", "GOMEMLIMIT", limit)
	return limit
}
