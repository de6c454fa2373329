package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/platform"
)

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "dynamic-controller",
		Short:         "Serves the types that its users define while it runs",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(runCommand())
	return root
}

func runCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Serve Blueprints until told to end",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o) },
	}
	o.addFlags(cmd)
	return cmd
}

// run returns nil when ctx has ended and nothing was left undone.
func run(ctx context.Context, o options) error {
	log, err := o.log.logger(os.Stderr)
	if err != nil {
		return err
	}
	klog.SetLogger(log.WithName("client-go"))
	if err := o.platform.limitBlueprints(limitMemory(log)); err != nil {
		return err
	}
	cfg, err := o.restConfig()
	if err != nil {
		return err
	}
	cfg.WarningHandlerWithContext = warnings{}
	o.platform.complete()
	if o.election.namespace == "" {
		o.election.namespace = o.platform.Namespace
	}
	r, err := o.election.replica(log, cfg, o.engine.ShutdownTimeout)
	if err != nil {
		return err
	}
	e, err := newEngines(log, o.engine, cfg)
	if err != nil {
		return err
	}
	// What the leader writes is refused once it may have lost the lease.
	p, err := platform.New(log, platform.Engines{Definitions: e.definitions, Instances: e.instances}, e.mapper, cfg, r.FencedConfig(), o.platform.Options)
	if err != nil {
		return err
	}
	if err := reach(ctx, log, cfg, reachTimeout); err != nil {
		if ctx.Err() != nil {
			return nil // told to end before it began
		}
		return err
	}
	if err := p.Serve(ctx); err != nil {
		return err
	}
	if err := e.register(r, p); err != nil {
		return err
	}
	end, err := o.endpoints.serve(log, r, e.metrics)
	if err != nil {
		return err
	}
	defer end()
	context.AfterFunc(ctx, func() { log.Info("ending", "cause", context.Cause(ctx).Error()) })
	if err := r.Run(ctx); err != nil {
		return err
	}
	log.Info("ended")
	return nil
}

// reachTimeout is how long the cluster has for its first answer.
const reachTimeout = 10 * time.Second

// reach makes sure that there is a cluster and that it knows who asks. Later the engine rides out what happens to it,
// but at the start a wrong address or an old token is the likeliest reason.
func reach(ctx context.Context, log logr.Logger, cfg *rest.Config, timeout time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %s", timeout))
	defer cancel()
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return fmt.Errorf("make a discovery client: %w", err)
	}
	version, err := client.ServerVersionWithContext(ctx)
	var request *url.Error
	switch {
	case err == nil:
		log.Info("connected", "server", cfg.Host, "version", version.GitVersion)
		return nil
	case apierrors.IsForbidden(err):
		// It answers, and what it answers to may be enough.
		log.Info("connected", "server", cfg.Host)
		return nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.As(err, &request):
		err = request.Err // which is said without the URL, as that is said here
	}
	return fmt.Errorf("cannot use the cluster at %s: %w", cfg.Host, err)
}
