package apiproxy

import (
	"context"
	"errors"
	"net/http"
	"sync"
)

// Trap kills a client at one of its calls: give its Wrap to Start. Its methods may be called concurrently.
type Trap struct {
	kill func()

	mu      sync.Mutex // guards what follows
	matches func(Call) bool
	left    int // the calls that match, until it springs; none if it is not set
	after   bool
	caught  *Call
}

// NewTrap returns a trap that is not set. Kill ends the client and returns when it has gone.
func NewTrap(kill func()) *Trap { return &Trap{kill: kill} }

// Set makes the client die at the nth call from now on that matches: before the call is passed on, or when it was carried
// out and the client has yet to see the answer. N counts from one. What was caught before is forgotten.
func (t *Trap) Set(matches func(Call) bool, n int, after bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.matches, t.left, t.after, t.caught = matches, n, after, nil
}

// Caught returns the call at which the client died since the trap was set, or nil.
func (t *Trap) Caught() *Call {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.caught
}

var errCaught = errors.New("the client died at this call")

// Wrap is for Start.
func (t *Trap) Wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		caught, after := t.catch(CallOf(r))
		if !caught {
			return next.RoundTrip(r)
		}
		if after {
			// What is on its way is carried out, whatever becomes of who sent it.
			if answer, err := next.RoundTrip(r.WithContext(context.WithoutCancel(r.Context()))); err == nil {
				_ = answer.Body.Close()
			}
		}
		t.kill()
		return nil, errCaught
	})
}

func (t *Trap) catch(c Call) (caught, after bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left == 0 || !t.matches(c) {
		return false, false
	}
	if t.left--; t.left > 0 {
		return false, false
	}
	t.caught = &c
	return true, t.after
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
