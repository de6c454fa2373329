package uninstall

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// leaseState identifies a holder of the Lease and its last renewal.
type leaseState struct {
	holder  string
	renewed metav1.MicroTime
}

func stateOf(lease *coordinationv1.Lease) leaseState {
	return leaseState{
		holder:  ptr.Deref(lease.Spec.HolderIdentity, ""),
		renewed: ptr.Deref(lease.Spec.RenewTime, metav1.MicroTime{}),
	}
}

func (s leaseState) equal(other leaseState) bool {
	return s.holder == other.holder && s.renewed.Time.Equal(other.renewed.Time)
}

// clockSkew is the assumed maximum difference between the clocks of this machine and of the replicas.
const clockSkew = time.Minute

// checkStopped returns an error if a replica holds the Lease. If the Lease was not released, it waits until the Lease
// has not been renewed for its duration, because the clocks can differ. A dry run does not wait.
func (u *uninstaller) checkStopped(ctx context.Context) error {
	if u.LeaseName == "" {
		return nil
	}
	lease, err := u.getLease(ctx)
	if err != nil {
		return err
	}
	if lease == nil {
		return u.checkNoLease(ctx)
	}
	u.lease = stateOf(lease)
	duration := time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second
	switch {
	case u.lease.holder == "" || time.Since(u.lease.renewed.Time) > duration+clockSkew:
		return nil
	case !u.Apply:
		fmt.Fprintf(u.Out, "the platform may be running: %s holds the Lease %s/%s; with --yes, the command would first wait "+
			"for %s to find out\n", u.lease.holder, u.LeaseNamespace, u.LeaseName, duration)
		return nil
	}
	fmt.Fprintf(u.Out, "waiting for %s to find out whether %s renews the Lease %s/%s\n", duration, u.lease.holder,
		u.LeaseNamespace, u.LeaseName)
	const interval = 500 * time.Millisecond
	err = wait.PollUntilContextTimeout(ctx, interval, duration, false, func(context.Context) (bool, error) {
		return false, u.checkStillStopped(ctx)
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		return nil // the Lease has expired
	}
	return err
}

// checkNoLease returns an error if Blueprints are defined although there is no Lease, because a replica could use a
// different one.
func (u *uninstaller) checkNoLease(ctx context.Context) error {
	_, err := u.crds.Get(ctx, blueprint.GroupVersionResource.GroupResource().String(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the CustomResourceDefinition of Blueprints: %w", err)
	}
	return fmt.Errorf("the Lease %s/%s does not exist: use the --namespace and the --leader-elect flags with which the "+
		"platform runs", u.LeaseNamespace, u.LeaseName)
}

// checkStillStopped returns an error if a replica has acquired or renewed the Lease since checkStopped was called.
func (u *uninstaller) checkStillStopped(ctx context.Context) error {
	if u.LeaseName == "" || !u.Apply {
		return nil
	}
	lease, err := u.getLease(ctx)
	if err != nil || lease == nil {
		return err
	}
	if now := stateOf(lease); now.holder != "" && !now.equal(u.lease) {
		return fmt.Errorf("%w: %s holds the Lease %s/%s; scale the Deployment to 0, wait until its Pods are gone, and run "+
			"the command again", ErrRunning, now.holder, u.LeaseNamespace, u.LeaseName)
	}
	return nil
}

// getLease returns the Lease, or nil if it does not exist.
func (u *uninstaller) getLease(ctx context.Context) (*coordinationv1.Lease, error) {
	lease, err := u.leases.Get(ctx, u.LeaseName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the Lease %s/%s: %w", u.LeaseNamespace, u.LeaseName, err)
	}
	return lease, nil
}
