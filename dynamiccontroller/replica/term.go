package replica

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Term returns the number of the term that ctx belongs to. The contexts of leader-gated runnables carry a term, and so
// do contexts derived from them. Terms are numbered from 1 in each process. Term returns false for any other context.
func Term(ctx context.Context) (n int64, ok bool) {
	t, ok := ctx.Value(termKey{}).(*term)
	if !ok {
		return 0, false
	}
	return t.number, true
}

type termKey struct{}

// term is one period of leadership. It begins when the lease has been acquired. It ends once, either because the
// lease was lost or because the lease is about to be released.
type term struct {
	number   int64
	of       *fence
	clock    clock
	validity time.Duration // of a renewal, from the time at which it was sent; 0 without leader election
	began    time.Time
	over     chan struct{} // closed when the term ends

	// state is an immutable snapshot that is read without a lock. It is replaced only by compare-and-swap, and never again
	// once it has a cause. A renewal therefore cannot reopen a term that has ended.
	state atomic.Pointer[termState]

	// mu guards the fields below. It is never held while a context is derived or cancelled, because both operations call
	// methods of the caller's context.
	mu        sync.Mutex
	overdueAt time.Time                                // time of the first call to overdue that observed an overdue term
	runnables context.Context                          // the runnables' context
	cancel    context.CancelCauseFunc                  // cancels the runnables' context
	inFlight  map[*fencedWrite]context.CancelCauseFunc // nil after the writes have been cancelled
}

// termState is the part of a term that determines whether the term is over.
type termState struct {
	renewed    instant // the time at which the last confirmed renewal was sent
	requestErr error   // the error from the last request for the lease, nil if it succeeded
	cause      error   // the reason for the end of the term, nil if it is not over
	lost       bool    // the term is over because the lease was lost
}

type fencedWrite struct{ _ byte } // not empty, because pointers to empty structs can be equal

func newTerm(number int64, of *fence, renewed instant, validity time.Duration) *term {
	t := &term{
		number: number, of: of, clock: of.clock, validity: validity, began: renewed.Mono,
		over: make(chan struct{}), inFlight: map[*fencedWrite]context.CancelCauseFunc{},
	}
	t.state.Store(&termState{renewed: renewed})
	return t
}

// termContext is the context of a term's runnables. Its Err checks the clocks: in a process that was suspended and
// resumed, Err reports the end of the term before any timer has fired. Done does not check the clocks, nor does a
// derived context with its own cancel function or timeout. Contexts must be comparable. Only pointers to a termContext
// are used as contexts, because the struct itself contains a func and is therefore not comparable.
type termContext struct {
	context.Context
	term   *term
	cancel context.CancelCauseFunc // cancels Context
}

// Err takes no lock of this package, because the context package and callers can call it while they hold locks. After
// the deadline, Err cancels the context before it returns, so that Done is closed and context.Cause returns
// ErrLeaseLost. Writes in flight are cancelled by leadership.lead, which waits for the end of the term.
func (c *termContext) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	cause := c.term.expire()
	if cause == nil {
		return nil
	}
	c.cancel(cause)
	return c.Context.Err()
}

// context returns the context for the term's runnables. It is cancelled when the term ends.
func (t *term) context(parent context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(context.WithValue(parent, termKey{}, t))
	t.mu.Lock()
	t.runnables, t.cancel = ctx, cancel
	t.mu.Unlock()
	if cause := t.state.Load().cause; cause != nil {
		cancel(cause)
	}
	return &termContext{ctx, t, cancel}, cancel
}

// update changes the state unless the term is over. It returns the current state, and reports whether it has changed
// the state.
func (t *term) update(change func(*termState)) (*termState, bool) {
	for {
		old := t.state.Load()
		if old.cause != nil {
			return old, false
		}
		next := *old
		change(&next)
		if t.state.CompareAndSwap(old, &next) {
			return &next, true
		}
	}
}

