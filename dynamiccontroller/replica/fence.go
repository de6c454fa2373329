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

	"github.com/dynamic-controller/engine/internal/writes"
)

// fence allows writes for the duration of a term.
type fence struct {
	clock clock
	// lease is the namespace and the name of the Lease, and holder the identity in it. Both are empty without leader
	// election.
	lease, holder string
	// ledger is nil if the writes of a term are not recorded.
	ledger *writes.Ledger
	owner  *Replica
	// condition returns an error if the terms must end although the Lease is held. It must not take locks. A nil condition
	// is always met.
	condition func() error

	mu      sync.Mutex // guards the fields below
	terms   int64
	current *term // the current or last term, nil before the first term
}

// open begins a term. The parameter acquired is the time when the request that acquired the lease was sent.
func (f *fence) open(acquired instant, o Options) *term {
	var validity time.Duration
	if o.elects() {
		validity = o.renewalValidity()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.terms++
	f.current = newTerm(f.terms, f, acquired, validity)
	return f.current
}

// check returns the error of the condition.
func (f *fence) check() error {
	if f.condition == nil {
		return nil
	}
	return f.condition()
}

// latest returns the current or last term, or nil before the first term.
func (f *fence) latest() *term {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current
}

// gate determines the term that a write belongs to.
type gate interface {
	// termOf returns the current term to which a write with ctx belongs, or an error.
	termOf(ctx context.Context) (*term, error)
}

// termOf returns the current term. It returns an error if no term has begun, or if ctx carries an earlier term of this
// fence.
func (f *fence) termOf(ctx context.Context) (*term, error) {
	current := f.latest()
	if current == nil {
		return nil, notLeading(errors.New("no term has begun"))
	}
	if carried, ok := ctx.Value(termKey{}).(*term); ok && carried.of == f && carried != current {
		err := fmt.Errorf("the request is from term %d, the current term is %d", carried.number, current.number)
		return nil, notLeading(err)
	}
	return current, nil
}

// fencedConfig returns a fenced copy of cfg. The fence is the innermost transport wrapper, so that a wrapper from cfg
// cannot delay a request after the fence has checked the clocks. Throttling is off unless cfg configures it.
//
// If server is not nil, the writes can also be fenced by the API server. If home is the host of cfg, the writes of
// handlers are recorded for the next leader.
func fencedConfig(g gate, cfg *rest.Config, server *serverFence, home string) *rest.Config {
	fenced := rest.CopyConfig(cfg)
	if fenced.QPS == 0 && fenced.RateLimiter == nil {
		fenced.QPS = -1
	}
	fenced.WrapTransport = transport.Wrappers(func(next http.RoundTripper) http.RoundTripper {
		return &fencedTransport{gate: g, next: next, server: server, records: cfg.Host == home}
	}, cfg.WrapTransport)
	return fenced
}

// fencedTransport refuses writes that the fence does not allow.
type fencedTransport struct {
	gate    gate
	next    http.RoundTripper
	server  *serverFence
	records bool // false for clusters that do not contain the Lease
}

// WrappedRoundTripper returns the wrapped transport, for client-go.
func (t *fencedTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

func (t *fencedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !isWrite(r) {
		return t.next.RoundTrip(r)
	}
	term, ctx, done, err := t.admit(r)
	if err != nil {
		return nil, fmt.Errorf("write not sent: %w", err)
	}
	record := writes.ResultOf(r)
	response, err := t.server.send(r.Context(), t.next, r.WithContext(ctx), term)
	if err != nil {
		done()
		if errors.Is(err, errDenied) {
			return nil, fmt.Errorf("write rejected: %w", err)
		}
		record(nil, err)
		return nil, term.writeError(withCause(r.Context(), err))
	}
	record(response, nil)
	if response.Body == nil {
		done()
		return response, nil
	}
	if r.Context().Err() != nil && !isSuccess(response.StatusCode) && t.isRecorded(term, r) {
		// The write was only given time to complete in case it succeeds.
		_ = response.Body.Close()
		done()
		return nil, fmt.Errorf("%w: the API server responded with status %d", context.Cause(r.Context()),
			response.StatusCode)
	}
	body := &fencedBody{ReadCloser: response.Body, term: term, caller: r.Context(), done: done}
	response.Body = body
	upgraded, ok := body.ReadCloser.(io.ReadWriteCloser)
	if ok {
		response.Body = &fencedStream{fencedBody: body, Writer: upgraded}
	}
	if ok || response.StatusCode == http.StatusSwitchingProtocols {
		// When the context ends, the transport stops reading a body, but it does not close an upgraded connection.
		body.stop = context.AfterFunc(ctx, func() { _ = body.ReadCloser.Close() })
	}
	return response, nil
}

// isRecorded reports whether a write is recorded for the next leader, if its response arrives.
func (t *fencedTransport) isRecorded(term *term, r *http.Request) bool {
	if !t.records || term.of.ledger == nil || writes.From(r.Context()) == nil {
		return false
	}
	_, ok := writes.TargetOf(r)
	return ok
}

func isSuccess(status int) bool {
	return status >= http.StatusOK && status < http.StatusMultipleChoices
}

// admit registers the write with its term. If it returns an error, it has closed the body of the request.
func (t *fencedTransport) admit(r *http.Request) (_ *term, _ context.Context, done func(), err error) {
	term, err := t.gate.termOf(r.Context())
	if err == nil {
		var ctx context.Context
		if ctx, done, err = term.admit(r.Context(), t.isRecorded(term, r)); err == nil {
			return term, ctx, done, nil
		}
	}
	if r.Body != nil {
		_ = r.Body.Close() // as http.RoundTripper requires
	}
	return nil, nil, nil, err
}

// isWrite reports whether the fence applies to a request. Streams that carry commands (exec, attach, port-forward)
// begin with a GET if they use WebSocket. A single header that requests the upgrade is sufficient, because transports
// below this one add some of these headers.
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

// fencedBody is the body of the response to a write. Its Read fails when the fence closes.
type fencedBody struct {
	io.ReadCloser
	term   *term
	caller context.Context // the context of the write before it was admitted
	done   func()
	stop   func() bool // prevents ctx from closing an upgraded connection, nil for other bodies
}

func (b *fencedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // the io.Reader contract: io.EOF itself
		err = b.term.writeError(withCause(b.caller, err))
	}
	return n, err
}

func (b *fencedBody) Close() error {
	if b.stop != nil {
		b.stop()
	}
	defer b.done()
	return b.ReadCloser.Close()
}

// withCause returns an error that wraps the cause of ctx if ctx is cancelled, and err otherwise. Depending on timing, a
// transport returns the context's error, its cause, or the error from the connection that it closed. Without the cause,
// a runnable that returns the error from the connection would not end cleanly.
func withCause(ctx context.Context, err error) error {
	if ctx.Err() == nil || errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)) {
		return err
	}
	if errors.Is(err, context.Canceled) { // of the context that the write was sent with
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w: %s", context.Cause(ctx), err.Error())
}

// fencedStream is an upgraded connection.
type fencedStream struct {
	*fencedBody
	io.Writer
}
