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

// Term tells in which term of leading a context was made: a runnable of the leading half is given one that carries it, and
// what is derived from that carries it on. Terms are counted from 1 in each process. ok is false for any other context.
func Term(ctx context.Context) (n int64, ok bool) {
	t, ok := ctx.Value(termKey{}).(*term)
	if !ok {
		return 0, false
	}
	return t.number, true
}

type termKey struct{}

// term is one period of leadership. It begins when the lease has been acquired. It ends once, either because the lease was
// lost or because the lease is about to be released.
type term struct {
	number  int64
	of      *fence
	clock   clock
	certain time.Duration // how long a renewal lasts, counted from when it was sent; 0 without leader election
	began   time.Time
	over    chan struct{} // closed when the term ends

	// state is an immutable snapshot that is read without a lock. It is replaced only by compare-and-swap, and never once
	// it has a cause: a renewal cannot reopen a term that has ended.
	state atomic.Pointer[termState]

	// mu guards the fields below. It is never held while a context is derived or cancelled, because both call methods of
	// the caller's context.
	mu        sync.Mutex
	overdueAt time.Time                           // when overdue was first called after the term should have ended
	end       context.CancelCauseFunc             // of the runnables' context
	inFlight  map[*flight]context.CancelCauseFunc // fenced writes; nil once they have been cancelled
}

// termState is the part of a term that decides whether it is over.
type termState struct {
	renewed    instant // when the last confirmed renewal was sent
	requestErr error   // the error of the last request for the lease, nil if it succeeded
	cause      error   // why the term is over, nil while it lasts
	lost       bool    // whether it is over because the lease was lost
}

type flight struct{ _ byte } // not empty, or all would have one address

func newTerm(number int64, of *fence, renewed instant, certain time.Duration) *term {
	t := &term{
		number: number, of: of, clock: of.clock, certain: certain, began: renewed.mono,
		over: make(chan struct{}), inFlight: map[*flight]context.CancelCauseFunc{},
	}
	t.state.Store(&termState{renewed: renewed})
	return t
}

// termContext is the context of a term's runnables. Its Err checks the clocks: in a process that was stopped and
// continues, Err reports the end of the term before any timer has fired. Done does not check the clocks, nor does a
// derived context with its own cancel function or timeout. It is used by pointer, because contexts must be comparable
// and a struct with a func is not.
type termContext struct {
	context.Context
	term *term
	end  context.CancelCauseFunc // of Context
}

// Err takes no lock of this package, because the context package and callers may call it while they hold locks. Past
// the deadline it ends the context before it returns, so that Done is closed and context.Cause is ErrLeaseLost. Writes
// in flight are cancelled by leadership.lead, which is woken by the end of the term.
func (c *termContext) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	cause := c.term.expire()
	if cause == nil {
		return nil
	}
	c.end(cause)
	return c.Context.Err()
}

// context returns the context for the term's runnables. It ends with the term.
func (t *term) context(parent context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, end := context.WithCancelCause(context.WithValue(parent, termKey{}, t))
	t.mu.Lock()
	t.end = end
	t.mu.Unlock()
	if cause := t.state.Load().cause; cause != nil {
		end(cause)
	}
	return &termContext{ctx, t, end}, end
}

// update replaces the state unless the term is over. It returns the current state and reports whether it was replaced.
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

// renew records a confirmed renewal by the time at which it was sent. It returns an error if the term is over.
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

// hear records the error of a request for the lease. The cause of a later loss includes it.
func (t *term) hear(requestErr error) {
	t.update(func(s *termState) { s.requestErr = requestErr })
}

// check ends the term if it has expired. It returns the cause of the end, or nil if the term is not over.
func (t *term) check() error {
	cause := t.expire()
	if cause != nil {
		t.cutOff()
	}
	return cause
}

// expire is like check but takes no lock. The caller, or the goroutine that waits for over, must call cutOff.
func (t *term) expire() error {
	for {
		s := t.state.Load()
		if s.cause != nil || t.certain == 0 {
			return s.cause
		}
		age := t.clock.since(s.renewed)
		if age < t.certain {
			return nil
		}
		next := *s
		next.lose("the last confirmed renewal was sent %s ago", age.Round(time.Millisecond))
		if t.state.CompareAndSwap(s, &next) { // otherwise it was renewed, or has ended, meanwhile
			close(t.over)
			return next.cause
		}
	}
}

// left returns how long the term lasts if it is not renewed.
func (t *term) left() time.Duration { return t.certain - t.clock.since(t.state.Load().renewed) }

// lose ends the term because another replica may lead. It returns the cause of the end.
func (t *term) lose(why string, args ...any) error {
	return t.close(func(s *termState) { s.lose(why, args...) })
}

func (s *termState) lose(why string, args ...any) {
	s.lost = true
	s.cause = fmt.Errorf("%w: %s", ErrLeaseLost, fmt.Sprintf(why, args...))
	if s.requestErr != nil { // not wrapped, or callers could mistake a Conflict for an error of their own write
		s.cause = fmt.Errorf("%w; the last request: %s", s.cause, s.requestErr.Error())
	}
}

// finish ends the term after its runnables have returned.
func (t *term) finish() {
	_ = t.close(func(s *termState) { s.cause = fmt.Errorf("term %d is over", t.number) })
}

// close ends the term unless it is over. When it returns, the runnables' context and all writes in flight have been
// cancelled.
func (t *term) close(end func(*termState)) error {
	current, ended := t.update(end)
	if ended {
		close(t.over)
	}
	t.cutOff()
	return current.cause
}

// cutOff cancels the runnables' context and all writes in flight. The term must be over. It can be called concurrently, and
// every call returns only after everything has been cancelled.
func (t *term) cutOff() {
	cause := t.state.Load().cause
	t.mu.Lock()
	end, writes := t.end, slices.Collect(maps.Values(t.inFlight))
	t.mu.Unlock()
	if end != nil {
		end(cause)
	}
	for _, cancel := range writes {
		cancel(refusal(cause))
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

// admit lets a write begin unless the term is over. The returned context ends with the term. The caller must call land when
// the write is done.
func (t *term) admit(ctx context.Context) (_ context.Context, land func(), err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	f := &flight{}
	t.mu.Lock()
	if t.inFlight != nil {
		t.inFlight[f] = cancel
	}
	t.mu.Unlock()
	land = func() {
		t.mu.Lock()
		delete(t.inFlight, f)
		t.mu.Unlock()
		cancel(context.Canceled)
	}
	// The clocks are checked after the write was registered: it starts only before the deadline, and is cancelled if
	// the term ends later.
	if err := t.check(); err != nil {
		land()
		return nil, nil, refusal(err)
	}
	return ctx, land, nil
}

// overdue returns an error if the term should have ended some time ago and has not. After a clock has jumped, or the
// process was stopped, it may be called before the goroutine that ends the term has run. The grace period therefore
// starts with the first call that finds the term overdue.
func (t *term) overdue(slack, grace time.Duration) error {
	s := t.state.Load()
	if s.cause != nil || t.certain == 0 {
		return nil
	}
	age := t.clock.since(s.renewed)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case age <= t.certain+slack:
		t.overdueAt = time.Time{}
	case t.overdueAt.IsZero():
		t.overdueAt = time.Now()
	case time.Since(t.overdueAt) >= grace:
		return fmt.Errorf("term %d goes on though its lease was last renewed %s ago", t.number, age.Round(time.Millisecond))
	}
	return nil
}
