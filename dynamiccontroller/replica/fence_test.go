package replica

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

func TestL2_FenceAdmitsReadsAlwaysAndWritesWhileLeading(t *testing.T) {
	for _, test := range []struct {
		method string
		header http.Header
		write  bool
	}{
		{"GET", nil, false}, {"HEAD", nil, false}, {"OPTIONS", nil, false},
		{"GET", http.Header{"Accept": {"upgrade"}, "Connection": {"keep-alive"}}, false},
		{"POST", nil, true}, {"PUT", nil, true}, {"PATCH", nil, true}, {"DELETE", nil, true}, {"UNKNOWN", nil, true},
		{"GET", http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}, true},
		{"GET", http.Header{"Connection": {"keep-alive, Upgrade"}}, true},
		{"GET", http.Header{"Upgrade": {"SPDY/3.1"}}, true},
		{"GET", http.Header{"Sec-Websocket-Protocol": {"v5.channel.k8s.io"}}, true},
		{"GET", http.Header{"sec-webSocket-protocol": {"v5.channel.k8s.io"}}, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, &fakeServer{}, "a")
			client := r.fencedClient()
			for _, when := range []string{"before", "leading", "after"} {
				switch when {
				case "leading":
					r.start()
					time.Sleep(time.Second)
				case "after":
					wantNoError(t, r.stop())
				}
				before := r.transport.sent.Load()
				err := send(t.Context(), client, test.method, test.header)
				sent := r.transport.sent.Load() == before+1
				want := !test.write || when == "leading"
				if sent != want || sent != (err == nil) || err != nil && !errors.Is(err, ErrNotLeading) {
					t.Errorf("%s %v %s: sent %t, want %t; error %v", test.method, test.header, when, sent, want, err)
				}
			}
		})
	}
}

func TestL2_RefusedWriteReturnsInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		r := newRig(t, s, "a")
		wantRefused := func(reason string) {
			t.Helper()
			err := r.write(t.Context())
			wantErrorIs(t, err, ErrNotLeading)
			wantErrorContains(t, err, "write not sent", "not the leader", reason)
			var interrupted interface{ Interrupted() bool }
			if !errors.As(err, &interrupted) || !interrupted.Interrupted() {
				t.Errorf("%v does not implement Interrupted", err)
			}
		}
		wantRefused("no term has begun")
		r.start()
		time.Sleep(time.Second)
		wantNoError(t, r.write(t.Context()))
		s.setHolder("intruder")
		time.Sleep(testRetryPeriod)
		synctest.Wait()
		wantRefused("held by intruder")
		wantErrorIs(t, r.write(t.Context()), ErrLeaseLost)
		s.delete()
		eventually(t, testLeaseDuration+maxReacquire, r.isLeading())
		wantNoError(t, r.write(t.Context()))
		wantNoError(t, r.stop())
		wantRefused("term 2 is over")
	})
}

func TestL2_BodyOfARefusedWriteIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &fakeServer{}, "a")
		body := &responseBody{ctx: t.Context()}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://api/x", body)
		wantNoError(t, err)
		_, err = (&fencedTransport{gate: r.leadership.fence, next: r.transport}).RoundTrip(request)
		wantErrorIs(t, err, ErrNotLeading)
		if !body.closed.Load() {
			t.Error("the body of the refused write was not closed")
		}
	})
}

func TestL4_FailedWriteIsNotRetained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &fakeServer{}, "a").start()
		time.Sleep(time.Second)
		failing := roundTripperFunc(func(*http.Request) (*http.Response, error) { return nil, errBroken })
		client := &http.Client{Transport: &fencedTransport{gate: r.leadership.fence, next: failing}}
		wantErrorIs(t, send(t.Context(), client, http.MethodPost, nil), errBroken)
		if n := len(r.leadership.fence.latest().inFlight); n != 0 {
			t.Errorf("%d writes are in flight after the failure, want none", n)
		}
		wantNoError(t, r.stop())
	})
}

func TestL2_WritesInFlightAreCancelledWithTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		r := newRig(t, s, "a").start()
		time.Sleep(time.Second)
		r.transport.block.Store(true)
		var result error
		var returned time.Time
		var writing sync.WaitGroup
		writing.Go(func() { result, returned = r.write(context.Background()), time.Now() })
		synctest.Wait()
		s.setHolder("intruder")
		changed := time.Now()
		writing.Wait()
		if after := returned.Sub(changed); after > testRetryPeriod {
			t.Errorf("the write was cancelled after %s, want at most %s", after, testRetryPeriod)
		}
		wantErrorIs(t, result, ErrNotLeading)
		wantErrorIs(t, result, ErrLeaseLost)
		wantErrorContains(t, result, "may have taken effect")
		wantNoError(t, r.stop())
		if n := len(r.leadership.fence.latest().inFlight); n != 0 {
			t.Errorf("%d writes are in flight after the term, want none", n)
		}
	})
}

