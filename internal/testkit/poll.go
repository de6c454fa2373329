package testkit

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// Eventually polls until check returns nil, and returns how long that took. If the time limit is exceeded, it fails the
// test with the last error. It can be called in Cleanup functions, but only from the goroutine of the test.
func Eventually(t testing.TB, within time.Duration, check func() error) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	began := time.Now()
	if err := Poll(ctx, func(context.Context) error { return check() }); err != nil {
		t.Fatal(err)
	}
	return time.Since(began)
}

// Poll calls check with ctx until check returns nil. When ctx is done, Poll calls check once more, because check may
// not depend on ctx. If that call fails as well, Poll returns the last error from before ctx was done. The error text
// includes the time that has passed.
func Poll(ctx context.Context, check func(context.Context) error) error {
	began := time.Now()
	for last := error(nil); ; {
		isLast := ctx.Err() != nil
		err := check(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		passed := time.Since(began)
		if isLast {
			return fmt.Errorf("timed out after %s: %w", passed.Round(time.Millisecond), last)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause(passed)):
		}
	}
}

// pause returns the time until the next check.
func pause(passed time.Duration) time.Duration {
	const shortest, longest = time.Millisecond, 50 * time.Millisecond
	return min(max(shortest, passed/20), longest)
}