// renew records a confirmed renewal that was sent at the given time. It returns an error if the term is over.
func (t *term) renew(sent instant) error {
	if err := t.check(); err != nil {
		return err
	}
	current, renewed := t.update(func(s *termState) { s.renewed, s.requestErr = sent, nil })
	if !renewed {
		return current.cause
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.overdueAt = time.Time{}
	return nil
}

// recordRequest records the error from a request for the lease, or nil if the request succeeded. If the lease is lost
// later, the cause includes this error.
func (t *term) recordRequest(requestErr error) {
	t.update(func(s *termState) { s.requestErr = requestErr })
}

// check ends the term if it has expired. It returns the cause of the end, or nil if the term is not over.
func (t *term) check() error {
	cause := t.expire()
	if cause != nil {
		t.cancelAll()
	}
	return cause
}

// expire is like check but takes no lock. The caller, or the goroutine that waits for over, must call cancelAll.
func (t *term) expire() error {
	for {
		s := t.state.Load()
		if s.cause != nil || t.validity == 0 {
			return s.cause
		}
		next := *s
		if age := t.clock.since(s.renewed); age >= t.validity {
			next.lose("the last confirmed renewal was sent %s ago", age.Round(time.Millisecond))
		} else if err := t.of.check(); err != nil {
			next.lose("%s", err)
		} else {
			return nil
		}
		if t.state.CompareAndSwap(s, &next) { // otherwise, the term was renewed or has ended in the meantime
			close(t.over)
			return next.cause
		}
	}
}

// remaining returns the remaining validity of the last renewal.
func (t *term) remaining() time.Duration { return t.validity - t.clock.since(t.state.Load().renewed) }

// lose ends the term because another replica may be able to lead. It returns the cause of the end.
func (t *term) lose(why string, args ...any) error {
	return t.close(func(s *termState) { s.lose(why, args...) })
}

func (s *termState) lose(why string, args ...any) {
	s.lost = true
	s.cause = fmt.Errorf("%w: %s", ErrLeaseLost, fmt.Sprintf(why, args...))
	if s.requestErr != nil { // not wrapped, because callers could mistake a Conflict for an error from their own write
		s.cause = fmt.Errorf("%w; last request: %s", s.cause, s.requestErr.Error())
	}
}

// finish ends the term after its runnables have returned.
func (t *term) finish() {
	_ = t.close(func(s *termState) { s.cause = fmt.Errorf("term %d is over", t.number) })
}

// close ends the term unless it is over. When close returns, the runnables' context and all writes in flight have been
// cancelled.
func (t *term) close(end func(*termState)) error {
	current, ended := t.update(end)
	if ended {
		close(t.over)
	}
	t.cancelAll()
	return current.cause
}

// cancelAll cancels the runnables' context and all writes in flight. The term must be over. cancelAll is safe for
// concurrent use, and every call returns only after all of them have been cancelled.
func (t *term) cancelAll() {
	cause := t.state.Load().cause
	t.mu.Lock()
	cancelRunnables, cancelWrites := t.cancel, slices.Collect(maps.Values(t.inFlight))
	t.mu.Unlock()
	if cancelRunnables != nil {
		cancelRunnables(cause)
	}
	for _, cancel := range cancelWrites {
		cancel(notLeading(cause))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inFlight = nil
}

// loss returns the cause of the end if the lease was lost, or nil.
func (t *term) loss() error {
	if s := t.state.Load(); s.lost {
		return s.cause
	}
	return nil
}

// admit registers a write, or returns an error if the term is over. The returned context is cancelled when the term
// ends. The caller must call done after the write. Writes that are recorded have writeGrace to complete.
func (t *term) admit(ctx context.Context, recorded bool) (_ context.Context, done func(), err error) {
	ctx, cancel := t.writeContext(ctx, recorded)
	w := &fencedWrite{}
	t.mu.Lock()
	if t.inFlight != nil {
		t.inFlight[w] = cancel
	}
	t.mu.Unlock()
	done = func() {
		t.mu.Lock()
		delete(t.inFlight, w)
		t.mu.Unlock()
		cancel(context.Canceled)
	}
	// The clocks are checked after the write was registered. The write therefore starts only before the deadline, and is
	// cancelled if the term ends later.
	if err := t.check(); err != nil {
		done()
		return nil, nil, notLeading(err)
	}
	return ctx, done, nil
}

// writeGrace is the time that a recorded write has to complete after the runnables' context was cancelled.
const writeGrace = 250 * time.Millisecond

// writeContext returns the context for a write. A term can end in order at any time, so that another replica leads. A
// recorded write that has begun is then not cancelled together with its runnable, so that the next leader can wait for
// it.
func (t *term) writeContext(caller context.Context, recorded bool) (context.Context, context.CancelCauseFunc) {
	if !recorded || caller.Err() != nil {
		return context.WithCancelCause(caller)
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(caller))
	stop := context.AfterFunc(caller, func() {
		if t.isEnding() {
			time.AfterFunc(writeGrace, func() { cancel(context.Cause(caller)) })
			return
		}
		cancel(context.Cause(caller))
	})
	return ctx, func(cause error) {
		stop()
		cancel(cause)
	}
}

// isEnding reports whether the runnables' context has been cancelled.
func (t *term) isEnding() bool {
	t.mu.Lock()
	runnables := t.runnables
	t.mu.Unlock()
	return runnables != nil && runnables.Err() != nil
}

// writeError returns the error for an admitted write that has failed with err. If the term is over, it wraps both
// ErrNotLeading and err. The context of the write does not show this: if it is derived from the runnables' context, it
// is cancelled with that context, before the fence cancels it.
func (t *term) writeError(err error) error {
	if cause := t.check(); cause != nil {
		return fmt.Errorf("write interrupted, it may have taken effect: %w: %w", notLeading(cause), err)
	}
	return err
}

// overdue returns an error if the term should have ended some time ago and has not. After a clock has jumped or the
// process was suspended, overdue can be called before the goroutine that ends the term has run. The grace period
// therefore starts with the first call that observes an overdue term.
func (t *term) overdue(slack, grace time.Duration) error {
	s := t.state.Load()
	if s.cause != nil || t.validity == 0 {
		return nil
	}
	age := t.clock.since(s.renewed)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case age <= t.validity+slack:
		t.overdueAt = time.Time{}
	case t.overdueAt.IsZero():
		t.overdueAt = time.Now()
	case time.Since(t.overdueAt) >= grace:
		const format = "term %d continues although its lease was last renewed %s ago"
		return fmt.Errorf(format, t.number, age.Round(time.Millisecond))
	}
	return nil
}
