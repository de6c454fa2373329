package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// stillRunning is the error of a runnable that has left something running.
type stillRunning struct {
	error
	returned chan struct{}
}

func (e stillRunning) Returned() <-chan struct{} { return e.returned }

// beginnings are the times at which a runnable began.
type beginnings struct {
	mu sync.Mutex // guards at
	at []time.Time
}

func (b *beginnings) add() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.at = append(b.at, time.Now())
	return len(b.at)
}

func (b *beginnings) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.at)
}

func (b *beginnings) last() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.at[len(b.at)-1]
}

// A replica loses its Lease while a handler ignores its context, so that its runnable returns before the handler. It
// neither acquires the Lease again nor releases it while the handler is running, although the Lease names it.
func TestL1_LeaseIsNotAcquiredWhileEarlierWorkIsRunning(t *testing.T) {
	for name, test := range map[string]struct {
		known   bool          // the error reports when the work has returned
		returns time.Duration // after the loss; 0 for never
		leads   time.Duration // after the loss, at the earliest; 0 for never
	}{
		"work that returns":      {known: true, returns: 5 * time.Minute, leads: 5 * time.Minute},
		"work that returns soon": {known: true, returns: testRetryPeriod / 10, leads: testRetryPeriod / 10},
		"work that hangs":        {known: true},
		"work that is not known": {leads: testLeaseDuration + 4*testRetryPeriod},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &fakeServer{}
				a := newRig(t, s, "a")
				left := stillRunning{errors.New("a handler is still running"), make(chan struct{})}
				began := &beginnings{}
				a.registerFunc("work", func(ctx context.Context) error {
					n := began.add()
					<-ctx.Done()
					switch {
					case n > 1:
						return nil
					case test.known:
						return left
					default:
						return left.error
					}
				})
				a.start()
				eventually(t, maxAcquire, func() bool { return began.count() == 1 })
				a.lease.disconnect()
				eventually(t, time.Minute, func() bool { return !a.Status().Leading })
				synctest.Wait()
				lost := time.Now()
				a.lease.reconnect()
				if test.returns > 0 {
					time.AfterFunc(test.returns, func() { close(left.returned) })
				}
				if test.leads == 0 {
					time.Sleep(time.Hour)
					wantErrorContains(t, a.Alive(), "work")
					if n := began.count(); n > 1 {
						t.Errorf("the replica led %d times", n)
					}
					wantErrorContains(t, a.stop(), "has not returned", "work")
					wantHolder(t, s, "a") // the handler is still running
					return
				}
				eventually(t, test.leads+2*testLeaseDuration, func() bool { return began.count() == 2 })
				wantNoError(t, a.Alive())
				if after := began.last().Sub(lost); after < test.leads {
					t.Errorf("the replica led again %s after the loss, want at least %s", after, test.leads)
				}
				wantNoError(t, a.stop())
				wantReleased(t, s)
			})
		})
	}
}

func TestLeftIn_FindsAllWorkInAnError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a, b := make(chan struct{}), make(chan struct{})
	plain, running := errors.New("plain"), stillRunning{errors.New("a"), a}
	for name, test := range map[string]struct {
		err  error
		want []<-chan struct{}
	}{
		"a clean error":                   {fmt.Errorf("stop: %w", context.Canceled), nil},
		"an unclean error":                {plain, []<-chan struct{}{nil}},
		"an unclean error, wrapped":       {fmt.Errorf("stop: %w", plain), []<-chan struct{}{nil}},
		"work":                            {fmt.Errorf("stop: %w", running), []<-chan struct{}{a}},
		"work of two":                     {errors.Join(running, stillRunning{plain, b}), []<-chan struct{}{a, b}},
		"work and a clean error":          {errors.Join(running, context.Canceled), []<-chan struct{}{a}},
		"work and an unclean error":       {errors.Join(plain, running), []<-chan struct{}{nil, a}},
		"work and another one, wrapped":   {fmt.Errorf("stop: %w, %w", running, plain), []<-chan struct{}{a, nil}},
		"a clean error that reports work": {stillRunning{context.Canceled, b}, []<-chan struct{}{b}},
	} {
		e := runToExit(ctx, RunFunc(func(context.Context) error { return test.err }))
		if !slices.Equal(e.left, test.want) || e.clean != (test.want == nil) {
			t.Errorf("%s: got %v, clean %t, want %v", name, e.left, e.clean, test.want)
		}
	}
}

// The same holds for a shard: another replica can lead it, but not the one in which a handler is running.
func TestH4_ShardIsNotAcquiredWhileEarlierWorkIsRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		r := newFleetRig(t, s, runs, "a")
		left := stillRunning{errors.New("a handler is still running"), make(chan struct{})}
		var begins atomic.Int64
		wantNoError(t, r.Register("engine", RunFunc(func(ctx context.Context) error {
			index, _ := Shard(ctx)
			first := index == 0 && begins.Add(1) == 1
			<-ctx.Done()
			if first {
				return left
			}
			return nil
		}), ScopeShard))
		r.start()
		leads := func(index int) bool { return runs.of(index) == "a" }
		eventually(t, time.Minute, func() bool { return leads(0) && leads(1) })
		r.client.down.Store(true)
		eventually(t, time.Minute, func() bool { return !leads(0) && !leads(1) })
		r.client.down.Store(false)
		eventually(t, time.Minute, func() bool { return leads(1) })
		time.Sleep(time.Hour)
		if leads(0) || begins.Load() != 1 {
			t.Errorf("shard 0 was led %d times while a handler of it was running", begins.Load())
		}
		wantNoError(t, r.Alive()) // another replica could lead the shard
		if slices.Contains(*r.member.shards.synced.Load(), 0) {
			t.Error("the replica reports that it could lead the shard")
		}
		close(left.returned)
		eventually(t, time.Minute, func() bool { return leads(0) })
		wantNoError(t, r.stop())
	})
}
