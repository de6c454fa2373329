package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"runtime/debug"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"
	eventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/events"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/platform"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/tracing"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

// run serves Blueprints until ctx is cancelled. It returns nil after a clean shutdown.
func run(ctx context.Context, o *options) error {
	log, err := newLogger(os.Stderr, o.loggingConfiguration())
	if err != nil {
		return err
	}
	info := ownBuildInfo()
	log.Info("Starting", "version", info.Version, "commit", info.Commit, "kubernetes", info.Kubernetes,
		"go", info.GoVersion)
	setGCPercent()
	o.divideMemory(setMemoryLimit(log))
	cfg, err := o.restConfig()
	if err != nil {
		return err
	}
	clients := newClientMetrics()
	cfg.WarningHandlerWithContext = warningLogger{}
	tracer, err := tracing.New(ctx, log.WithName("tracing"), o.tracing, component, info.Version)
	if err != nil {
		return err
	}
	defer tracer.Shutdown(log)
	tracer.Wrap(cfg)
	r, err := replica.New(log, cfg, o.replica)
	if err != nil {
		return err
	}
	kubernetes, err := checkConnection(ctx, log, cfg, connectTimeout)
	if err != nil {
		if ctx.Err() != nil {
			return nil // cancelled before the connection was checked
		}
		return err
	}
	if err := kubernetes.check(log, o.allowUnsupportedKubernetes); err != nil {
		return err
	}
	fenced, fenceMetrics, err := newFence(ctx, log, r, cfg, o)
	if err != nil {
		if ctx.Err() != nil {
			return nil // cancelled before the permissions were checked
		}
		return err
	}
	recorder, err := newRecorder(log, fenced)
	if err != nil {
		return err
	}
	e, err := newEngines(tracing.NewLogger(log), o.engine, cfg, recorder, o.metricsOptions()...)
	if err != nil {
		return err
	}
	p, err := platform.New(log, e.observed(tracer, func() int64 { return r.Status().Term }), e.mapper, cfg, fenced,
		o.platform, recorder.Record)
	if err != nil {
		return err
	}
	if err := p.Serve(ctx); err != nil {
		return err
	}
	if err := e.register(r, p); err != nil {
		return err
	}
	webhookChecks, webhookMetrics, err := registerWebhook(log, r, cfg, fenced, o, p.Review)
	if err != nil {
		return err
	}
	checks := newHealthChecks(ctx, log, r.Alive, e, webhookChecks...)
	if err := registerEndpoint(log, r, flagHealth, o.healthAddress, checks.handler()); err != nil {
		return err
	}
	registry := newRegistry(e, r, p.Controller, clients, o.features, kubernetes)
	registry.MustRegister(newLeaseMetric(r, o.replica.LeaseName))
	registry.MustRegister(append(webhookMetrics, fenceMetrics...)...)
	metrics := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	pages := newPages(log, e, newStatusSources(e, r.Status, p.Summaries, info))
	if err := registerDiagnostics(log, r, cfg, o, metrics, pages); err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { log.Info("Shutting down", "cause", context.Cause(ctx).Error()) })
	if err := r.Run(ctx); err != nil {
		return err
	}
	log.Info("Shutdown complete")
	return nil
}

func newRecorder(log logr.Logger, fenced *rest.Config) (*events.Recorder, error) {
	client, err := eventsv1.NewForConfig(fenced)
	if err != nil {
		return nil, fmt.Errorf("create a client for events: %w", err)
	}
	return events.New(log, client), nil
}

// connectTimeout is the maximum time to wait for the first response from the API server.
const connectTimeout = 10 * time.Second

// checkConnection returns the version of the API server. It returns an error if the API server cannot be reached or
// rejects the credentials. Later failures are retried, but at startup the most likely causes are a wrong address and
// expired credentials.
func checkConnection(
	ctx context.Context, log logr.Logger, cfg *rest.Config, timeout time.Duration,
) (serverVersion, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no response within %s", timeout))
	defer cancel()
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return serverVersion{}, fmt.Errorf("create a discovery client: %w", err)
	}
	info, err := client.ServerVersionWithContext(ctx)
	var request *url.Error
	switch {
	case err == nil, apierrors.IsForbidden(err): // reading the version is not required
		version := newServerVersion(info)
		log.Info("Connected to the API server", "server", cfg.Host, "version", version.text)
		return version, nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.As(err, &request):
		err = request.Err // omit the URL; the error below contains it
	}
	return serverVersion{}, fmt.Errorf("connect to the cluster at %s: %w", cfg.Host, err)
}

// setGCPercent makes the garbage collector run whenever the heap has grown by half of its live size, unless $GOGC is
// set. In the platform benchmark, this takes 13% less memory than Go's default of 100, and 5% more CPU time.
func setGCPercent() {
	const percent = 50
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// setMemoryLimit sets the memory limit of the Go runtime to 90% of the container's memory limit, unless $GOMEMLIMIT is
// set. It returns the limit of the runtime in bytes, or 0 if there is no limit. The remaining 10% is for memory that
// the runtime does not count and for allocations before the garbage collector catches up.
func setMemoryLimit(log logr.Logger) int64 {
	limit, err := memlimit.Set(memlimit.WithRatio(0.9))
	if err != nil {
		log.Info("Memory limit of the container not found; set GOMEMLIMIT if there is one", "problem", err.Error())
	}
	if limit == math.MaxInt64 {
		return 0
	}
	log.Info("Memory limit set", "GOMEMLIMIT", limit)
	return limit
}
