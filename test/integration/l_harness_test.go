package integration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
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
		LeaseName: leaseName, LeaseNamespace: h.namespace, Identity: name, Labels: map[string]string{"app": "test"},
		LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: retryPeriod,
	}
}

// onlyLeases returns a harness whose user has only the permissions that package replica documents.
func (h *harness) onlyLeases() *harness {
	h.Helper()
	const user = "a-replica"
	groups, resources := []string{coordinationv1.GroupName}, []string{"leases"}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: []rbacv1.PolicyRule{
		{APIGroups: groups, Resources: resources, Verbs: []string{"create"}},
		{APIGroups: groups, Resources: resources, Verbs: []string{"get", "update"}, ResourceNames: []string{leaseName}},
	}}
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

// member is a replica with one leader-gated and one per-replica runnable.
type member struct {
	*replica.Replica
	h           *harness
	leaderGated runs
	perReplica  runs
	stop        func() error
	lingerUntil chan struct{} // if not nil, the leader-gated runnable returns only after this channel is closed
}

// runs records the runs of a runnable.
type runs struct {
	mu          sync.Mutex // guards the fields below
	starts      int
	running     bool
	cause       error     // the cause of the last cancellation
	cancelledAt time.Time // the time of the last cancellation
}

func (l *runs) run(ctx context.Context, linger <-chan struct{}) error {
	l.mu.Lock()
	l.starts++
	l.running = true
	l.mu.Unlock()
	<-ctx.Done()
	l.mu.Lock()
	l.cause, l.cancelledAt = context.Cause(ctx), time.Now()
	l.mu.Unlock()
	if linger != nil {
		<-linger
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = false
	return nil
}

func (l *runs) get() (starts int, running bool, cancelledAt time.Time, cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.starts, l.running, l.cancelledAt, l.cause
}

func (h *harness) member(name string, change ...func(*replica.Options)) *member {
	h.Helper()
	return h.loggedMember(h.logger().WithName(name), name, change...)
}

func (h *harness) loggedMember(log logr.Logger, name string, change ...func(*replica.Options)) *member {
	h.Helper()
	o := replicaOptions(h, name)
	for _, c := range change {
		c(&o)
	}
	m := &member{h: h, Replica: must(replica.New(log, h.config, o))}
	h.noError(m.Register("leader-gated", replica.RunFunc(func(ctx context.Context) error {
		return m.leaderGated.run(ctx, m.lingerUntil)
	}), replica.ScopeLeader))
	h.noError(m.RegisterWithoutLeaderElection("per-replica", replica.RunFunc(func(ctx context.Context) error {
		return m.perReplica.run(ctx, nil)
	})))
	return m
}

func (m *member) start() *member {
	m.stop = m.h.start(m.Run)
	return m
}

// waitForStart waits until the leader-gated runnable has been started n times and is running.
func (m *member) waitForStart(n int) {
	m.h.Helper()
	m.h.eventually("the replica leads", func() error {
		if starts, running, _, _ := m.leaderGated.get(); starts < n || !running {
			return fmt.Errorf("got %d starts, running: %t", starts, running)
		}
		return nil
	})
}

// waitForCancel waits until the context of the leader-gated runnable is cancelled. It returns the time and the cause of
// the cancellation.
func (m *member) waitForCancel() (at time.Time, cause error) {
	m.h.Helper()
	m.h.eventually("the term ends", func() error {
		if _, _, at, cause = m.leaderGated.get(); cause == nil {
			return errors.New("not cancelled")
		}
		return nil
	})
	return at, cause
}

// wantPerReplicaRunning fails the test unless the per-replica runnable was started once and is running.
func (m *member) wantPerReplicaRunning() {
	m.h.Helper()
	if starts, running, _, _ := m.perReplica.get(); starts != 1 || !running {
		m.h.Errorf("the per-replica runnable was started %d times (running: %t), want once and running", starts, running)
	}
}

func (h *harness) lease() *coordinationv1.Lease {
	h.Helper()
	lease, err := h.clients.CoordinationV1().Leases(h.namespace).Get(h.Context(), leaseName, metav1.GetOptions{})
	h.noError(err)
	return lease
}

// editLease changes the lease. It retries after a conflict.
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

// hangingDialer dials connections. Its hang method makes them behave as if a router had failed: the connections discard
// writes, and reads do not return until the connection is closed.
type hangingDialer struct {
	mu     sync.Mutex // guards the fields below
	conns  []*hangingConn
	dialed int
}

type hangingConn struct {
	net.Conn
	hangs  atomic.Bool
	closed chan struct{}
	once   sync.Once
}

func (d *hangingDialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &hangingConn{Conn: conn, closed: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dialed++
	d.conns = append(d.conns, c)
	return c, nil
}

// hang makes all open connections hang. It returns the number of connections that have been dialed so far.
func (d *hangingDialer) hang() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.conns {
		c.hangs.Store(true)
	}
	return d.dialed
}

// count returns the number of connections that have been dialed so far.
func (d *hangingDialer) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dialed
}

func (c *hangingConn) Write(p []byte) (int, error) {
	if c.hangs.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *hangingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.hangs.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *hangingConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
