package replica

import (
	"context"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
)

// memberLease publishes the state of this replica in a Lease of its own. The Lease only informs the planner.
type memberLease struct {
	options Options
	client  coordinationclient.LeaseInterface
	state   chan fleet.State // has a buffer of one; contains the latest state that has not been published
	errs    leaseErrors

	last *coordinationv1.Lease // as of the last response, nil if it is unknown

	renewed atomic.Pointer[time.Time] // when the last request that has succeeded was sent
}

// publish makes run publish the state. It does not block, and is called by one goroutine.
func (m *memberLease) publish(s fleet.State) {
	select {
	case <-m.state:
	default:
	}
	m.state <- s
}

// run publishes each new state, and renews the Lease at RetryPeriod, until ctx is cancelled. Then it deletes the Lease.
func (m *memberLease) run(ctx context.Context) {
	var current fleet.State
	select {
	case current = <-m.state:
	case <-ctx.Done():
		return
	}
	for {
		m.put(ctx, current)
		timer := time.NewTimer(m.options.RetryPeriod)
		select {
		case current = <-m.state:
			timer.Stop()
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			m.remove(ctx)
			return
		}
	}
}

// put creates or updates the Lease. Failures are logged by leaseErrors, and retried with the next renewal.
func (m *memberLease) put(ctx context.Context, s fleet.State) {
	requestCtx, cancel := context.WithTimeout(ctx, requestTimeout(m.options))
	defer cancel()
	verb, lease := verbCreate, m.lease(s)
	send := func() (*coordinationv1.Lease, error) {
		return m.client.Create(requestCtx, lease, metav1.CreateOptions{})
	}
	if m.last != nil {
		lease.ResourceVersion, verb = m.last.ResourceVersion, verbUpdate
		send = func() (*coordinationv1.Lease, error) {
			return m.client.Update(requestCtx, lease, metav1.UpdateOptions{})
		}
	}
	var err error
	sent := time.Now()
	if m.last, err = send(); err == nil {
		m.renewed.Store(&sent)
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) { // somebody else has changed it
		m.last, err = m.client.Get(requestCtx, lease.Name, metav1.GetOptions{})
	}
	if err != nil {
		m.last = nil
	}
	if ctx.Err() == nil {
		_ = m.errs.record(m.options.log, verb, err)
	}
}

// renewedAt returns the time of the last renewal that has succeeded, or zero.
func (m *memberLease) renewedAt() time.Time { return ptr.Deref(m.renewed.Load(), time.Time{}) }

func (m *memberLease) lease(s fleet.State) *coordinationv1.Lease {
	now := metav1.NowMicro()
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name:        fleet.MemberLease(m.options.LeaseName, m.options.Identity),
			Namespace:   m.options.LeaseNamespace,
			Labels:      fleetLabels(m.options),
			Annotations: map[string]string{fleet.StateAnnotation: s.Encode()},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       &m.options.Identity,
			LeaseDurationSeconds: ptr.To(int32(m.options.LeaseDuration / time.Second)), //nolint:gosec // validated
			RenewTime:            &now,
		},
	}
}

// remove deletes the Lease, so that the planner notices at once that this replica is gone.
func (m *memberLease) remove(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), minStepTimeout)
	defer cancel()
	name := fleet.MemberLease(m.options.LeaseName, m.options.Identity)
	if err := m.client.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		m.options.log.V(1).Info("Lease of this replica not deleted", keyLease, name, keyError, err.Error())
	}
}
