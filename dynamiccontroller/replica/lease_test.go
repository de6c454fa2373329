package replica

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/election"
)

func TestRetryClosedConnection_RetriesOnlyReadsOnClosedConnections(t *testing.T) {
	closed := &net.OpError{Op: "read", Net: "tcp", Err: net.ErrClosed}
	for name, test := range map[string]struct {
		method string
		err    error
		retry  bool
	}{
		"read, closed connection":  {http.MethodGet, closed, true},
		"write, closed connection": {http.MethodPut, closed, false},
		"read, other error":        {http.MethodGet, errBroken, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				request, err := http.NewRequestWithContext(ctx, test.method, "http://api/lease", http.NoBody)
				wantNoError(t, err)
				tries := 0
				_, err = retryClosedConnection{roundTripperFunc(func(*http.Request) (*http.Response, error) {
					if tries++; tries < 3 {
						return nil, test.err
					}
					return &http.Response{Body: http.NoBody}, nil
				})}.RoundTrip(request)
				if test.retry != (err == nil) || test.retry != (tries == 3) {
					t.Errorf("%d tries, error %v; want a retry: %t", tries, err, test.retry)
				}
				began := time.Now()
				_, err = retryClosedConnection{roundTripperFunc(func(*http.Request) (*http.Response, error) {
					return nil, test.err
				})}.RoundTrip(request)
				wantErrorIs(t, err, test.err)
				if took := time.Since(began); took > time.Second {
					t.Errorf("the request took %s, want at most a second", took)
				}
			})
		})
	}
}

// The request's context has no deadline, because only the client's timeout is tested.
func TestNewLease_RequestsHaveATimeout(t *testing.T) {
	timeouts := make(chan string, 1)
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		timeouts <- r.URL.Query().Get("timeout")
		<-r.Context().Done()
	}))
	t.Cleanup(api.Close)
	o := testOptions()
	o.RenewDeadline = 300 * time.Millisecond // also the request timeout, because it is less than a second
	lease, connections, err := newLease(&rest.Config{Host: api.URL}, o, nil)
	wantNoError(t, err)
	defer connections.close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, _, err = lease.Get(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		t.Errorf("the request returned %v, want DeadlineExceeded from the client's timeout", err)
	}
	if got := <-timeouts; got != "300ms" {
		t.Errorf("the API server received the timeout %q, want 300ms", got)
	}
}

func TestNewLease_RequestsAreNotThrottled(t *testing.T) {
	api := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(api.Close)
	cfg := &rest.Config{Host: api.URL, QPS: 0.001, Burst: 1}
	lease, connections, err := newLease(cfg, testOptions(), nil)
	wantNoError(t, err)
	defer connections.close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the limiter rejects a wait beyond the deadline
	defer cancel()
	for range 20 {
		if _, _, err := lease.Get(ctx); err == nil || ctx.Err() != nil || outcomeOf(err) == election.Unknown {
			t.Fatalf("the request returned %v, want the API server's rejection without a delay", err)
		}
	}
}
