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

	unreserved sync.Mutex // see Unreserved

	mu     sync.Mutex // guards the fields below
	free   int64      // free bytes of the shared part
	held   map[Owner]int64
	ofType map[string]int64 // held bytes by type
}

// Owner is on whose behalf memory is reserved.
type Owner struct{ Type, Namespace string }

// allowances is the fraction of a budget that is divided into the allowances.
const allowances = 1. / 4

// The shared bytes that an owner and a type can hold, relative to the free ones.
const ownerThreshold, typeThreshold = 1.5, 3

// NewBudget returns a budget of the given number of bytes for at most workers concurrent reservations. A budget of 0
// bytes grants nothing.
func NewBudget(bytes int64, workers int) *Budget {
	allowance := int64(float64(bytes)*allowances) / int64(max(workers, 1))
	shared := bytes - allowance*int64(max(workers, 1))
	return &Budget{
		allowance: allowance, shared: shared, free: shared, held: map[Owner]int64{}, ofType: map[string]int64{},
	}
}

// Unreserved calls f unless another call is running, and reports whether it did. It is for requests that report a lack
// of memory, for which no memory can be reserved. A nil Budget always calls f.
func (b *Budget) Unreserved(f func()) bool {
	if b != nil {
		if !b.unreserved.TryLock() {
			return false
		}
		defer b.unreserved.Unlock()
	}
	f()
	return true
}

// Largest returns the maximum size of a reservation. It is less than an owner can hold, so that a large reservation
// need not wait until no other owner holds any memory.
func (b *Budget) Largest() int64 { return b.allowance + b.shared/2 }

// take takes shared bytes for an owner, or returns false if they are not available at the moment.
func (b *Budget) take(owner Owner, bytes int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	free := float64(b.free - bytes)
	if float64(b.held[owner]+bytes) > ownerThreshold*free || float64(b.ofType[owner.Type]+bytes) > typeThreshold*free {
		return false
	}
	b.free -= bytes
	b.held[owner] += bytes
	b.ofType[owner.Type] += bytes
	return true
}

func (b *Budget) giveBack(owner Owner, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += bytes
	if b.held[owner] -= bytes; b.held[owner] <= 0 {
		delete(b.held, owner)
	}
	if b.ofType[owner.Type] -= bytes; b.ofType[owner.Type] <= 0 {
		delete(b.ofType, owner.Type)
	}
}

// Reservation is the memory that one reconcile holds. A nil Reservation is unlimited. A Reservation is safe for
// concurrent use by the requests of its reconcile, except for lists.
type Reservation struct {
	budget *Budget
	owner  Owner
	cancel context.CancelCauseFunc

	mu    sync.Mutex // guards the fields below
	err   error      // the error of Grow that cancelled the context
	bytes int64
	taken int64 // shared bytes
	least int64 // the minimum of taken
	page  int64 // bytes of the current page, see Transport.ReduceItem
}

type contextKey struct{}

// Reserve returns an empty reservation and a context with it. The caller must release the reservation. If the
// reservation cannot grow, the context is cancelled with the error as its cause. A nil Budget is unlimited.
func (b *Budget) Reserve(ctx context.Context, owner Owner) (context.Context, *Reservation) {
	if b == nil {
		return ctx, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	r := &Reservation{budget: b, owner: owner, cancel: cancel}
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
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return r.err
	}
	if r.err = r.growLocked(bytes); r.err != nil {
		r.cancel(r.err)
	}
	return r.err
}

func (r *Reservation) growLocked(bytes int64) error {
	largest := r.budget.Largest()
	if r.bytes+bytes > largest {
		return &TooLargeError{Needed: r.bytes + bytes, Limit: largest}
	}
	if missing := r.bytes + bytes - r.budget.allowance - r.taken; missing > 0 {
		more := max(missing, min(step, largest-r.budget.allowance-r.taken))
		if !r.budget.take(r.owner, more) {
			if more = missing; !r.budget.take(r.owner, more) {
				return &BusyError{Needed: r.bytes + bytes}
			}
		}
		r.taken += more
	}
	r.bytes += bytes
	return nil
}

// Claim sets memory aside, so that Grow succeeds until the reservation has reached this size: preferred bytes or, if
// they are not available, least bytes. If those are not available either, Claim cancels the context and returns a
// [*BusyError], like Grow. It is called before the first call to Grow. A reconcile that has failed because of a lack of
// memory can claim it before it starts again. Without Claim, many reconciles could each hold a part of what they need,
// and none would get the rest.
func (r *Reservation) Claim(least, preferred int64) error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, bytes := range []int64{preferred, least} {
		shared := min(bytes, r.budget.Largest()) - r.budget.allowance
		if shared <= 0 {
			return nil
		}
		if r.budget.take(r.owner, shared) {
			r.taken, r.least = shared, shared
			return nil
		}
	}
	r.err = &BusyError{Needed: least}
	r.cancel(r.err)
	return r.err
}

// Shrink removes bytes from the reservation.
func (r *Reservation) Shrink(bytes int64) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bytes -= bytes
	needed := max(r.bytes-r.budget.allowance, r.least)
	if excess := r.taken - needed; excess >= step {
		r.budget.giveBack(r.owner, excess)
		r.taken = needed
	}
}

// Release removes all bytes and cancels the reservation's context.
func (r *Reservation) Release() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.budget.giveBack(r.owner, r.taken)
	r.bytes, r.taken, r.least, r.page = 0, 0, 0, 0
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
