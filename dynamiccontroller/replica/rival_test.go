package replica

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"
	"pgregory.net/rapid"
)

// clientGo is a process with client-go's elector, which campaigns again after each loss.
type clientGo struct {
	lease   *fakeLease
	leading atomic.Bool
	terms   atomic.Int64
	stop    func()
}

func startClientGo(t *testing.T, s *fakeServer) *clientGo {
	c := &clientGo{lease: &fakeLease{server: s, identity: "client-go"}}
	o := testOptions()
	rivalDurations(&o)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: c.lease, LeaseDuration: o.LeaseDuration, RenewDeadline: o.RenewDeadline, RetryPeriod: o.RetryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				if ctx.Err() != nil {
					return
				}
				c.terms.Add(1)
				c.leading.Store(true)
				<-ctx.Done()
				c.leading.Store(false)
			},
			OnStoppedLeading: func() {},
		},
	})
	wantNoError(t, err)
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			elector.Run(ctx)
			time.Sleep(o.RetryPeriod)
		}
	})
	c.stop = func() {
		cancel()
		running.Wait()
	}
	return c
}

// TestL1_ClientGoElectorNeverLeadsAtTheSameTimeInARandomHistory checks that replicas and an elector of client-go do not
// lead at the same time. Only faults that client-go's elector can cope with are injected into it. Nobody else changes
// the lease, because client-go's elector acquires an emptied lease at once.
func TestL1_ClientGoElectorNeverLeadsAtTheSameTimeInARandomHistory(t *testing.T) {
	var rivals, own int64
	rapid.Check(t, func(rt *rapid.T) {
		history := drawRivalHistory(rt)
		var violation string
		synctest.Test(t, func(t *testing.T) {
			s := newRivalry(t)
			violation = s.play(history)
			for _, r := range append(s.crashed, s.rigs[:]...) {
				own += r.Status().Term
			}
			rivals += s.rival.terms.Load()
		})
		if violation != "" {
			rt.Fatalf("%s\n%s", violation, describe(history))
		}
	})
	if rivals == 0 || own == 0 {
		t.Errorf("client-go led %d times, and the replicas led %d times", rivals, own)
	}
}

// rivalry is a simulation with an elector of client-go.
type rivalry struct {
	*simulation
	rival *clientGo
}

func newRivalry(t *testing.T) *rivalry {
	s := &simulation{t: t, server: &fakeServer{}, began: time.Now(), change: []func(*Options){rivalDurations}}
	for i := range s.rigs {
		s.start(i)
	}
	return &rivalry{s, startClientGo(t, s.server)}
}

// play plays the history and returns a violation, or "".
func (s *rivalry) play(history []step) string {
	both := make(chan string, 1)
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { s.watchBoth(done, both) })
	for _, step := range history {
		time.Sleep(step.after)
		if step.replica == len(s.rigs) {
			s.rival.lease.injectRequestFault(step.fault)
		} else {
			s.inject(step)
		}
	}
	s.rival.lease.reconnect()
	for _, r := range s.rigs {
		r.lease.reconnect()
	}
	time.Sleep(40 * time.Second)
	leads := s.check() != "" || s.rival.leading.Load()
	close(done)
	watching.Wait()
	s.rival.stop()
	for _, r := range append(s.crashed, s.rigs[:]...) {
		_ = r.stop()
	}
	select {
	case violation := <-both:
		return violation
	default:
	}
	if s.violation == "" && !leads {
		return "nobody leads at the end"
	}
	return s.violation
}

// watchBoth reports when a replica and client-go's elector lead at the same time, until done is closed.
func (s *rivalry) watchBoth(done <-chan struct{}, both chan<- string) {
	for {
		select {
		case <-done:
			return
		case <-time.After(3 * time.Millisecond):
		}
		if open := s.check(); open != "" && s.rival.leading.Load() {
			select {
			case both <- fmt.Sprintf("after %s: %s and client-go lead", time.Since(s.began), open):
			default:
			}
		}
	}
}

// rivalDurations makes renewals so rare that client-go's elector observes each of them. It compares records in JSON,
// which contains whole seconds.
func rivalDurations(o *Options) {
	o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = 6*time.Second, 4*time.Second, time.Second
}

func drawRivalHistory(t *rapid.T) []step {
	common := []fault{faultDisconnect, faultReconnect, faultLoseResponses, faultFlaky}
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		s := step{
			after:   time.Duration(rapid.IntRange(0, 4000).Draw(t, "ms")) * time.Millisecond,
			replica: rapid.IntRange(0, 3).Draw(t, "replica"), // 3 for client-go
		}
		s.fault = rapid.SampledFrom(common).Draw(t, "fault")
		if s.replica < 3 {
			own := slices.Concat(common, []fault{
				faultSlow, faultHang, faultSuspend, faultWallForward, faultWallBack, faultStop, faultCrash,
			})
			s.fault = rapid.SampledFrom(own).Draw(t, "own fault")
		}
		return s
	}), 5, 40).Draw(t, "history")
}
