package apiproxy

import (
	"context"
	"errors"
	"net/http"
	"sync"
)

// Trap stops a client at one of the client's calls. Pass the Wrap method to Start. All methods can be called
// concurrently.
type Trap struct {
	kill func()

	mu      sync.Mutex // Guards the fields below.
	matches func(Call) bool
	left    int // The number of matching calls until the client is stopped. Zero if the trap is not set.
	after   bool
	caught  *Call
	stops   bool // Whether the client is being stopped.
}

// NewTrap returns a trap that is not set. The kill function must stop the client and wait until it has stopped.
func NewTrap(kill func()) *Trap { return &Trap{kill: kill} }

// Set makes the trap stop the client at the nth matching call after Set. If n is 1, the client is stopped at the first
// matching call. Matching calls that the client has sent at the same time, and that arrive later, are not forwarded. If
// after is false, the call is not forwarded. If after is true, the API server processes the call, but the client does
// not receive the response. Set also resets the result of Caught.
func (t *Trap) Set(matches func(Call) bool, n int, after bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.matches, t.left, t.after, t.caught = matches, n, after, nil
}

// Caught returns the call at which the client was stopped, or nil if this has not happened since Set.
func (t *Trap) Caught() *Call {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.caught
}

var errCaught = errors.New("the client was stopped at this call")

// Wrap wraps the transport of a proxy. Pass this method to Start.
func (t *Trap) Wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		caught, after, late := t.catch(CallOf(r))
		if late {
			return nil, errCaught
		}
		if !caught {
			return next.RoundTrip(r)
		}
		defer t.stopped()
		if after {
			// The API server processes a request that has been sent, even if the client is then stopped.
			if answer, err := next.RoundTrip(r.WithContext(context.WithoutCancel(r.Context()))); err == nil {
				_ = answer.Body.Close()
			}
		}
		t.kill()
		return nil, errCaught
	})
}

// catch reports whether the client must be stopped at a call, or late if it is already being stopped.
func (t *Trap) catch(c Call) (caught, after, late bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.stops:
		return false, false, t.matches(c)
	case t.left == 0 || !t.matches(c):
		return false, false, false
	}
	if t.left--; t.left > 0 {
		return false, false, false
	}
	t.caught, t.stops = &c, true
	return true, t.after, false
}

func (t *Trap) stopped() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stops = false
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
