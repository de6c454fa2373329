package memory

import (
	"context"
	"errors"
	"testing"
)

const mib = 1 << 20

func mustGrow(t *testing.T, r *Reservation, bytes int64) {
	t.Helper()
	if err := r.Grow(bytes); err != nil {
		t.Fatal(err)
	}
}

func isBusy(err error) bool { _, is := errors.AsType[*BusyError](err); return is }

func TestReservation_AllowanceIsAlwaysGranted(t *testing.T) {
	const workers = 4
	b := NewBudget(16*mib, workers) // an allowance of 1 MiB for each worker, and 12 MiB to share
	_, hostile := b.Reserve(t.Context(), Owner{Type: "hostile"})
	for hostile.Grow(mib/4) == nil {
		continue // take as much as possible
	}
	for range workers - 1 {
		_, other := b.Reserve(t.Context(), Owner{Type: "other"})
		mustGrow(t, other, mib)
	}
}

func TestReservation_OwnersShareTheRest(t *testing.T) {
	b := NewBudget(160*mib, 40) // an allowance of 1 MiB for each worker, and 120 MiB to share
	take := func(owner Owner) (taken int64) {
		for {
			_, r := b.Reserve(t.Context(), owner)
			if r.Claim(2*mib, 2*mib) != nil { // 1 MiB of the shared part
				return taken
			}
			taken++
		}
	}
	for _, test := range []struct {
		owner Owner
		want  int64
	}{
		{Owner{"a", "one"}, 72},  // 60%
		{Owner{"a", "two"}, 18},  // together 75%
		{Owner{"a", "three"}, 0}, // the type has no more
		{Owner{"b", "one"}, 18},  // 60% of what is left
		{Owner{"c", "one"}, 7},
		{Owner{"a", "one"}, 0},
	} {
		if taken := take(test.owner); taken != test.want {
			t.Errorf("%v got %d MiB, want %d", test.owner, taken, test.want)
		}
	}
}

func TestReservation_FailureCancelsTheContext(t *testing.T) {
	b := NewBudget(16*mib, 4)
	_, first := b.Reserve(t.Context(), Owner{Type: "a"})
	mustGrow(t, first, 6*mib)
	ctx, second := b.Reserve(t.Context(), Owner{Type: "a"})
	mustGrow(t, second, mib)
	if err := second.Grow(5 * mib); !isBusy(err) || !isBusy(context.Cause(ctx)) {
		t.Errorf("got %v and the cause %v", err, context.Cause(ctx))
	}
	if err := second.Grow(1); !isBusy(err) {
		t.Errorf("got %v after a failure", err)
	}
	if FromContext(ctx) != second || FromContext(t.Context()) != nil {
		t.Error("the context has a different reservation")
	}
	ctx, third := b.Reserve(t.Context(), Owner{Type: "a"})
	var tooLarge *TooLargeError
	if err := third.Grow(b.Largest() + 1); !errors.As(err, &tooLarge) || context.Cause(ctx) != err {
		t.Errorf("got %v and the cause %v", err, context.Cause(ctx))
	}
}

func TestReservation_ReleasedMemoryIsAvailable(t *testing.T) {
	b := NewBudget(16*mib, 4)
	for range 100 {
		ctx, r := b.Reserve(t.Context(), Owner{Type: "a"})
		mustGrow(t, r, 6*mib)
		r.Shrink(5 * mib)
		_, other := b.Reserve(t.Context(), Owner{Type: "a"})
		mustGrow(t, other, 6*mib)
		other.Release()
		mustGrow(t, r, 5*mib)
		r.Release()
		if ctx.Err() == nil {
			t.Fatal("the context of a released reservation is not cancelled")
		}
	}
	if b.free != b.shared || len(b.held) != 0 || len(b.ofType) != 0 {
		t.Errorf("%d of %d bytes are free, and %v are held", b.free, b.shared, b.held)
	}
}

func TestReservation_ClaimIsKeptUntilTheRelease(t *testing.T) {
	b := NewBudget(16*mib, 4)
	_, r := b.Reserve(t.Context(), Owner{Type: "a"})
	if err := r.Claim(6*mib, 6*mib); err != nil {
		t.Fatal(err)
	}
	mustGrow(t, r, 6*mib)
	r.Shrink(6 * mib)
	_, other := b.Reserve(t.Context(), Owner{Type: "a"})
	if err := other.Grow(6 * mib); !isBusy(err) {
		t.Errorf("got %v, although the memory has been claimed", err)
	}
	mustGrow(t, r, 6*mib)
	other.Release()
	r.Release()
	if b.free != b.shared {
		t.Errorf("%d of %d bytes are free", b.free, b.shared)
	}
}

func TestReservation_ClaimsLessIfThePreferredSizeIsNotAvailable(t *testing.T) {
	b := NewBudget(16*mib, 4) // an owner can hold 7.2 MiB of the shared part
	_, first := b.Reserve(t.Context(), Owner{Type: "a"})
	mustGrow(t, first, 3*mib)
	for _, test := range []struct {
		least, preferred, want int64 // want is what remains claimed
	}{{2 * mib, 4 * mib, 3 * mib}, {2 * mib, 7 * mib, mib}, {mib / 2, mib, 0}} {
		_, r := b.Reserve(t.Context(), Owner{Type: "a"})
		if err := r.Claim(test.least, test.preferred); err != nil || r.taken != test.want {
			t.Errorf("for %d or %d bytes, got %d: %v", test.least, test.preferred, r.taken, err)
		}
		r.Release()
	}
	_, r := b.Reserve(t.Context(), Owner{Type: "a"})
	if err := r.Claim(7*mib, 7*mib); !isBusy(err) {
		t.Errorf("got %v", err)
	}
}

func TestReservation_NilIsUnlimited(t *testing.T) {
	var b *Budget
	ctx, r := b.Reserve(t.Context(), Owner{Type: "a"})
	defer r.Release()
	if err := errors.Join(r.Claim(1<<60, 1<<60), r.Grow(1<<60)); err != nil || ctx != t.Context() {
		t.Errorf("got %v", err)
	}
	r.Shrink(1 << 60)
}
