package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dynamic-controller/engine/internal/shards"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
)

// drainer is a runnable of shards that records what happens to them.
type drainer struct {
	mu     sync.Mutex // guards the fields below
	hangs  map[int]bool
	events []string
}

func (d *drainer) Run(ctx context.Context) error {
	index, _ := Shard(ctx)
	<-ctx.Done()
	d.record("end %d", index)
	return nil
}

func (d *drainer) record(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.events = append(d.events, fmt.Sprintf(format, args...))
}

func (d *drainer) DrainShard(ctx context.Context, index, _ int) error {
	d.record("drain %d", index)
	d.mu.Lock()
	hangs := d.hangs[index]
	d.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return errors.New("a handler hangs")
	}
	return nil
}

// setHangs makes the drains of these shards hang.
func (d *drainer) setHangs(shards ...int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.hangs)
	for _, i := range shards {
		d.hangs[i] = true
	}
}

func (d *drainer) ResumeShard(index, _ int) { d.record("resume %d", index) }

// of returns the events of a shard.
func (d *drainer) of(index int) (events []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.events {
		var what string
		var n int
		if _, err := fmt.Sscan(e, &what, &n); err == nil && n == index {
			events = append(events, what)
		}
	}
	return events
}

func newDraining(t *testing.T, s *fakeLeases, runs *shardRuns, name string) (*fleetRig, *drainer) {
	r, d := newFleetRig(t, s, runs, name), &drainer{hangs: map[int]bool{}}
	wantNoError(t, r.Register("drainer", d, ScopeShard))
	return r.start(), d
}

// A shard whose work does not return is not moved, and continues. The others are.
func TestFleet_ShardIsMovedOnlyIfItsWorkReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		a, d := newDraining(t, s, runs, "a")
		eventually(t, maxFleetStart, func() bool { return runs.count() == 8 })
		hung := []int{0, 1, 2, 3, 4, 5}
		d.setHangs(hung...)
		runs.resetGaps()
		newDraining(t, s, runs, "b")
		time.Sleep(5 * time.Minute)
		if led := runs.shardsOf("b"); !slices.Equal(led, []int{6, 7}) {
			t.Errorf("b leads %v, want the shards that have drained", led)
		}
		for _, i := range []int{6, 7} {
			if events := d.of(i); !slices.Equal(events, []string{"drain", "end", "resume"}) {
				t.Errorf("shard %d: %v", i, events)
			}
		}
		tried := 0
		for _, i := range hung {
			events := d.of(i)
			tried += len(events) / 2
			if !slices.Equal(events, slices.Repeat([]string{"drain", "resume"}, len(events)/2)) {
				t.Errorf("shard %d: %v", i, events)
			}
			if _, moved := runs.gaps[i]; moved {
				t.Errorf("shard %d was interrupted", i)
			}
		}
		if most := 6 * int(5*time.Minute/(fleet.KeepPeriods*testLeaseDuration)+1); tried == 0 || tried > most {
			t.Errorf("%d drains of hung shards, want at most %d", tried, most)
		}
		if n := a.log.count("Shard not moved, it is kept for some time"); n != tried {
			t.Errorf("logged %d times, want %d", n, tried)
		}
		d.setHangs()
		eventually(t, 5*time.Minute, isBalanced(runs, 8, "a", "b"))
		runs.check(t)
	})
}

// The planned leader ends while the shard drains, or after that. The shard continues.
func TestDrain_ResumesOnce(t *testing.T) {
	for name, hangs := range map[string]bool{"during the drain": true, "after the drain": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				events := &drainer{hangs: map[int]bool{0: hangs}}
				runnables := []namedRunnable{{"drainer", events}, {"other", &worker{}}}
				ended := make(chan struct{}, 1)
				of := shards.Shard{Index: 0, Count: 8}
				d := startDrain(t.Context(), of, runnables, time.Minute, func() { ended <- struct{}{} })
				synctest.Wait()
				if hangs {
					d.cancel()
				}
				<-ended
				d.end()
				if got := events.of(0); !slices.Equal(got, []string{"drain", "resume"}) || (d.err != nil) != hangs {
					t.Errorf("got %v, %v", got, d.err)
				}
			})
		})
	}
}
