package fleet

import (
	"context"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/leasename"
)

// Membership publishes the state of a member in a Lease of its own. The Lease only informs the planner.
type Membership struct {
	config Config
	report func(verb string, err error)
	state  chan State // has a buffer of one; contains the latest state that must be published at once

	published string // the state that was passed to run last, without loads; used only by Publish
	loads     atomic.Pointer[[][3]int]
	last      *coordinationv1.Lease // as of the last response, nil if it is unknown

	renewed atomic.Pointer[time.Time] // when the last request that has succeeded was sent
}

// NewMembership returns the membership of a member. The function report is called with the outcome of each request.
func NewMembership(config Config, report func(verb string, err error)) *Membership {
	return &Membership{config: config, report: report, state: make(chan State, 1)}
}

// Publish makes Run publish the state if it has changed. Changed loads are published with the next renewal, so that
// they do not cause requests. It does not block, and is called by one goroutine.
func (m *Membership) Publish(s State) {
	loads := s.Loads
	m.loads.Store(&loads)
	s.Loads = nil // Run adds them
	text := s.Encode()
	if text == m.published {
		return
	}
	m.published = text
	select {
	case <-m.state:
	default:
	}
	m.state <- s
}

// RenewedAt returns the time of the last renewal that has succeeded, or zero.
func (m *Membership) RenewedAt() time.Time { return ptr.Deref(m.renewed.Load(), time.Time{}) }

// Run publishes each new state, and renews the Lease at RetryPeriod, until ctx is cancelled. Then it deletes the Lease.
func (m *Membership) Run(ctx context.Context) {
	var current State
	select {
	case current = <-m.state:
	case <-ctx.Done():
		return
	}
	for {
		current.Loads = *m.loads.Load()
		m.put(ctx, current)
		timer := time.NewTimer(m.config.RetryPeriod)
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

// put creates or updates the Lease. Failures are retried with the next renewal.
func (m *Membership) put(ctx context.Context, s State) {
	requestCtx, cancel := context.WithTimeout(ctx, m.config.RequestTimeout)
	defer cancel()
	verb, lease := "create", m.lease(s)
	send := func() (*coordinationv1.Lease, error) {
		return m.config.Client.Create(requestCtx, lease, metav1.CreateOptions{})
	}
	if m.last != nil {
		lease.ResourceVersion, verb = m.last.ResourceVersion, "update"
		send = func() (*coordinationv1.Lease, error) {
			return m.config.Client.Update(requestCtx, lease, metav1.UpdateOptions{})
		}
	}
	var err error
	sent := time.Now()
	if m.last, err = send(); err == nil {
		m.renewed.Store(&sent)
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) { // somebody else has changed it
		m.last, err = m.config.Client.Get(requestCtx, lease.Name, metav1.GetOptions{})
	}
	if err != nil {
		m.last = nil
	}
	if ctx.Err() == nil {
		m.report(verb, err)
	}
}

func (m *Membership) lease(s State) *coordinationv1.Lease {
	now := metav1.NowMicro()
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name:        leasename.Member(m.config.Name, m.config.Identity),
			Namespace:   m.config.Namespace,
			Labels:      m.config.leaseLabels(),
			Annotations: map[string]string{StateAnnotation: s.Encode()},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       &m.config.Identity,
			LeaseDurationSeconds: ptr.To(int32(m.config.LeaseDuration / time.Second)), //nolint:gosec // validated
			RenewTime:            &now,
		},
	}
}

// removeTimeout limits the deletion of the Lease of a member that leaves.
const removeTimeout = time.Second

// remove deletes the Lease, so that the planner notices at once that the member is gone.
func (m *Membership) remove(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	name := leasename.Member(m.config.Name, m.config.Identity)
	if err := m.config.Client.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		m.config.Log.V(1).Info("Lease of this replica not deleted", keyName, name, keyError, err.Error())
	}
}
