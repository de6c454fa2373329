package replica

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/connrotation"

	"github.com/dynamic-controller/engine/internal/writes"
)

// newLease returns client-go's lock for the Lease. The lock has its own client. When it releases the Lease, it notes
// the writes of the ledger in it, unless it is nil.
func newLease(cfg *rest.Config, o Options, ledger *writes.Ledger) (
	_ resourcelock.Interface, _ *connections, err error,
) {
	client, connections, err := newLeaseClient(cfg, o)
	if err != nil {
		return nil, nil, err
	}
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: o.LeaseNamespace, Name: o.LeaseName},
		Client:     noteIn(client, o, o.log, ledger),
		LockConfig: resourcelock.ResourceLockConfig{Identity: o.Identity},
		Labels:     fencedLabels(o, o.Labels),
	}, connections, nil
}

// newLeaseClient returns a client for Leases, whose requests have a timeout and are not rate limited. The client's
// connections are not shared with other clients.
//
// The client's timeout is also sent to the API server. If a request's connection is lost, this timeout limits the time
// in which the request can still take effect.
func newLeaseClient(cfg *rest.Config, o Options) (
	coordinationv1.LeasesGetter, *connections, error,
) {
	own := rest.AddUserAgent(rest.CopyConfig(cfg), "leader-election")
	own.QPS, own.RateLimiter = -1, nil
	own.Timeout = requestTimeout(o)
	connections := &connections{}
	if own.Transport == nil { // the connections of a caller's transport are not closed
		dial := own.Dial
		if dial == nil {
			dial = (&net.Dialer{Timeout: own.Timeout, KeepAlive: own.Timeout}).DialContext
		}
		dialer := connrotation.NewDialer(dial)
		own.Dial, connections.closeAll = dialer.DialContext, dialer.CloseAll
		own.Wrap(func(next http.RoundTripper) http.RoundTripper { return retryClosedConnection{next} })
		own.Wrap(func(next http.RoundTripper) http.RoundTripper { return &observedAnswers{next, connections} })
	}
	client, err := coordinationv1.NewForConfig(own)
	if err != nil {
		return nil, nil, fmt.Errorf("create a client for the lease: %w", err)
	}
	return client, connections, nil
}

// connections are those of a client for Leases. It is safe for concurrent use. A nil connections does nothing.
type connections struct {
	closeAll func() // nil if they belong to the caller

	mu       sync.Mutex // guards answered
	answered time.Time  // when the last response arrived
}

// close closes all connections.
func (c *connections) close() {
	if c != nil && c.closeAll != nil {
		c.closeAll()
	}
}

// closeHung closes the connections after a request has timed out that was sent at the given time. The transport needs
// 45 seconds to detect that an HTTP/2 connection hangs, and would use that connection for every retry until then. If
// another response has arrived since the request was sent, only this request hangs. The connections are then not
// closed, because this would interrupt the requests for the other Leases.
func (c *connections) closeHung(sent time.Time) {
	if c == nil {
		return
	}
	c.mu.Lock()
	works := c.answered.After(sent)
	c.mu.Unlock()
	if !works {
		c.close()
	}
}

// observedAnswers records when responses arrive.
type observedAnswers struct {
	next        http.RoundTripper
	connections *connections
}

// WrappedRoundTripper returns the wrapped transport, for client-go.
func (t *observedAnswers) WrappedRoundTripper() http.RoundTripper { return t.next }

func (t *observedAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(r)
	if err == nil {
		t.connections.mu.Lock()
		t.connections.answered = time.Now()
		t.connections.mu.Unlock()
	}
	return response, err
}

// retryClosedConnection retries a read that was sent on a connection that had just been closed. This can happen because
// the transport removes closed connections with a delay. client-go would wait for a second before it retries, which can
// exceed the request's timeout.
type retryClosedConnection struct{ next http.RoundTripper }

// WrappedRoundTripper returns the wrapped transport, for client-go.
func (t retryClosedConnection) WrappedRoundTripper() http.RoundTripper { return t.next }

func (t retryClosedConnection) RoundTrip(r *http.Request) (*http.Response, error) {
	for {
		response, err := t.next.RoundTrip(r)
		if r.Method != http.MethodGet || !errors.Is(err, net.ErrClosed) {
			return response, err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-r.Context().Done():
			return response, err
		}
	}
}

// requestTimeout returns the timeout of a request for the lease. A renewal that hangs can be retried once before
// RenewDeadline. The timeout is at least one second, because a busy API server can take that long.
func requestTimeout(o Options) time.Duration {
	return max(o.RenewDeadline/2, min(time.Second, o.RenewDeadline))
}
