package serverfence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// Errors of [Probe].
var (
	// ErrNotEnforced means that the API server admits a write that the policy should reject.
	ErrNotEnforced = errors.New("the API server does not enforce the policy")
	// ErrOutdated means that the API server rejects writes of the Lease's holder, because it has an earlier state of the
	// Lease. If this lasts, it has to be restarted: see "Removal" in the documentation of the package.
	ErrOutdated = errors.New("the API server compares writes with an earlier state of the Lease")
)

// An API server usually observes a change of the Lease within milliseconds.
const (
	probeInterval = 100 * time.Millisecond
	maxProbes     = 20 // two seconds
)

// Probe checks that the policy is enforced by the API server that answers. It sends dry runs that create a ConfigMap in
// the namespace of the Lease: one with a holder identity that never holds the Lease, which must be rejected, and one
// with that of the present holder, if there is one, which must be admitted within two seconds. It returns nil,
// [ErrNotEnforced], [ErrOutdated], or another error if the policy could not be checked. This is the case if the user
// has no permission to read the Lease, to create ConfigMaps there, or to impersonate itself. The policy must apply to
// ConfigMaps, and cfg must not be fenced.
//
// The policy admits all writes while the Lease does not exist. Its changes reach an API server with a delay. An API
// server that has stopped watching Leases is recognized only when the holder has changed since.
func Probe(ctx context.Context, cfg *rest.Config, o Options) error {
	if err := o.validate(); err != nil {
		return err
	}
	leases, err := coordinationv1client.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("serverfence: probe: %w", err)
	}
	denied, err := isDenied(ctx, cfg, o, "probe")
	if err != nil {
		return err
	}
	if !denied {
		return fmt.Errorf("serverfence: %w", ErrNotEnforced)
	}
	for range maxProbes {
		lease, err := leases.Leases(o.LeaseNamespace).Get(ctx, o.LeaseName, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("serverfence: the policy could not be checked: %w", err)
		}
		holder := ptr.Deref(lease.Spec.HolderIdentity, "")
		if holder == "" {
			return nil
		}
		if denied, err = isDenied(ctx, cfg, o, holder); err != nil || !denied {
			return err
		}
		select {
		case <-time.After(probeInterval):
		case <-ctx.Done():
			return fmt.Errorf("serverfence: the policy could not be checked: %w", context.Cause(ctx))
		}
	}
	return fmt.Errorf("serverfence: %w", ErrOutdated)
}

// isDenied reports whether the policy rejects a write with the holder identity.
func isDenied(ctx context.Context, cfg *rest.Config, o Options, holder string) (bool, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Impersonate = rest.ImpersonationConfig{
		UserName: o.Username, Groups: cfg.Impersonate.Groups,
		Extra: map[string][]string{LeaseExtra: {o.LeaseNamespace + "/" + o.LeaseName}, HolderExtra: {holder}},
	}
	client, err := corev1client.NewForConfig(cfg)
	if err != nil {
		return false, fmt.Errorf("serverfence: probe: %w", err)
	}
	_, err = client.ConfigMaps(o.LeaseNamespace).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{GenerateName: o.Name + "-probe-"},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case err == nil:
		return false, nil
	case strings.Contains(err.Error(), Denied):
		return true, nil
	default:
		return false, fmt.Errorf("serverfence: the policy could not be checked: %w", err)
	}
}
