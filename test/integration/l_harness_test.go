package integration

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

const (
	leaseName   = "the-lease"
	retryPeriod = 500 * time.Millisecond
)

func replicaOptions(h *harness, name string) replica.Options {
	return replica.Options{
		LeaseName: leaseName, LeaseNamespace: h.namespace, Identity: name, Labels: map[string]string{"app": "test"}, Log: h.logger().WithName(name),
		LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: retryPeriod,
	}
}

// onlyLeases returns a harness whose user may do with leases what the docs of package replica say, and nothing else.
func (h *harness) onlyLeases() *harness {
	h.Helper()
	const user = "a-replica"
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, Verbs: []string{"create"},
	}, {
		APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, Verbs: []string{"get", "update"}, ResourceNames: []string{leaseName},
	}}}
	_, err := h.clients.RbacV1().Roles(h.namespace).Create(h.Context(), role, metav1.CreateOptions{})
	h.noError(err)
	_, err = h.clients.RbacV1().RoleBindings(h.namespace).Create(h.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	h.noError(err)
	other := *h
	other.config = rest.CopyConfig(h.config)
	other.config.Impersonate = rest.ImpersonationConfig{UserName: user}
	return &other
}

// member is a replica with something in each half that counts its lives.
type member struct {
	*replica.Replica
	h           *harness
	leads       life
	everywhere  life
	stop        func() error
	lingerUntil chan struct{} // if not nil, the leading half returns only when this is closed
}

// life counts how often a runnable was started, and keeps the cause of the last end.
type life struct {
	mu      sync.Mutex
	starts  int
	running bool
	cause   error
	endedAt time.Time // when its context ended
}

func (l *life) run(ctx context.Context, linger <-chan struct{}) error {
	l.mu.Lock()
	l.starts++
	l.running = true
	l.mu.Unlock()
	<-ctx.Done()
	l.mu.Lock()
	l.cause, l.endedAt = context.Cause(ctx), time.Now()
	l.mu.Unlock()
	if linger != nil {
		<-linger
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = false
	return nil
}

func (l *life) get() (starts int, running bool, endedAt time.Time, cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.starts, l.running, l.endedAt, l.cause
}

func (h *harness) member(name string, change ...func(*replica.Options)) *member {
	h.Helper()
	o := replicaOptions(h, name)
	for _, c := range change {
		c(&o)
	}
	m := &member{h: h, Replica: must(replica.New(h.config, o))}
	h.noError(m.Register("leads", replica.RunFunc(func(ctx context.Context) error { return m.leads.run(ctx, m.lingerUntil) })))
	h.noError(m.RegisterWithoutLeaderElection("everywhere", replica.RunFunc(func(ctx context.Context) error { return m.everywhere.run(ctx, nil) })))
	return m
}

func (m *member) start() *member {
	m.stop = m.h.start(m.Run)
	return m
}

// waitForLife waits until the leading half has been started n times.
func (m *member) waitForLife(n int) {
	m.h.Helper()
	m.h.eventually("it leads", func() error {
		if starts, running, _, _ := m.leads.get(); starts < n || !running {
			return errors.New("it does not")
		}
		return nil
	})
}

// waitForLoss waits until the context of the leading half has ended, and says when and why.
func (m *member) waitForLoss() (at time.Time, cause error) {
	m.h.Helper()
	m.h.eventually("the term ends", func() error {
		if _, _, at, cause = m.leads.get(); cause == nil {
			return errors.New("it does not")
		}
		return nil
	})
	return at, cause
}

func (h *harness) lease() *coordinationv1.Lease {
	h.Helper()
	lease, err := h.clients.CoordinationV1().Leases(h.namespace).Get(h.Context(), leaseName, metav1.GetOptions{})
	h.noError(err)
	return lease
}

// editLease does as one who does not give up on a conflict.
func (h *harness) editLease(change func(*coordinationv1.Lease)) {
	h.Helper()
	h.eventually("edit the lease", func() error {
		lease := h.lease()
		change(lease)
		_, err := h.clients.CoordinationV1().Leases(h.namespace).Update(h.Context(), lease, metav1.UpdateOptions{})
		if err != nil && !apierrors.IsConflict(err) {
			h.Fatal(err)
		}
		return err
	})
}

// freezer dials connections that can be frozen: what is written to them goes nowhere, as if a router had died.
type freezer struct {
	mu     sync.Mutex
	conns  []*frozenConn
	dialed int
}

type frozenConn struct {
	net.Conn
	frozen atomic.Bool
	closed chan struct{}
	once   sync.Once
}

func (f *freezer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &frozenConn{Conn: conn, closed: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dialed++
	f.conns = append(f.conns, c)
	return c, nil
}

// freeze freezes all connections that there are, and says how many were ever made.
func (f *freezer) freeze() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		c.frozen.Store(true)
	}
	return f.dialed
}

func (c *frozenConn) Write(p []byte) (int, error) {
	if c.frozen.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *frozenConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.frozen.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *frozenConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
