package replica

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// The requests for all Leases of a fleet share a connection. If one of them hangs, the others must not be interrupted.
// If all hang, the connection must be replaced.
func TestConnections_AreClosedOnlyIfNothingIsAnswered(t *testing.T) {
	var opened atomic.Int64
	var hang atomic.Bool
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hang.Load() || strings.HasSuffix(r.URL.Path, "/hung") {
			<-r.Context().Done()
		}
		http.NotFound(w, r)
	}))
	api.EnableHTTP2 = true
	api.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	api.StartTLS()
	t.Cleanup(api.Close)
	o := testOptions()
	o.RenewDeadline = 300 * time.Millisecond // also the request timeout, because it is less than a second
	cfg := &rest.Config{Host: api.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	client, connections, err := newLeaseClient(cfg, o)
	wantNoError(t, err)
	defer connections.close()
	get := func(name string) error {
		ctx, cancel := context.WithTimeout(t.Context(), o.RenewDeadline)
		defer cancel()
		sent := time.Now()
		_, err := client.Leases("default").Get(ctx, name, metav1.GetOptions{})
		if isTimeout(err) {
			connections.closeHung(sent)
		}
		return err
	}
	wantAnswer := func() {
		t.Helper()
		if err := get("other"); !apierrors.IsNotFound(err) {
			t.Fatalf("the request returned %v, want an answer", err)
		}
	}
	wantAnswer()
	hung := make(chan error)
	go func() { hung <- get("hung") }()
	for timedOut := false; !timedOut; {
		select {
		case err := <-hung:
			timedOut = true
			if !isTimeout(err) {
				t.Errorf("the request returned %v, want a timeout", err)
			}
		default:
			wantAnswer()
		}
	}
	wantAnswer()
	if n := opened.Load(); n != 1 {
		t.Errorf("%d connections after one request has timed out, want 1", n)
	}
	hang.Store(true)
	if err := get("other"); !isTimeout(err) {
		t.Errorf("the request returned %v, want a timeout", err)
	}
	hang.Store(false)
	wantAnswer()
	if n := opened.Load(); n != 2 {
		t.Errorf("%d connections after all requests have timed out, want 2", n)
	}
}
