package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// fence lets writes pass while a term lasts.
type fence struct {
	clock clock

	mu      sync.Mutex // guards what follows
	terms   int64
	current *term // the latest; nil before the first
}

// open begins a term.
func (f *fence) open(sent instant, o Options) *term {
	var certain time.Duration
	if o.elects() {
		certain = o.certain()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.terms++
	f.current = newTerm(f.terms, f, sent, certain)
	return f.current
}

func (f *fence) latest() *term {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current
}

// admit asks the term that the request is for: its context's, or the present one if it carries none of this fence's.
func (f *fence) admit(ctx context.Context) (context.Context, func(), error) {
	current := f.latest()
	if current == nil {
		return nil, nil, refusal(errors.New("it has not led yet"))
	}
	if asks, ok := ctx.Value(termKey{}).(*term); ok && asks.of == f && asks != current {
		return nil, nil, refusal(fmt.Errorf("the request is from term %d, and this is term %d", asks.number, current.number))
	}
	return current.admit(ctx)
}

// refusal is ErrNotLeading, with the reason.
func refusal(why error) error { return fmt.Errorf("%w: %w", ErrNotLeading, why) }

// config returns a copy of cfg that is fenced. The fence is what a request passes last, after any wrapper of cfg's own:
// what waits there does not wait between the look at the clock and the wire.
func (f *fence) config(cfg *rest.Config) *rest.Config {
	fenced := rest.CopyConfig(cfg)
	fenced.WrapTransport = transport.Wrappers(func(next http.RoundTripper) http.RoundTripper {
		return &gate{fence: f, next: next}
	}, cfg.WrapTransport)
	return fenced
}

// gate is the fence in a client's transport.
type gate struct {
	fence *fence
	next  http.RoundTripper
}

// WrappedRoundTripper lets client-go find what is wrapped.
func (g *gate) WrappedRoundTripper() http.RoundTripper { return g.next }

func (g *gate) RoundTrip(r *http.Request) (*http.Response, error) {
	if !isWrite(r) {
		return g.next.RoundTrip(r)
	}
	ctx, land, err := g.fence.admit(r.Context())
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // a RoundTripper always closes it
		}
		return nil, fmt.Errorf("the write was not sent: %w", err)
	}
	answer, err := g.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		err = cutShort(ctx, err)
		land()
		return nil, err
	}
	if answer.Body == nil {
		land()
		return answer, nil
	}
	body := &fencedBody{ReadCloser: answer.Body, ctx: ctx, caller: r.Context(), land: land}
	answer.Body = body
	upgraded, ok := body.ReadCloser.(io.ReadWriteCloser)
	if ok {
		answer.Body = &fencedStream{fencedBody: body, Writer: upgraded}
	}
	if ok || answer.StatusCode == http.StatusSwitchingProtocols {
		// The transport stops reading a body when the context ends, but does not close a connection that was upgraded.
		body.stop = context.AfterFunc(ctx, func() { _ = body.ReadCloser.Close() })
	}
	return answer, nil
}

// isWrite tells what the fence is for: all but plain reads. Streams that carry commands (exec, attach, port-forward) begin
// as a GET in WebSocket's case; its headers are partly added below this transport, so that any of them tells.
func isWrite(r *http.Request) bool {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions:
	default:
		return true
	}
	for name, values := range r.Header {
		name = strings.ToLower(name)
		if name == "upgrade" || strings.HasPrefix(name, "sec-websocket-") ||
			name == "connection" && strings.Contains(strings.ToLower(strings.Join(values, ",")), "upgrade") {
			return true
		}
	}
	return false
}

// cutShort says that it was the fence, if it was.
func cutShort(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, ErrNotLeading) {
		return fmt.Errorf("the write was cut short and may have taken effect: %w: %w", cause, err)
	}
	return err
}

// fencedBody is the body of the response to a write. Its Read fails when the fence closes.
type fencedBody struct {
	io.ReadCloser
	ctx    context.Context // of the request that was answered
	caller context.Context // the context from which ctx was derived
	land   func()
	stop   func() bool // keeps ctx from closing an upgraded connection; nil for other bodies
}

func (b *fencedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // the io.Reader contract: io.EOF itself
		err = cutShort(b.ctx, withCause(b.caller, err))
	}
	return n, err
}

func (b *fencedBody) Close() error {
	if b.stop != nil {
		b.stop()
	}
	defer b.land()
	return b.ReadCloser.Close()
}

// withCause returns an error that wraps the cause of ctx if ctx has ended, and err otherwise. Depending on timing, a
// transport returns the context's error, its cause, or the error of the connection that it closed. A runnable that
// returned the error of the connection would not count as cleanly ended.
func withCause(ctx context.Context, err error) error {
	if ctx.Err() == nil || errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)) {
		return err
	}
	return fmt.Errorf("%w: %s", context.Cause(ctx), err.Error())
}

// fencedStream is an upgraded connection.
type fencedStream struct {
	*fencedBody
	io.Writer
}