// The context of a runnable is cancelled before the fence cancels the writes in flight.
func TestL2_WriteWithTheTermsContextReturnsErrNotLeading(t *testing.T) {
	blockRequest := func(f *fakeTransport) { f.block.Store(true) }
	blockResponse := func(f *fakeTransport) {
		f.body = func(r *http.Request) io.ReadCloser { return &responseBody{ctx: r.Context()} }
	}
	for blocked, block := range map[string]func(*fakeTransport){"request": blockRequest, "response": blockResponse} {
		for loss, lose := range map[string]func(*rig, *fakeServer){
			"lease taken":   func(_ *rig, s *fakeServer) { s.setHolder("intruder") },
			"not renewed":   func(r *rig, _ *fakeServer) { r.lease.disconnect() },
			"clock forward": func(r *rig, _ *fakeServer) { r.ahead.Store(int64(time.Hour)) },
		} {
			t.Run(blocked+", "+loss, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &fakeServer{}
					a := newRig(t, s, "a", exitOnLoss)
					block(a.transport)
					var written error
					a.registerFunc("work", func(ctx context.Context) error {
						written = a.write(ctx)
						return written // a clean exit
					})
					a.start()
					time.Sleep(time.Second)
					lose(a, s)
					err := a.result()
					wantErrorIs(t, err, ErrLeaseLost)
					if errors.Is(err, ErrNotLeading) {
						t.Errorf("Run returned %v, want only the loss of the lease", err)
					}
					wantErrorIs(t, written, ErrNotLeading)
					wantErrorIs(t, written, ErrLeaseLost)
					wantErrorContains(t, written, "may have taken effect")
				})
			})
		}
	}
}

// During a clean shutdown, the fence is open until the runnables have returned.
func TestL1_WriteCancelledByAShutdownReturnsTheContextsError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a := newRig(t, s, "a")
		a.transport.block.Store(true)
		var written error
		a.registerFunc("work", func(ctx context.Context) error {
			written = a.write(ctx)
			return written
		})
		a.start()
		time.Sleep(time.Second)
		wantNoError(t, a.stop())
		wantReleased(t, s)
		wantErrorIs(t, written, context.Canceled)
		if errors.Is(written, ErrNotLeading) {
			t.Errorf("the write returned %v, want only the error of its context", written)
		}
	})
}

// upgradedConnection is the body of a response with the status Switching Protocols.
type upgradedConnection struct {
	io.Reader
	io.Writer
	closed chan struct{}
	once   sync.Once
}

func newUpgradedConnection(w io.Writer) *upgradedConnection {
	return &upgradedConnection{Writer: w, closed: make(chan struct{})}
}

func (c *upgradedConnection) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

func (c *upgradedConnection) Read([]byte) (int, error) {
	<-c.closed
	return 0, errors.New("closed")
}

func TestL2_ResponsesToWritesEndWithTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		r := newRig(t, s, "a")
		written := &strings.Builder{}
		r.transport.body = func(*http.Request) io.ReadCloser { return newUpgradedConnection(written) }
		r.start()
		time.Sleep(time.Second)
		response, err := post(t.Context(), r.fencedClient(), "http://api/exec")
		wantNoError(t, err)
		stream, ok := response.Body.(io.Writer)
		if !ok {
			t.Fatal("the upgraded connection is not an io.Writer")
		}
		_, err = io.WriteString(stream, "ls")
		wantNoError(t, err)
		s.delete()
		_, err = response.Body.Read(make([]byte, 1))
		wantErrorIs(t, err, ErrNotLeading)
		wantNoError(t, response.Body.Close())
		wantNoError(t, r.stop())
		if written.String() != "ls" {
			t.Errorf("%q was written to the upgraded connection, want %q", written, "ls")
		}
	})
}

func TestL2_RequestFromAnEarlierTermIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		r := newRig(t, s, "a")
		contexts := make(chan context.Context, 2)
		r.registerFunc("work", func(ctx context.Context) error {
			contexts <- ctx
			<-ctx.Done()
			return nil
		})
		r.start()
		first := context.WithoutCancel(<-contexts) // the context of a handler that ignores cancellation
		wantNoError(t, r.write(first))
		s.delete()
		second := <-contexts
		wantNoError(t, r.write(second))
		wantNoError(t, r.write(t.Context()))
		err := r.write(first)
		wantErrorIs(t, err, ErrNotLeading)
		wantErrorContains(t, err, "from term 1", "current term is 2")
		// The term of another Replica has no effect.
		other := newRig(t, &fakeServer{}, "b").start()
		time.Sleep(time.Second)
		wantNoError(t, other.write(first))
		wantNoError(t, other.stop())
		wantNoError(t, r.stop())
	})
}

