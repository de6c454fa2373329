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
)

var errReadOnClosedBody = errors.New("read on closed response body")

// responseBody behaves like the body of a net/http response. Read waits until the request's context is cancelled. After
// Close, Read returns an error.
type responseBody struct {
	ctx     context.Context // as in net/http
	readErr error           // returned by Read after ctx is cancelled; if nil, Read returns the cause
	closed  atomic.Bool
}

func (b *responseBody) Read([]byte) (int, error) {
	if b.closed.Load() {
		return 0, errReadOnClosedBody
	}
	<-b.ctx.Done()
	if b.readErr != nil {
		return 0, b.readErr
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

// client-go wraps read errors, and handlers return them.
func TestL1_ReadErrorAfterCancellationIsACleanExit(t *testing.T) {
	for name, readErr := range map[string]error{
		"transport returns the cause":   nil,
		"transport returns ctx.Err":     context.Canceled,
		"transport returns other error": net.ErrClosed,
	} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, late: %t", name, late), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &fakeServer{}
					a := newRig(t, s, "a")
					a.transport.body = func(r *http.Request) io.ReadCloser {
						return &responseBody{ctx: r.Context(), readErr: readErr}
					}
					client := a.fencedClient()
					a.registerFunc("work", func(ctx context.Context) error {
						response, err := post(ctx, client, "http://api/x")
						if err != nil {
							return err
						}
						defer response.Body.Close()
						if late {
							<-ctx.Done()
							time.Sleep(time.Second)
						}
						_, err = io.ReadAll(response.Body)
						return fmt.Errorf("unexpected error when reading response body: %w", err)
					})
					a.start()
					time.Sleep(time.Second)
					wantNoError(t, a.stop())
					wantReleased(t, s)
				})
			})
		}
	}
}

func TestFencedBody_ReadReturnsTheCauseOnlyIfTheContextIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, &fakeServer{}, "a")
		a.transport.body = func(r *http.Request) io.ReadCloser { return &responseBody{ctx: r.Context()} }
		client := a.fencedClient()
		a.start()
		time.Sleep(time.Second)

		response, err := post(t.Context(), client, "http://api/x")
		wantNoError(t, err)
		wantNoError(t, response.Body.Close())
		_, err = response.Body.Read(make([]byte, 1))
		wantErrorIs(t, err, errReadOnClosedBody)

		ctx, cancel := context.WithCancelCause(t.Context())
		response, err = post(ctx, client, "http://api/x")
		wantNoError(t, err)
		cancel(errBroken)
		_, err = response.Body.Read(make([]byte, 1))
		wantErrorIs(t, err, errBroken)
		wantNoError(t, response.Body.Close())
		wantNoError(t, a.stop())
	})
}

func TestFencedBody_CompleteResponseCanBeReadAfterTheContextIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	opened, _, _ := openTerm(t, clock{}, testOptions())
	_ = opened.lose("for the test")
	body := &fencedBody{ReadCloser: http.NoBody, term: opened, caller: ctx, done: func() {}}
	_, err := io.ReadAll(body)
	wantNoError(t, err)
	wantNoError(t, body.Close())
}

// The transport does not close an upgraded connection with the context.
func TestL2_UpgradedConnectionIsClosedWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, &fakeServer{}, "a")
		a.transport.body = func(*http.Request) io.ReadCloser { return newUpgradedConnection(io.Discard) }
		client := a.fencedClient()
		a.start()
		time.Sleep(time.Second)
		ctx, cancel := context.WithCancelCause(t.Context())
		response, err := post(ctx, client, "http://api/exec")
		wantNoError(t, err)
		cancel(errBroken)
		_, err = response.Body.Read(make([]byte, 1))
		wantErrorIs(t, err, errBroken)
		wantNoError(t, response.Body.Close())
		wantNoError(t, a.stop())
	})
}

// streamingAPI returns a server that begins to send a response but does not complete it before the client closes the
// request.
func streamingAPI(t *testing.T, http2 bool) *httptest.Server {
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("{"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		panic(http.ErrAbortHandler) // returning would complete the response
	}))
	api.EnableHTTP2 = http2
	api.StartTLS()
	t.Cleanup(api.Close)
	return api
}

var protocols = map[string]bool{"HTTP/1.1": false, "HTTP/2.0": true}

func TestL1_ShutdownIsCleanWhileResponsesAreRead(t *testing.T) {
	for protocol, http2 := range protocols {
		t.Run(protocol, func(t *testing.T) {
			api := streamingAPI(t, http2)
			for range 20 {
				s := &fakeServer{}
				a := newRig(t, s, "a", defaultDurations)
				a.cfg.Transport = api.Client().Transport
				client := a.fencedClient()
				reading := make(chan struct{})
				a.registerFunc("work", func(ctx context.Context) error {
					response, err := post(ctx, client, api.URL)
					if err != nil {
						return err
					}
					defer response.Body.Close()
					if response.Proto != protocol {
						t.Errorf("the API server answered with the protocol %s", response.Proto)
					}
					close(reading)
					_, err = io.ReadAll(response.Body)
					_, again := response.Body.Read(make([]byte, 1))
					return errors.Join(err, again)
				})
				a.start()
				<-reading
				wantNoError(t, a.stop())
				wantReleased(t, s)
			}
		})
	}
}

func TestL2_HTTPResponsesEndWithTheTerm(t *testing.T) {
	for protocol, http2 := range protocols {
		t.Run(protocol, func(t *testing.T) {
			api := streamingAPI(t, http2)
			s := &fakeServer{}
			a := newRig(t, s, "a")
			a.cfg.Transport = api.Client().Transport
			client := a.fencedClient()
			a.start()
			eventually(t, time.Minute, a.isLeading())
			response, err := post(context.Background(), client, api.URL)
			wantNoError(t, err)
			defer response.Body.Close()
			s.setHolder("intruder")
			_, err = io.ReadAll(response.Body)
			wantErrorIs(t, err, ErrNotLeading)
			wantErrorIs(t, err, ErrLeaseLost)
			wantErrorContains(t, err, "may have taken effect")
		})
	}
}
