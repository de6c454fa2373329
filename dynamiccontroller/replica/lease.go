package replica

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/connrotation"
)

// newLease returns the Lease as client-go knows it, through a client of its own: nothing throttles it, its requests time
// out by themselves, and it has connections that nobody else uses, which cut closes.
func newLease(cfg *rest.Config, o Options) (_ resourcelock.Interface, cut func(), err error) {
	own := rest.AddUserAgent(rest.CopyConfig(cfg), "leader-election")
	own.QPS, own.RateLimiter = -1, nil
	own.Timeout = requestTimeout(o)
	cut = func() {}
	if own.Transport == nil { // with a transport of the caller's, its connections are the caller's
		dial := own.Dial
		if dial == nil {
			dial = (&net.Dialer{Timeout: own.Timeout, KeepAlive: own.Timeout}).DialContext
		}
		dialer := connrotation.NewDialer(dial)
		own.Dial, cut = dialer.DialContext, dialer.CloseAll
		own.Wrap(func(next http.RoundTripper) http.RoundTripper { return afterACut{next} })
	}
	client, err := coordinationv1.NewForConfig(own)
	if err != nil {
		return nil, nil, fmt.Errorf("make a client for the lease: %w", err)
	}
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: o.LeaseNamespace, Name: o.LeaseName},
		Client:     client,
		LockConfig: resourcelock.ResourceLockConfig{Identity: o.Identity},
		Labels:     o.Labels,
	}, cut, nil
}

// afterACut sends a read again that got one of the connections that were just cut, as the transport takes a moment to notice.
// client-go would wait a second before it does, which may be all that the request has.
type afterACut struct{ next http.RoundTripper }

// WrappedRoundTripper lets client-go find what is wrapped.
func (a afterACut) WrappedRoundTripper() http.RoundTripper { return a.next }

func (a afterACut) RoundTrip(r *http.Request) (*http.Response, error) {
	for {
		answer, err := a.next.RoundTrip(r)
		if r.Method != http.MethodGet || !errors.Is(err, net.ErrClosed) {
			return answer, err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-r.Context().Done():
			return answer, err
		}
	}
}

// requestTimeout lets a renewal that hangs be tried once more, as client-go's own does. Below a second a busy API server
// would be given up too early.
func requestTimeout(o Options) time.Duration {
	return max(o.RenewDeadline/2, min(time.Second, o.RenewDeadline))
}
