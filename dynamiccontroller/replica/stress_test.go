package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// checkedRunnable counts invalid starts. A start is invalid if the runnable is already running or if the replica's Run
// has returned.
type checkedRunnable struct {
	running, starts, invalid atomic.Int64
	returned                 *atomic.Bool
}

func (c *checkedRunnable) Run(ctx context.Context) error {
	if c.running.Add(1) > 1 || c.returned.Load() {
		c.invalid.Add(1)
	}
	c.starts.Add(1)
	<-ctx.Done()
	c.running.Add(-1)
	return ctx.Err()
}

func TestReplica_ConcurrentUse(t *testing.T) {
	for round := range 150 {
		synctest.Test(t, func(t *testing.T) {
			u := &concurrentUse{t: t, round: round, server: &fakeServer{}}
			u.rig = newRig(t, u.server, "a", func(o *Options) {
				if round%3 == 0 {
					withoutElection(o)
				}
			})
			u.run()
			u.check()
		})
	}
}

// concurrentUse calls Register, Run and the getters of a replica concurrently. Meanwhile, the lease is lost and Run is
// stopped.
type concurrentUse struct {
	t        *testing.T
	round    int
	server   *fakeServer
	rig      *rig
	returned atomic.Bool

	mu          sync.Mutex // guards the fields below
	leaderGated []*checkedRunnable
	perReplica  []*checkedRunnable
}

func (u *concurrentUse) run() {
	const registrars = 4
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for i := range registrars {
		all.Go(func() { u.registerMany(i) })
	}
	all.Go(func() {
		defer u.returned.Store(true)
		if err := u.rig.Run(ctx); err != nil {
			u.t.Error(err)
		}
	})
	all.Go(func() {
		for !u.returned.Load() {
			_, _, _ = u.rig.Alive(), u.rig.Ready(), u.rig.Status()
			_ = u.rig.write(ctx)
			if u.round%5 == 1 {
				u.server.delete()
			}
			time.Sleep(time.Millisecond)
		}
	})
	all.Go(func() {
		time.Sleep(time.Duration(u.round%20) * time.Millisecond)
		cancel()
	})
	all.Wait()
}

func (u *concurrentUse) registerMany(registrar int) {
	for i := range 10 {
		c, name := &checkedRunnable{returned: &u.returned}, fmt.Sprintf("%d-%d", registrar, i)
		scope, registered := ScopeLeader, &u.leaderGated
		if i%2 == 0 {
			scope, registered = ScopeReplica, &u.perReplica
		}
		err := u.rig.Register(name, c, scope)
		if err != nil && !errors.Is(err, errStopped) {
			u.t.Error(err)
		}
		if err == nil {
			u.mu.Lock()
			*registered = append(*registered, c)
			u.mu.Unlock()
		}
		if u.round%2 == 0 {
			time.Sleep(time.Duration(registrar+i) * time.Millisecond)
		}
	}
}

func (u *concurrentUse) check() {
	for _, c := range append(u.leaderGated, u.perReplica...) {
		if c.running.Load() != 0 || c.invalid.Load() != 0 {
			u.t.Errorf("after Run has returned, %d runs continue and %d starts were invalid, want none",
				c.running.Load(), c.invalid.Load())
		}
	}
	for _, c := range u.perReplica {
		if n := c.starts.Load(); n != 1 {
			u.t.Errorf("a per-replica runnable was started %d times, want once", n)
		}
	}
	if u.server.exists() {
		wantHolder(u.t, u.server, "")
	}
}
