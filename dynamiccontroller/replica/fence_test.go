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

	"k8s.io/client-go/rest"
)

func TestL2_TheFenceIsForAllThatWritesAndForNothingElse(t *testing.T) {
	for _, c := range []struct {
		method string
		header http.Header
		write  bool
	}{
		{"GET", nil, false}, {"HEAD", nil, false}, {"OPTIONS", nil, false},
		{"GET", http.Header{"Accept": {"upgrade"}, "Connection": {"keep-alive"}}, false},
		{"POST", nil, true}, {"PUT", nil, true}, {"PATCH", nil, true}, {"DELETE", nil, true}, {"STRANGE", nil, true},
		{"GET", http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}, true},
		{"GET", http.Header{"Connection": {"keep-alive, Upgrade"}}, true},
		{"GET", http.Header{"Upgrade": {"SPDY/3.1"}}, true},
		{"GET", http.Header{"Sec-Websocket-Protocol": {"v5.channel.k8s.io"}}, true},
		{"GET", http.Header{"sec-webSocket-protocol": {"v5.channel.k8s.io"}}, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, &server{}, "a")
			client, err := rest.HTTPClientFor(r.FencedConfig())
			wantNoError(t, err)
			for _, when := range []string{"before", "leading", "after"} {
				switch when {
				case "leading":
					r.start()
					time.Sleep(time.Second)
				case "after":
					wantNoError(t, r.stop())
				}
				before := r.wire.passed.Load()
				err := send(t.Context(), client, c.method, c.header)
				passed := r.wire.passed.Load() == before+1
				want := !c.write || when == "leading"
				if passed != want || passed != (err == nil) || err != nil && !errors.Is(err, ErrNotLeading) {
					t.Errorf("%s %v %s: passed %t, error %v", c.method, c.header, when, passed, err)
				}
			}
		})
	}
}

func TestL2_ARefusedWriteSaysSoAndCountsAsInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		r := newRig(t, s, "a")
		check := func(words ...string) {
			t.Helper()
			err := r.write(t.Context())
			wantIs(t, err, ErrNotLeading)
			wantSays(t, err, append(words, "not sent", "does not lead")...)
			var interrupted interface{ Interrupted() bool }
			if !errors.As(err, &interrupted) || !interrupted.Interrupted() {
				t.Errorf("%v is not interrupted", err)
			}
		}
		check("has not led yet")
		r.start()
		time.Sleep(time.Second)
		wantNoError(t, r.write(t.Context()))
		s.give("thief")
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		check("held by thief")
		wantIs(t, r.write(t.Context()), ErrLeaseLost)
		s.delete()
		time.Sleep(5 * time.Second)
		wantNoError(t, r.write(t.Context()))
		wantNoError(t, r.stop())
		check("term 2 is over")
	})
}

func TestL2_WritesInFlightAreCancelledWithTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		r := newRig(t, s, "a").start()
		time.Sleep(time.Second)
		r.wire.hold.Store(true)
		var result error
		var sent time.Time
		var writing sync.WaitGroup
		writing.Go(func() { result, sent = r.write(context.Background()), time.Now() })
		synctest.Wait()
		s.give("thief")
		lost := time.Now()
		writing.Wait()
		if after := sent.Sub(lost); after > 500*time.Millisecond {
			t.Errorf("cancelled after %s", after)
		}
		wantIs(t, result, ErrNotLeading)
		wantIs(t, result, ErrLeaseLost)
		wantSays(t, result, "may have taken effect")
		wantNoError(t, r.stop())
		if n := len(r.leads.fence.latest().inFlight); n != 0 {
			t.Errorf("%d are in flight", n)
		}
	})
}

// pipeBody is an upgraded connection.
type pipeBody struct {
	io.Reader
	io.Writer
	closed chan struct{}
	once   sync.Once
}

func (p *pipeBody) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipeBody) Read([]byte) (int, error) {
	<-p.closed
	return 0, errors.New("closed")
}

func TestL2_AnswersToWritesEndWithTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		r := newRig(t, s, "a")
		written := &strings.Builder{}
		r.wire.body = func(*http.Request) io.ReadCloser {
			return &pipeBody{Writer: written, closed: make(chan struct{})}
		}
		r.start()
		time.Sleep(time.Second)
		client, err := rest.HTTPClientFor(r.FencedConfig())
		wantNoError(t, err)
		request, err := http.NewRequest(http.MethodPost, "http://api/exec", http.NoBody)
		wantNoError(t, err)
		answer, err := client.Do(request)
		wantNoError(t, err)
		stream, ok := answer.Body.(io.Writer)
		if !ok {
			t.Fatal("an upgraded connection cannot be written to")
		}
		_, err = io.WriteString(stream, "ls")
		wantNoError(t, err)
		s.delete()
		_, err = answer.Body.Read(make([]byte, 1))
		wantIs(t, err, ErrNotLeading)
		wantNoError(t, answer.Body.Close())
		wantNoError(t, r.stop())
	})
}

func TestL2_ARequestOfAnEarlierTermIsRefusedInALaterOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		r := newRig(t, s, "a")
		var first context.Context
		contexts := make(chan context.Context, 2)
		r.lead("w", func(ctx context.Context) error {
			contexts <- ctx
			<-ctx.Done()
			return nil
		})
		r.start()
		first = context.WithoutCancel(<-contexts) // of a handler that ignores that it ended
		wantNoError(t, r.write(first))
		s.delete()
		second := <-contexts
		wantNoError(t, r.write(second))
		wantNoError(t, r.write(t.Context()))
		err := r.write(first)
		wantIs(t, err, ErrNotLeading)
		wantSays(t, err, "term 1", "term 2")
		// The term of another replica says nothing about this one.
		other := newRig(t, &server{}, "b").start()
		time.Sleep(time.Second)
		wantNoError(t, other.write(first))
		wantNoError(t, other.stop())
		wantNoError(t, r.stop())
	})
}

func TestL2_TheClockThatIsAheadCloses(t *testing.T) {
	for name, c := range map[string]struct{ jump, closes time.Duration }{
		"both alike":   {0, 2700 * time.Millisecond},
		"wall back":    {-time.Hour, 2700 * time.Millisecond},
		"wall ahead":   {2 * time.Second, 700 * time.Millisecond},
		"wall far off": {time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, &server{}, "a")
				term := r.leads.fence.open(r.leads.fence.clock.now(), r.options) // nobody renews it
				r.ahead.Store(int64(c.jump))
				if c.closes > 0 {
					time.Sleep(c.closes - time.Nanosecond)
					wantNoError(t, r.write(context.Background()))
					if n := len(term.inFlight); n != 0 {
						t.Errorf("%d writes are in flight after they were answered", n)
					}
					time.Sleep(time.Nanosecond)
				}
				wantIs(t, r.write(context.Background()), ErrLeaseLost)
				// What is confirmed now came too late.
				wantIs(t, term.renew(r.leads.fence.clock.now()), ErrLeaseLost)
				wantIs(t, r.write(context.Background()), ErrNotLeading)
			})
		})
	}
}

func TestTheFenceIsPassedAfterTheCallersOwnWrappers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &server{}, "a")
		order := []string{}
		r.cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return tripper(func(q *http.Request) (*http.Response, error) {
				order = append(order, "wrapper")
				time.Sleep(10 * time.Second) // a throttle
				return next.RoundTrip(q)
			})
		})
		client, err := rest.HTTPClientFor(r.FencedConfig())
		wantNoError(t, err)
		r.start()
		time.Sleep(time.Second)
		go func() {
			time.Sleep(time.Second)
			_ = r.stop()
		}()
		wantIs(t, send(t.Context(), client, http.MethodPost, nil), ErrNotLeading)
		if len(order) != 1 || r.wire.passed.Load() != 0 {
			t.Errorf("%v, %d sent", order, r.wire.passed.Load())
		}
	})
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
