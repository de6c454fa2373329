package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/transport"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/serverfence"
)

// serverFence makes writes carry what the API server needs to reject those of a replica that no longer leads. A nil
// serverFence sends writes unchanged.
type serverFence struct {
	username string // the user of a request that impersonates nobody
}

// sign returns the write with the lease and the holder of its term. It does not change r.
func (s *serverFence) sign(r *http.Request, t *term) *http.Request {
	r = r.Clone(r.Context()) // a RoundTripper must not change the headers of a request
	if r.Header.Get(transport.ImpersonateUserHeader) == "" {
		r.Header.Set(transport.ImpersonateUserHeader, s.username)
	}
	r.Header.Set(leaseHeader, t.of.lease)
	r.Header.Set(holderHeader, t.of.holder)
	return r
}

var (
	leaseHeader  = transport.ImpersonateUserExtraHeaderPrefix + url.PathEscape(serverfence.LeaseExtra)
	holderHeader = transport.ImpersonateUserExtraHeaderPrefix + url.PathEscape(serverfence.HolderExtra)
)

// maxDenial is the maximum length of a response that is searched for a denial.
const maxDenial = 64 << 10

// While a denial can be due to the delay of an API server, the write is sent again: after firstResend, and then after
// twice the previous delay, at most maxResends times.
const (
	firstResend = 10 * time.Millisecond
	maxResends  = 6 // 0.6 seconds
)

// errDenied is the reason for a write that the API server has rejected.
var errDenied = errors.New("the API server rejected the write, because it observes another holder of the lease")

// send sends a write of the term. If the API server has rejected it because of the lease, and the reason can be that
// this replica or the API server has not observed a change of the lease yet, send returns an error. This is the case if
// the term is over, or new. In a new term, send sends the write again before. In any other case, the policy and the
// replica contradict each other, and send returns the response.
// The write is not sent again after the context of the caller has been cancelled.
func (s *serverFence) send(
	caller context.Context, next http.RoundTripper, r *http.Request, t *term,
) (*http.Response, error) {
	if s == nil || t.of.lease == "" {
		return next.RoundTrip(r)
	}
	r = s.sign(r, t)
	for attempt := 0; ; attempt++ {
		response, err := next.RoundTrip(r)
		if err != nil || isProxied(r) || !isDenial(response) || t.check() == nil && !t.isNew() {
			return response, err
		}
		_ = response.Body.Close()
		if attempt == maxResends || !sleep(caller, firstResend<<attempt) || t.check() != nil {
			return nil, notLeading(denial(caller))
		}
		if r = again(r); r == nil {
			return nil, notLeading(errDenied)
		}
	}
}

// denial returns the error for a write that was rejected. It includes the reason if ctx has been cancelled.
func denial(ctx context.Context) error {
	if ctx.Err() == nil {
		return errDenied
	}
	return fmt.Errorf("%w; %w", errDenied, context.Cause(ctx))
}

// isProxied reports whether a Pod, a Service or a Node answers the request instead of the API server.
func isProxied(r *http.Request) bool {
	segments := strings.Split(r.URL.Path, "/")
	for i, segment := range segments[min(2, len(segments)):] {
		if segment == "proxy" && slices.Contains([]string{"pods", "services", "nodes"}, segments[i]) {
			return true
		}
	}
	return false
}

// again returns a copy of a request that was sent, or nil if it cannot be sent again: the body cannot be read again, or
// the request upgrades its connection.
func again(r *http.Request) *http.Request {
	if r.Header.Get("Upgrade") != "" {
		return nil
	}
	copied := r.Clone(r.Context())
	if r.Body == nil || r.Body == http.NoBody {
		return copied
	}
	if r.GetBody == nil {
		return nil
	}
	body, err := r.GetBody()
	if err != nil {
		return nil
	}
	copied.Body = body
	return copied
}

// sleep waits. It returns false if ctx is cancelled before.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// isDenial reports whether the policy has rejected a write. It does not change what can be read from the body.
func isDenial(response *http.Response) bool {
	if response.StatusCode != http.StatusForbidden || response.Body == nil {
		return false
	}
	body := response.Body
	start, err := io.ReadAll(io.LimitReader(body, maxDenial))
	remainder := io.Reader(body)
	if err != nil {
		remainder = failingReader{err}
	}
	response.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(start), remainder), body}
	return bytes.Contains(start, []byte(serverfence.Denied))
}

// failingReader returns an error.
type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }

// isNew reports whether the term began less than the validity of a renewal ago.
func (t *term) isNew() bool { return t.clock.now().Mono.Sub(t.began) < t.validity }
