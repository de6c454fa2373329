package testkit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fatal records the arguments of Fatal and ends the goroutine like the method of testing.T.
type fatal struct {
	testing.TB
	err error
}

func (f *fatal) Fatal(args ...any) {
	f.err = args[0].(error)
	f.SkipNow()
}

func TestEventually_ReturnsWhenTheCheckSucceeds(t *testing.T) {
	for _, after := range []time.Duration{0, time.Millisecond, time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			took := Eventually(t, time.Minute, func() error {
				if time.Since(began) < after {
					return errors.New("too early")
				}
				return nil
			})
			if latest := after + after/20 + time.Millisecond; took < after || took > latest {
				t.Errorf("took %s, want at least %s and at most %s", took, after, latest)
			}
		})
	}
}

func TestEventually_FailsWithTheLastError(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	var f *fatal
	t.Run("", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f = &fatal{TB: t}
			began := time.Now()
			Eventually(f, time.Minute, func() error {
				if time.Since(began) < time.Second {
					return first
				}
				return second
			})
		})
	})
	if !errors.Is(f.err, second) || f.err.Error() != "timed out after 1m0s: second" {
		t.Errorf("the test failed with %v", f.err)
	}
}

func TestPoll_ReturnsTheErrorFromBeforeTheContextWasDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		failure := errors.New("on purpose")
		err := Poll(ctx, func(ctx context.Context) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return failure
		})
		if !errors.Is(err, failure) {
			t.Errorf("got error %v, want %v", err, failure)
		}
	})
}
