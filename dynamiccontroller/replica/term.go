package replica

import (
	"context"
	"fmt"
	"sync"
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

// term is one stretch of leading: it begins when the lease is won and is over, once, when it is lost or given back.
type term struct {
	number  int64
	of      *fence
	clock   clock
	certain time.Duration // after a renewal was sent; 0 without an election
	over    chan struct{} // closed with the term
	began   time.Time

	mu        sync.Mutex                          // guards what follows
	renewed   instant                             // when the last confirmed renewal was sent
	trouble   error                               // what came of the last request for the lease, nil if it succeeded
	overdueAt time.Time                           // when the term was first seen to go on for too long
	cause     error                               // why it is over
	lost      bool                                // over by a loss
	end       context.CancelCauseFunc             // of the runnables' context
	inFlight  map[*flight]context.CancelCauseFunc // fenced writes
}

type flight struct{ _ byte } // not empty, or all would have one address

// termContext is the context of a term's runnables. Whoever asks it whether it has ended looks at the clocks: a process
// that was stopped and goes on learns that its term is over before any timer has fired. Done has no such moment, nor has
// a context that is derived with a cancel of its own.
type termContext struct {
	context.Context
	term *term
}

func (c termContext) Err() error {
	_ = c.term.check()
	return c.Context.Err()
}

// context returns the context for the term's runnables. It ends with the term if that is lost.
func (t *term) context(parent context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, end := context.WithCancelCause(context.WithValue(parent, termKey{}, t))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = end
	if t.lost {
		end(t.cause)
	}
	return termContext{ctx, t}, end
}

// renew notes a confirmed renewal by when it was sent. It is an error once the term is over: what came too late changes
// nothing, as a fence that has closed does not open again.
func (t *term) renew(sent instant) error {
	if err := t.check(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cause != nil {
		return t.cause
	}
	t.renewed, t.trouble, t.overdueAt = sent, nil, time.Time{}
	return nil
}

// hear notes what is wrong with the lease, for the cause of a loss to say.
func (t *term) hear(trouble error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trouble = trouble
}

// check ends the term if it may have expired by now, on either clock.
func (t *term) check() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.checkLocked()
}

func (t *term) checkLocked() error {
	if t.cause == nil && t.certain > 0 {
		if age := t.clock.since(t.renewed); age >= t.certain {
			t.loseLocked("the last confirmed renewal was sent %s ago", age.Round(time.Millisecond))
		}
	}
	return t.cause
}

// left is for how long the term lasts if nothing renews it.
func (t *term) left() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.certain - t.clock.since(t.renewed)
}

// lose ends the term: another replica may lead.
func (t *term) lose(why string, args ...any) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.loseLocked(why, args...)
	return t.cause
}

func (t *term) loseLocked(why string, args ...any) {
	cause := fmt.Errorf("%w: %s", ErrLeaseLost, fmt.Sprintf(why, args...))
	if t.trouble != nil { // not wrapped: a cause that is a Conflict, say, would be taken for the work's own
		cause = fmt.Errorf("%w; the last request: %s", cause, t.trouble.Error())
	}
	t.closeLocked(true, cause)
}

// finish ends the term after its runnables have returned.
func (t *term) finish() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closeLocked(false, fmt.Errorf("term %d is over", t.number))
}

// closeLocked is the one place where a term ends: the runnables' context, and every write on its way.
func (t *term) closeLocked(lost bool, cause error) {
	if t.cause != nil {
		return
	}
	t.cause, t.lost = cause, lost
	close(t.over)
	if t.end != nil {
		t.end(cause)
	}
	for _, cancel := range t.inFlight {
		cancel(refusal(cause))
	}
	t.inFlight = nil
}

// loss is why the term was lost, nil if it was not.
func (t *term) loss() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.lost {
		return nil
	}
	return t.cause
}

// admit lets one write begin, unless the term is over. Its context ends with the term; land must be called when it is done.
func (t *term) admit(ctx context.Context) (_ context.Context, land func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.checkLocked(); err != nil {
		return nil, nil, refusal(err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	f := &flight{}
	t.inFlight[f] = cancel
	return ctx, func() {
		t.mu.Lock()
		delete(t.inFlight, f)
		t.mu.Unlock()
		cancel(context.Canceled)
	}, nil
}

// overdue says what is wrong with a term that should have been seen to be over, a grace ago. After a clock has jumped or
// the process was stopped it may be asked before whoever ends the term had its turn: it counts from when it was first
// asked.
func (t *term) overdue(slack, grace time.Duration) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cause != nil || t.certain == 0 {
		return nil
	}
	age := t.clock.since(t.renewed)
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
