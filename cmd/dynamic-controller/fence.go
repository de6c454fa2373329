package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/serverfence"
)

// newFence returns the config for all clients that write. They reject writes when this replica may have lost the Lease.
// With --leader-elect-fence-on-server, the API server also rejects writes that arrive too late, and a runnable checks
// whether it does. newFence then returns the metrics of this runnable.
func newFence(
	ctx context.Context, log logr.Logger, r *replica.Replica, cfg *rest.Config, o *options,
) (*rest.Config, []prometheus.Collector, error) {
	if !o.fenceOnServer {
		return r.FencedConfig(), nil, nil
	}
	fence := serverfence.Options{
		Name: o.replica.LeaseName, LeaseNamespace: o.replica.LeaseNamespace, LeaseName: o.replica.LeaseName,
	}
	var err error
	if fence.Username, err = signedUsername(ctx, cfg, fence); err != nil {
		return nil, nil, fmt.Errorf("--%s: %w", flagFenceOnServer, err)
	}
	p := &fenceProbe{
		log:       log.WithName("fence"),
		hasLeader: func() bool { return r.Status().Leader != "" },
		probe:     func(ctx context.Context) error { return serverfence.Probe(ctx, cfg, fence) },
	}
	return r.FenceOnServer(cfg, fence.Username), []prometheus.Collector{p.metric()},
		r.RegisterWithoutLeaderElection("fence-probe", replica.RunFunc(p.run))
}

// signedUsername returns the name of the user that cfg authenticates as. It returns an error if this user is not
// permitted to send writes that carry the fields of the fence.
func signedUsername(ctx context.Context, cfg *rest.Config, o serverfence.Options) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	user, err := review(ctx, cfg)
	if err != nil {
		return "", fmt.Errorf("find out the name of the platform's user: %w", err)
	}
	signed := rest.CopyConfig(cfg)
	signed.Impersonate = rest.ImpersonationConfig{UserName: user.Username, Extra: map[string][]string{
		serverfence.LeaseExtra: {o.LeaseNamespace + "/" + o.LeaseName}, serverfence.HolderExtra: {"none"},
	}}
	impersonated, err := review(ctx, signed)
	lost := slices.DeleteFunc(user.Groups, func(group string) bool { return slices.Contains(impersonated.Groups, group) })
	switch {
	case err == nil && len(lost) > 0:
		return "", fmt.Errorf("the user %s does not belong to the groups %q when it impersonates itself: "+
			"run the platform as a ServiceAccount, or as a user without groups", user.Username, lost)
	case err == nil:
		return user.Username, nil
	case identity.IsFenceForbidden(err):
		return "", fmt.Errorf("%w; %s", err, identity.FenceAdvice)
	case identity.IsImpersonationForbidden(err):
		return "", fmt.Errorf("%w; the operator must grant the platform the verb impersonate on its own user, and only on "+
			"this one", err)
	default:
		return "", fmt.Errorf("send a request with the fields of the fence: %w", err)
	}
}

// review returns the user of a request.
func review(ctx context.Context, cfg *rest.Config) (authenticationv1.UserInfo, error) {
	client, err := authenticationclient.NewForConfig(cfg)
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	answer, err := client.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	return answer.Status.UserInfo, nil
}

const (
	// The interval of the probes is minFenceProbes after a result that was logged. It doubles after each other one.
	minFenceProbes = 5 * time.Second
	maxFenceProbes = time.Minute
	// fenceProbeTimeout is the maximum duration of a probe. A probe that waits for the holder takes two seconds.
	fenceProbeTimeout = 10 * time.Second
)

// fenceProbe checks repeatedly whether the API server enforces the policy of the fence. It logs changes.
type fenceProbe struct {
	log       logr.Logger
	hasLeader func() bool
	probe     func(context.Context) error

	logged   string // the last logged message; used only by run
	enforced atomic.Bool
}

func (p *fenceProbe) run(ctx context.Context) error {
	interval, outdated := minFenceProbes, false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
		if !p.hasLeader() {
			continue // the API server admits all writes until the Lease exists
		}
		attempt, cancel := context.WithTimeout(ctx, fenceProbeTimeout)
		err := p.probe(attempt)
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		before := outdated
		outdated = errors.Is(err, serverfence.ErrOutdated)
		switch {
		case outdated && !before:
			interval = minFenceProbes // a busy API server can be behind once
		case p.report(err):
			interval = minFenceProbes
		default:
			interval = min(2*interval, maxFenceProbes)
		}
	}
}

// report records the result of a probe, and logs it if it differs from the last one. It returns whether it does.
func (p *fenceProbe) report(err error) (logged bool) {
	p.enforced.Store(err == nil)
	message, keys, mustAct := "Fence on the server enforced", []any(nil), false
	switch {
	case err == nil:
	case errors.Is(err, serverfence.ErrNotEnforced):
		message = "Fence on the server not enforced, late writes are admitted"
		keys = []any{"problem", "the policy or its binding is missing, or the action of the binding is Audit"}
	case errors.Is(err, serverfence.ErrOutdated):
		message, mustAct = "Fence on the server outdated, restart the API servers", true
	case identity.IsPermissionMissing(err):
		message, mustAct = "Fence on the server not checked because of a missing permission", true
	default:
		message, keys = "Fence on the server not checked, will retry", []any{"problem", err.Error()}
	}
	switch {
	case message == p.logged:
		return false
	case mustAct:
		p.log.Error(err, message)
	default:
		p.log.Info(message, keys...)
	}
	p.logged = message
	return true
}

// metric returns a metric with the result of the last probe.
func (p *fenceProbe) metric() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "dynamiccontroller_server_fence_enforced",
		Help: "The value is 1 if the API server rejected a write with another holder than that of the Lease, and admitted " +
			"one with the holder, when this was last checked. It is 0 otherwise.",
	}, func() float64 {
		if p.enforced.Load() {
			return 1
		}
		return 0
	})
}
