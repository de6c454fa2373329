package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
)

var errReadOnClosedBody = errors.New("read on closed response body")

// responseBody behaves like the body of a response of net/http: reading ends with the request's context, and fails after
// Close.
type responseBody struct {
	ctx    context.Context // as in net/http
	ends   error           // what Read returns when ctx has ended; its cause if nil
	closed atomic.Bool
}

func (b *responseBody) Read([]byte) (int, error) {
	if b.closed.Load() {
		return 0, errReadOnClosedBody
	}
	<-b.ctx.Done()
	if b.ends != nil {
		return 0, b.ends
	}
	return 0, context.Cause(b.ctx)
}

func (b *responseBody) Close() error {
	b.closed.Store(true)
	return nil
}

// post sends a write and returns its response.
func post(ctx context.Context, client *http.Client, url string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	return client.Do(request)
}

// Client-go returns such an error from Do, wrapped, and handlers pass it on.
func TestL1_ReadingAResponseAsTheContextEndsIsACleanEnd(t *testing.T) {
	for name, ends := range map[string]error{
		"the transport returns the cause":     nil,
		"the transport returns context's Err": context.Canceled,
		"the transport returns another error": net.ErrClosed,
	} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, late: %t", name, late), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &server{}
					a := newRig(t, s, "a")
					a.wire.body = func(r *http.Request) io.ReadCloser { return &responseBody{ctx: r.Context(), ends: ends} }
					client, err := rest.HTTPClientFor(a.FencedConfig())
					wantNoError(t, err)
					a.lead("w", func(ctx context.Context) error {
						answer, err := post(ctx, client, "http://api/x")
						if err != nil {
							return err
						}
						defer answer.Body.Close()
						if late {
							<-ctx.Done()
							time.Sleep(time.Second)
						}
						_, err = io.ReadAll(answer.Body)
						return fmt.Errorf("unexpected error when reading response body: %w", err)
					})
					a.start()
					time.Sleep(time.Second)
					wantNoError(t, a.stop())
					if got := s.now(); !released(&got) {
						t.Errorf("the lease is %+v", got)
					}
				})
			})
		}
	}
}

func TestL1_OnlyTheEndOfTheCallersContextReplacesAReadError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, &server{}, "a")
		a.wire.body = func(r *http.Request) io.ReadCloser { return &responseBody{ctx: r.Context()} }
		client, err := rest.HTTPClientFor(a.FencedConfig())
		wantNoError(t, err)
		a.start()
		time.Sleep(time.Second)

		answer, err := post(t.Context(), client, "http://api/x")
		wantNoError(t, err)
		wantNoError(t, answer.Body.Close())
		_, err = answer.Body.Read(make([]byte, 1))
		wantIs(t, err, errReadOnClosedBody)

		ctx, cancel := context.WithCancelCause(t.Context())
		answer, err = post(ctx, client, "http://api/x")
		wantNoError(t, err)
		cancel(errBroken)
		_, err = answer.Body.Read(make([]byte, 1))
		wantIs(t, err, errBroken)
		wantNoError(t, answer.Body.Close())
		wantNoError(t, a.stop())
	})
}

// An upgraded connection has left the transport, which does not end it with the context.
func TestL2_AnUpgradedConnectionIsClosedWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, &server{}, "a")
		a.wire.body = func(*http.Request) io.ReadCloser { return &pipeBody{Writer: io.Discard, closed: make(chan struct{})} }
		client, err := rest.HTTPClientFor(a.FencedConfig())
		wantNoError(t, err)
		a.start()
		time.Sleep(time.Second)
		ctx, cancel := context.WithCancelCause(t.Context())
		answer, err := post(ctx, client, "http://api/exec")
		wantNoError(t, err)
		cancel(errBroken)
		_, err = answer.Body.Read(make([]byte, 1))
		wantIs(t, err, errBroken)
		wantNoError(t, answer.Body.Close())
		wantNoError(t, a.stop())
	})
}

// streamingAPI answers with the beginning of a body, and goes on until the client ends the request.
func streamingAPI(t *testing.T, http2 bool) *httptest.Server {
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("{"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		panic(http.ErrAbortHandler) // to return would complete the response
	}))
	api.EnableHTTP2 = http2
	api.StartTLS()
	t.Cleanup(api.Close)
	return api
}

var protocols = map[string]bool{"HTTP/1.1": false, "HTTP/2.0": true}

func TestL1_ACleanEndWhileResponsesAreReadOverHTTP(t *testing.T) {
	for protocol, http2 := range protocols {
		t.Run(protocol, func(t *testing.T) {
			api := streamingAPI(t, http2)
			for range 20 {
				s := &server{}
				a := newRig(t, s, "a")
				a.cfg.Transport = api.Client().Transport
				client, err := rest.HTTPClientFor(a.FencedConfig())
				wantNoError(t, err)
				reading := make(chan struct{})
				a.lead("w", func(ctx context.Context) error {
					answer, err := post(ctx, client, api.URL)
					if err != nil {
						return err
					}
					defer answer.Body.Close()
					if answer.Proto != protocol {
						t.Errorf("the protocol is %s", answer.Proto)
					}
					close(reading)
					_, err = io.ReadAll(answer.Body)
					_, again := answer.Body.Read(make([]byte, 1))
					return errors.Join(err, again)
				})
				a.start()
				<-reading
				wantNoError(t, a.stop())
				if got := s.now(); !released(&got) {
					t.Fatalf("the lease is %+v", got)
				}
			}
		})
	}
}

func TestL2_AResponseThatIsReadOverHTTPEndsWithTheTerm(t *testing.T) {
	for protocol, http2 := range protocols {
		t.Run(protocol, func(t *testing.T) {
			api := streamingAPI(t, http2)
			s := &server{}
			a := newRig(t, s, "a")
			a.cfg.Transport = api.Client().Transport
			client, err := rest.HTTPClientFor(a.FencedConfig())
			wantNoError(t, err)
			a.start()
			until(t, 5*time.Second, func() bool { return a.Status().Leading })
			answer, err := post(context.Background(), client, api.URL)
			wantNoError(t, err)
			defer answer.Body.Close()
			s.give("thief")
			_, err = io.ReadAll(answer.Body)
			wantIs(t, err, ErrNotLeading)
			wantIs(t, err, ErrLeaseLost)
			wantSays(t, err, "may have taken effect")
		})
	}
}