func TestL2_FenceUsesTheClockThatIsAhead(t *testing.T) {
	for name, test := range map[string]struct{ jump, closes time.Duration }{
		"no jump":                  {0, 2700 * time.Millisecond},
		"wall clock set back":      {-time.Hour, 2700 * time.Millisecond},
		"wall clock set forward":   {2 * time.Second, 700 * time.Millisecond},
		"wall clock past deadline": {time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, &fakeServer{}, "a")
				fence := r.leadership.fence
				term := fence.open(fence.clock.now(), r.options) // never renewed
				r.ahead.Store(int64(test.jump))
				if test.closes > 0 {
					time.Sleep(test.closes - time.Nanosecond)
					wantNoError(t, r.write(context.Background()))
					if n := len(term.inFlight); n != 0 {
						t.Errorf("%d writes are in flight after their responses, want none", n)
					}
					time.Sleep(time.Nanosecond)
				}
				wantErrorIs(t, r.write(context.Background()), ErrLeaseLost)
				wantErrorIs(t, term.renew(fence.clock.now()), ErrLeaseLost) // too late
				wantErrorIs(t, r.write(context.Background()), ErrNotLeading)
			})
		})
	}
}

func TestFencedConfig_FenceIsTheInnermostWrapper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &fakeServer{}, "a")
		calls := 0
		r.cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripperFunc(func(q *http.Request) (*http.Response, error) {
				calls++
				time.Sleep(10 * time.Second) // as a rate limiter could do
				return next.RoundTrip(q)
			})
		})
		client := r.fencedClient()
		r.start()
		time.Sleep(time.Second)
		go func() {
			time.Sleep(time.Second)
			_ = r.stop()
		}()
		wantErrorIs(t, send(t.Context(), client, http.MethodPost, nil), ErrNotLeading)
		if calls != 1 || r.transport.sent.Load() != 0 {
			t.Errorf("%d calls to the wrapper, %d requests sent; want one call and no request", calls, r.transport.sent.Load())
		}
	})
}

func TestFencedConfig_IsThrottledOnlyIfTheConfigIs(t *testing.T) {
	limiter := flowcontrol.NewFakeAlwaysRateLimiter()
	for name, test := range map[string]struct {
		given rest.Config
		qps   float32
	}{
		"no limit":     {rest.Config{}, -1},
		"burst only":   {rest.Config{Burst: 7}, -1},
		"QPS":          {rest.Config{QPS: 50, Burst: 100}, 50},
		"negative QPS": {rest.Config{QPS: -1}, -1},
		"rate limiter": {rest.Config{RateLimiter: limiter}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := New(logr.Discard(), &test.given, testOptions())
			wantNoError(t, err)
			fenced := r.FencedConfig()
			if fenced.QPS != test.qps || fenced.Burst != test.given.Burst || fenced.RateLimiter != test.given.RateLimiter {
				t.Errorf("got QPS %v, Burst %d, RateLimiter %v; want QPS %v and the given Burst and RateLimiter",
					fenced.QPS, fenced.Burst, fenced.RateLimiter, test.qps)
			}
		})
	}
}

func TestFence_AppliesToEveryConfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a := newRig(t, s, "a")
		transports := [2]*fakeTransport{{}, {}}
		var clients [2]*http.Client
		for i, transport := range transports {
			cfg := &rest.Config{Host: "http://other", Transport: transport, UserAgent: "other", QPS: 7}
			fenced := a.Fence(cfg)
			if fenced == cfg || cfg.WrapTransport != nil || fenced.UserAgent != "other" || fenced.QPS != 7 {
				t.Errorf("got %v from %v, want a copy", fenced, cfg)
			}
			var err error
			clients[i], err = rest.HTTPClientFor(fenced)
			wantNoError(t, err)
		}
		writeToAll := func(want error) {
			t.Helper()
			for i, client := range clients {
				before := transports[i].sent.Load()
				err := send(t.Context(), client, http.MethodPost, nil)
				if sent := transports[i].sent.Load() > before; !errors.Is(err, want) || sent != (want == nil) {
					t.Errorf("write %d was sent: %t, error %v; want error %v", i, sent, err, want)
				}
			}
		}
		writeToAll(ErrNotLeading)
		a.start()
		time.Sleep(time.Second)
		writeToAll(nil)
		s.setHolder("intruder")
		time.Sleep(testRetryPeriod)
		synctest.Wait()
		writeToAll(ErrLeaseLost)
		wantNoError(t, a.stop())
	})
}

func TestFencedConfig_ManyWritesTakeNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &fakeServer{}, "a")
		cfg := r.FencedConfig()
		cfg.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
		client, err := rest.UnversionedRESTClientFor(cfg)
		wantNoError(t, err)
		r.start()
		time.Sleep(time.Second)
		began := time.Now()
		for range 100 {
			wantNoError(t, client.Post().AbsPath("/x").Do(t.Context()).Error())
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("100 writes took %s, want no time", took)
		}
		wantNoError(t, r.stop())
	})
}
