package replica

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
)

const logFailed = "Leader-gated runnable failed"

// onLog calls f when the message is logged for the first time. The code that logs the message continues after f has
// returned.
func onLog(message string, f func()) func(*Options) {
	f = sync.OnceFunc(f)
	return func(o *Options) {
		o.log = funcr.New(func(_, args string) {
			if strings.Contains(args, message) {
				f()
			}
		}, funcr.Options{})
	}
}

// The second runnable fails after the first failure and before the context is cancelled.
func TestRun_ReportsEveryFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := make(chan struct{})
		a := newRig(t, &fakeServer{}, "a", onLog(logFailed, func() {
			close(first)
			time.Sleep(time.Millisecond) // wait until the second runnable has failed
		}))
		a.registerFunc("first", func(context.Context) error { return errBroken })
		a.registerFunc("second", func(context.Context) error {
			<-first
			return errBroken
		})
		wantErrorContains(t, a.start().result(), `"first" failed`, `"second" failed`)
	})
}

func TestL2_ExitOnLossEndsRunIfTheRunnablesReturnAtTheSameTime(t *testing.T) {
	for range 100 { // select chooses at random
		synctest.Test(t, func(t *testing.T) {
			var a *rig
			a = newRig(t, &fakeServer{}, "a", exitOnLoss, stepDown, onLog(logFailed, func() {
				_ = a.leadership.fence.latest().lose("for the test")
			}))
			a.registerFunc("failing", func(context.Context) error { return errBroken })
			a.start()
			time.Sleep(time.Second)
			err := a.stop()
			wantErrorIs(t, err, ErrLeaseLost)
			wantErrorIs(t, err, errBroken)
		})
	}
}

func TestShutdown_TimeoutErrorNamesARunnable(t *testing.T) {
	for range 200 { // the order of two timers that fire at the same time is random
		synctest.Test(t, func(t *testing.T) {
			a := newRig(t, &fakeServer{}, "a")
			a.register("slow", &worker{linger: testShutdownTimeout})
			a.start()
			time.Sleep(time.Second)
			if err := a.stop(); err != nil && !strings.Contains(err.Error(), "slow") {
				t.Fatalf("Run returned %v, want an error that names the slow runnable, or none", err)
			}
		})
	}
}

// The other replica must wait until the lease expires, because the runnable is still running.
func TestStepDown_RunnableThatHangsKeepsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a, b, slow, next := newRig(t, s, "a", stepDown), newRig(t, s, "b"), &worker{linger: 30 * time.Second}, &worker{}
		a.register("slow", slow)
		fail := make(chan struct{})
		a.registerFunc("failing", func(ctx context.Context) error {
			select {
			case <-fail:
				return errBroken
			case <-ctx.Done():
				return nil
			}
		})
		b.register("next", next)
		a.start()
		time.Sleep(time.Second)
		b.start()
		fail <- struct{}{}
		time.Sleep(testShutdownTimeout - time.Millisecond)
		wantNoError(t, a.write(t.Context())) // the lease is renewed
		wantStarts(t, next, 0, 0)
		time.Sleep(2 * time.Millisecond)
		wantErrorIs(t, a.write(t.Context()), ErrLeaseLost)
		wantHolder(t, s, "a")
		eventually(t, maxTakeover, next.isRunning)
		wantStarts(t, slow, 1, 1)
		wantErrorContains(t, a.Alive(), "slow")
		a.wantLog(1, "Runnables did not return in time")
		a.wantLog(0, "Lease lost")
		wantNoError(t, b.stop())
		time.Sleep(time.Minute)
		wantStarts(t, slow, 2, 1)
		slow.setLinger(0)
		wantNoError(t, a.stop())
	})
}
