package memory

import (
	"context"
	"fmt"
	"sync"
)

// Budget is the memory that concurrent reconciles can reserve. It is safe for concurrent use.
type Budget struct {
	allowance int64 // bytes of each reservation that are always granted
	shared    int64 // the size of the shared part in bytes

	mu   sync.Mutex // guards the fields below
	free int64      // free bytes of the shared part
	held map[string]int64
}

// unshared is the part of a budget that is divided into the allowances: one quarter.
const unshared = 4

// threshold limits the shared bytes that a class can hold, relative to the free ones.
const threshold = 2

// NewBudget returns a budget of the given number of bytes for at most workers concurrent reservations.
func NewBudget(bytes int64, workers int) *Budget {
	allowance := bytes / unshared / int64(max(workers, 1))
	shared := bytes - allowance*int64(max(workers, 1))
	return &Budget{allowance: allowance, shared: shared, free: shared, held: map[string]int64{}}
}

// Largest returns the maximum size of a reservation. It is less than a class can hold, so that a large reservation need
// not wait until no other class holds any memory.
func (b *Budget) Largest() int64 { return b.allowance + b.shared/2 }

// take takes shared bytes for a class, or returns false if they are not available at the moment.
func (b *Budget) take(class string, bytes int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held[class]+bytes > threshold*(b.free-bytes) {
		return false
	}
	b.free -= bytes
	b.held[class] += bytes
	return true
}

func (b *Budget) giveBack(class string, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += bytes
	if b.held[class] -= bytes; b.held[class] <= 0 {
		delete(b.held, class)
	}
}

// Reservation is the memory that one reconcile holds. A nil Reservation is unlimited. A Reservation must not be used
// concurrently.
type Reservation struct {
	budget *Budget
	class  string
	cancel context.CancelCauseFunc
	err    error // the error of Grow that cancelled the context
	bytes  int64
	taken  int64 // shared bytes
	least  int64 // the minimum of taken
}

type contextKey struct{}

// Reserve returns an empty reservation and a context with it. The caller must release the reservation. If the
// reservation cannot grow, the context is cancelled with the error as its cause. Reservations of one class share a
// limit. A nil Budget is unlimited.
func (b *Budget) Reserve(ctx context.Context, class string) (context.Context, *Reservation) {
	if b == nil {
		return ctx, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	r := &Reservation{budget: b, class: class, cancel: cancel}
	return context.WithValue(ctx, contextKey{}, r), r
}

// FromContext returns the reservation of a context, or nil if it has none.
func FromContext(ctx context.Context) *Reservation {
	r, _ := ctx.Value(contextKey{}).(*Reservation)
	return r
}

// Without returns a context without a reservation, for a request in another goroutine.
func Without(ctx context.Context) context.Context {
	return context.WithValue(ctx, contextKey{}, (*Reservation)(nil))
}

// step is the number of shared bytes that are taken or given back at once, to save calls.
const step = 256 << 10

// Grow adds bytes to the reservation. If they are not available, it adds nothing, cancels the reservation's context and
// returns a [*BusyError] or a [*TooLargeError], as do all later calls.
func (r *Reservation) Grow(bytes int64) error {
	switch {
	case r == nil:
		return nil
	case r.err != nil:
		return r.err
	}
	if r.err = r.grow(bytes); r.err != nil {
		r.cancel(r.err)
	}
	return r.err
}

func (r *Reservation) grow(bytes int64) error {
	largest := r.budget.Largest()
	if r.bytes+bytes > largest {
		return &TooLargeError{Needed: r.bytes + bytes, Limit: largest}
	}
	if missing := r.bytes + bytes - r.budget.allowance - r.taken; missing > 0 {
		more := max(missing, min(step, largest-r.budget.allowance-r.taken))
		if !r.budget.take(r.class, more) {
			if more = missing; !r.budget.take(r.class, more) {
				return &BusyError{Needed: r.bytes + bytes}
			}
		}
		r.taken += more
	}
	r.bytes += bytes
	return nil
}

// Claim sets bytes aside, so that Grow succeeds until the reservation has reached this size. If they are not available,
// Claim cancels the context and returns a [*BusyError], like Grow. It is called before the first call to Grow. A
// reconcile that has failed because of a lack of memory can claim it before it starts again. Without Claim, many
// reconciles could each hold a part of what they need, and none would get the rest.
func (r *Reservation) Claim(bytes int64) error {
	if r == nil {
		return nil
	}
	shared := min(bytes, r.budget.Largest()) - r.budget.allowance
	if shared <= 0 {
		return nil
	}
	if !r.budget.take(r.class, shared) {
		r.err = &BusyError{Needed: bytes}
		r.cancel(r.err)
		return r.err
	}
	r.taken, r.least = shared, shared
	return nil
}

// Shrink removes bytes from the reservation.
func (r *Reservation) Shrink(bytes int64) {
	if r == nil {
		return
	}
	r.bytes -= bytes
	needed := max(r.bytes-r.budget.allowance, r.least)
	if excess := r.taken - needed; excess >= step {
		r.budget.giveBack(r.class, excess)
		r.taken = needed
	}
}

// Release removes all bytes and cancels the reservation's context.
func (r *Reservation) Release() {
	if r == nil {
		return
	}
	r.budget.giveBack(r.class, r.taken)
	r.bytes, r.taken, r.least = 0, 0, 0
	r.cancel(nil)
}

// BusyError is returned if other reconciles hold the memory at the moment.
type BusyError struct{ Needed int64 } // in bytes; the size of the reservation that was not available

func (*BusyError) Error() string { return "other reconciles use the memory at the moment" }

// TooLargeError is returned if a reconcile needs more memory than a reservation can have.
type TooLargeError struct{ Needed, Limit int64 } // in bytes

func (e *TooLargeError) Error() string {
	const mebi = 1 << 20
	return fmt.Sprintf("at least %.1f MiB of memory is needed, and the maximum is %.1f MiB",
		max(float64(e.Needed), float64(e.Limit)+mebi/10)/mebi, float64(e.Limit)/mebi)
}
