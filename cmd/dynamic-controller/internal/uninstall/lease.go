package uninstall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

// identity is the identity with which the command holds the Lease. It is followed by an underscore and a UID.
const identity = "dynamic-controller-uninstall"

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

// isReplica reports whether the Lease is held, but not by an uninstallation.
func (s leaseState) isReplica() bool {
	return s.holder != "" && !strings.HasPrefix(s.holder, identity+"_")
}

// findLease returns the Lease. It returns nil if neither the Lease nor Blueprints exist, because there is nothing to
// serve then. It returns an error if Blueprints are defined although there is no Lease, because a replica could use a
// different Lease.
func (u *uninstaller) findLease(ctx context.Context) (*coordinationv1.Lease, error) {
	lease, err := u.getLease(ctx)
	if err != nil {
		return nil, err
	}
	if lease != nil {
		if len(lease.OwnerReferences) > 0 || lease.Spec.Strategy != nil {
			return nil, fmt.Errorf("the Lease %s/%s belongs to another program: use the --namespace and the --leader-elect "+
				"flags with which the platform runs", u.LeaseNamespace, u.LeaseName)
		}
		return lease, nil
	}
	_, err = u.crds.Get(ctx, blueprint.GroupVersionResource.GroupResource().String(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the CustomResourceDefinition of Blueprints: %w", err)
	}
	return nil, fmt.Errorf("the Lease %s/%s does not exist: use the --namespace and the --leader-elect flags with which "+
		"the platform runs", u.LeaseNamespace, u.LeaseName)
}

// whileStopped calls work while no replica of the platform can lead. It holds the Lease until work has returned. The
// context of work is cancelled, and no more changes are sent, when the Lease is lost. A dry run only reads the Lease.
func (u *uninstaller) whileStopped(ctx context.Context, cfg *rest.Config, work func(context.Context) error) error {
	if u.LeaseName == "" {
		return work(ctx)
	}
	lease, err := u.findLease(ctx)
	if err != nil {
		return err
	}
	if lease == nil {
		return work(ctx)
	}
	if !u.Apply {
		if holder := stateOf(lease).holder; holder != "" {
			fmt.Fprintf(u.Out, "the platform may be running: %s holds the Lease %s/%s; with --yes, the command would first "+
				"wait until it has expired\n", holder, u.LeaseNamespace, u.LeaseName)
		}
		return work(ctx)
	}
	return u.hold(ctx, cfg, lease, work)
}

var errFinished = errors.New("the work has finished")

// hold acquires the Lease, calls work, and releases the Lease.
func (u *uninstaller) hold(
	ctx context.Context, cfg *rest.Config, lease *coordinationv1.Lease, work func(context.Context) error,
) error {
	r, err := replica.New(logr.Discard(), cfg, replica.Options{
		LeaseName: u.LeaseName, LeaseNamespace: u.LeaseNamespace, Identity: identity, OnLostLease: replica.ExitOnLoss,
		LeaseDuration: u.LeaseDuration, RenewDeadline: u.RenewDeadline, RetryPeriod: u.RetryPeriod,
	})
	if err == nil {
		err = u.connect(r.FencedConfig())
	}
	if err != nil {
		return err
	}
	running, end := context.WithCancelCause(ctx)
	defer end(nil)
	acquired := make(chan struct{})
	var workErr error
	err = r.Register("uninstallation", replica.RunFunc(func(ctx context.Context) error {
		close(acquired)
		workErr = work(ctx)
		end(errFinished)
		<-ctx.Done()
		return nil
	}), replica.ScopeLeader)
	if err != nil {
		return err
	}
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if err := u.waitAcquired(running, lease, acquired); err != nil {
			end(err)
		}
	})
	err = r.Run(running)
	cause := context.Cause(running)
	end(nil)
	waiting.Wait()
	switch {
	case errors.Is(err, replica.ErrLeaseLost):
		return fmt.Errorf("the uninstallation was stopped because it lost the Lease %s/%s: make sure that no replica is "+
			"running, and run the command again: %w", u.LeaseNamespace, u.LeaseName, err)
	case errors.Is(cause, errFinished):
		return errors.Join(workErr, err)
	}
	return cmp.Or(workErr, cause, err)
}

// waitAcquired waits until the Lease is acquired. It returns an error if a replica acquires or renews the Lease, or if
// the Lease has not been acquired although it must have expired.
func (u *uninstaller) waitAcquired(
	ctx context.Context, lease *coordinationv1.Lease, acquired <-chan struct{},
) error {
	const interval = 500 * time.Millisecond
	first := stateOf(lease)
	duration := max(time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0))*time.Second, u.LeaseDuration)
	if first.holder != "" {
		fmt.Fprintf(u.Out, "waiting for %s to find out whether %s renews the Lease %s/%s\n", duration, first.holder,
			u.LeaseNamespace, u.LeaseName)
	}
	limit := time.NewTimer(duration + u.RenewDeadline + 3*u.RetryPeriod)
	defer limit.Stop()
	poll := time.NewTicker(interval)
	defer poll.Stop()
	last := first
	for {
		select {
		case <-acquired:
			return nil
		case <-ctx.Done():
			return nil
		case <-limit.C:
			if last.holder == "" {
				return fmt.Errorf("the Lease %s/%s could not be acquired: check the permission to update it", u.LeaseNamespace,
					u.LeaseName)
			}
			return u.errRunning(last.holder)
		case <-poll.C:
		}
		current, err := u.getLease(ctx)
		if err != nil || current == nil {
			continue // the limit ends the attempts
		}
		if last = stateOf(current); last.isReplica() && !last.equal(first) {
			return u.errRunning(last.holder)
		}
	}
}

func (u *uninstaller) errRunning(holder string) error {
	return fmt.Errorf("%w: %s holds the Lease %s/%s; scale the Deployment to 0, wait until its Pods are gone, and run "+
		"the command again", ErrRunning, holder, u.LeaseNamespace, u.LeaseName)
}

// deleteLease deletes the Lease after it was released, unless a replica has acquired it since then.
func (u *uninstaller) deleteLease(ctx context.Context) error {
	if u.LeaseName == "" {
		return nil
	}
	lease, err := u.getLease(ctx)
	if err != nil || lease == nil {
		return err
	}
	if holder := stateOf(lease).holder; u.Apply && holder != "" {
		return u.errRunning(holder)
	}
	u.report("deleted", "delete", 1, "the Lease %s/%s", u.LeaseNamespace, u.LeaseName)
	if !u.Apply {
		return nil
	}
	err = u.leases.Delete(ctx, u.LeaseName, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: ptr.To(lease.UID), ResourceVersion: ptr.To(lease.ResourceVersion)},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the Lease %s/%s: %w", u.LeaseNamespace, u.LeaseName, err)
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
