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

// counted is a runnable that notes what must never be: two lives at once, and one after Run has returned.
type counted struct {
	running, lives, wrong atomic.Int64
	over                  *atomic.Bool
}

func (c *counted) Run(ctx context.Context) error {
	if c.running.Add(1) > 1 || c.over.Load() {
		c.wrong.Add(1)
	}
	c.lives.Add(1)
	<-ctx.Done()
	c.running.Add(-1)
	return ctx.Err()
}

// Register, Run, its end, losses, and whoever asks, all at once.
func TestEverythingMayHappenAtOnce(t *testing.T) {
	const registrars, each = 4, 10
	for round := range 150 {
		synctest.Test(t, func(t *testing.T) {
			s := &server{}
			a := newRig(t, s, "a", func(o *Options) {
				if round%3 == 0 {
					alone(o)
				}
			})
			ctx, cancel := context.WithCancel(context.Background())
			var over, asked atomic.Bool
			var all sync.WaitGroup
			var mu sync.Mutex // guards the two
			var leading, everywhere []*counted
			for i := range registrars {
				all.Go(func() {
					for j := range each {
						c, name := &counted{over: &over}, fmt.Sprintf("%d-%d", i, j)
						register, where := a.Register, &leading
						if j%2 == 0 {
							register, where = a.RegisterWithoutLeaderElection, &everywhere
						}
						switch err := register(name, c); {
						case err == nil:
							mu.Lock()
							*where = append(*where, c)
							mu.Unlock()
						case !errors.Is(err, errEnded):
							t.Error(err)
						}
						if round%2 == 0 {
							time.Sleep(time.Duration(i+j) * time.Millisecond)
						}
					}
				})
			}
			all.Go(func() {
				defer asked.Store(true)
				if err := a.Run(ctx); err != nil {
					t.Error(err)
				}
				over.Store(true)
			})
			all.Go(func() {
				for !asked.Load() {
					_, _, _ = a.Alive(), a.Ready(), a.Status()
					_ = a.write(ctx)
					if round%5 == 1 {
						s.delete()
					}
					time.Sleep(time.Millisecond)
				}
			})
			all.Go(func() {
				time.Sleep(time.Duration(round%20) * time.Millisecond)
				cancel()
			})
			all.Wait()
			for _, c := range append(leading, everywhere...) {
				if c.running.Load() != 0 || c.wrong.Load() != 0 {
					t.Errorf("%d run after the end, %d times it ran as it must not", c.running.Load(), c.wrong.Load())
				}
			}
			for _, c := range everywhere {
				if n := c.lives.Load(); n != 1 {
					t.Errorf("one of the per-replica half had %d lives", n)
				}
			}
			if s.exists() && s.now().HolderIdentity != "" {
				t.Errorf("the lease is held by %q", s.now().HolderIdentity)
			}
		})
	}
}
