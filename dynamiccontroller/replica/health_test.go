package replica

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

type syncing struct {
	worker
	synced atomic.Bool
}

func (s *syncing) HasSynced() bool { return s.synced.Load() }

func TestReadyDoesNotDependOnLeading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		other := newRig(t, s, "other").start()
		time.Sleep(time.Second)
		r, watches := newRig(t, s, "standby"), &syncing{}
		wantNoError(t, r.RegisterWithoutLeaderElection("watches", watches))
		wantNoError(t, r.RegisterWithoutLeaderElection("plain", &worker{}))
		wantNoError(t, r.Register("lead", &syncing{})) // not asked
		wantSays(t, r.Ready(), "does not run")
		r.start()
		time.Sleep(time.Second)
		wantSays(t, r.Ready(), "not synced: watches")
		watches.synced.Store(true)
		wantNoError(t, r.Ready())
		if got := r.Status(); got.Leading || got.Term != 0 || got.Leader != other.Status().Identity {
			t.Errorf("status %+v", got)
		}
		wantNoError(t, other.stop())
		time.Sleep(2 * time.Second)
		wantNoError(t, r.Ready())
		wantNoError(t, r.stop())
		wantSays(t, r.Ready(), "does not run")
	})
}

func TestAliveFailsWhereATermGoesOnWithoutItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &server{}, "a")
		wantNoError(t, r.Alive())
		// Nothing renews this one and nothing looks at its clocks, as if those goroutines were stuck.
		lost := r.leads.fence.open(r.leads.fence.clock.now(), r.options)
		time.Sleep(3 * time.Second)
		wantNoError(t, r.Alive())
		time.Sleep(time.Millisecond)
		wantNoError(t, r.Alive()) // what ends it may be about to
		time.Sleep(500 * time.Millisecond)
		wantSays(t, r.Alive(), "term 1", "3.501s ago")
		wantIs(t, lost.check(), ErrLeaseLost)
		wantNoError(t, r.Alive())
	})
}

func TestAliveDoesNotMindAnAPIServerThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &server{}, "a").start()
		time.Sleep(time.Second)
		r.lease.fail()
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			wantNoError(t, r.Alive())
		}
		r.crash()
	})
}

func TestWithoutElectionBothHalvesRunAtOnceAsTermOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		r, w, every := newRig(t, s, "a", alone), &worker{}, &worker{}
		wantNoError(t, r.Register("w", w))
		wantNoError(t, r.RegisterWithoutLeaderElection("every", every))
		wantIs(t, r.write(t.Context()), ErrNotLeading)
		r.start()
		synctest.Wait()
		wantLives(t, w, 1, 1)
		wantLives(t, every, 1, 1)
		r.ahead.Store(int64(time.Hour))
		time.Sleep(10 * time.Hour)
		wantNoError(t, r.write(context.Background()))
		wantNoError(t, r.Alive())
		if got := r.Status(); !got.Leading || got.Term != 1 || got.Leader != got.Identity || w.terms[0] != 1 {
			t.Errorf("status %+v, terms %v", got, w.terms)
		}
		wantNoError(t, r.stop())
		wantIs(t, r.write(context.Background()), ErrNotLeading)
		if s.history() != "" {
			t.Errorf("there was a lease: %s", s.history())
		}
	})
}

func TestAliveLeavesWhatEndsATermItsTurn(t *testing.T) {
	for name, jump := range map[string]func(r *rig){
		"the wall clock is set ahead": func(r *rig) { r.ahead.Store(int64(time.Hour)) },
		"the process was stopped": func(r *rig) { // for longer than the lease lasts: both clocks have gone on, and no timer has fired
			term := r.leads.fence.latest()
			term.update(func(s *termState) {
				s.renewed.mono = s.renewed.mono.Add(-time.Minute)
				s.renewed.wall = s.renewed.wall.Add(-time.Minute)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, &server{}, "a").start()
				time.Sleep(1100 * time.Millisecond)
				jump(r)
				for range 100 {
					wantNoError(t, r.Alive())
					time.Sleep(10 * time.Millisecond)
				}
				wantNoError(t, r.stop())
			})
		})
	}
}
