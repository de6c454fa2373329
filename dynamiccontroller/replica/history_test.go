package replica

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// step is one fault in a history.
type step struct {
	after   time.Duration // after the previous step
	fault   fault
	replica int
}

type fault string

const (
	faultDisconnect    fault = "disconnect"
	faultReconnect     fault = "reconnect"
	faultLoseResponses fault = "lose responses"
	faultSlow          fault = "slow requests"
	faultHang          fault = "requests hang and take effect afterwards"
	faultFlaky         fault = "two of three requests fail"
	faultSuspend       fault = "suspend the elector"
	faultWallForward   fault = "wall clock forward"
	faultWallBack      fault = "wall clock back"
	faultStop          fault = "stop"
	faultCrash         fault = "crash"
	faultDelete        fault = "delete the lease"
	faultEmpty         fault = "empty the lease"
	faultShorten       fault = "shorten the lease"
	faultTake          fault = "take the lease by force"
)

var faults = []fault{
	faultDisconnect, faultReconnect, faultLoseResponses, faultSlow, faultHang, faultFlaky, faultSuspend,
	faultWallForward, faultWallBack, faultStop, faultCrash, faultDelete, faultEmpty, faultShorten, faultTake,
}

func drawHistory(t *rapid.T) []step {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{
			after:   time.Duration(rapid.IntRange(0, 4000).Draw(t, "ms")) * time.Millisecond,
			fault:   rapid.SampledFrom(faults).Draw(t, "fault"),
			replica: rapid.IntRange(0, 2).Draw(t, "replica"),
		}
	}), 5, 40).Draw(t, "history")
}

// TestL1_ReplicasNeverLeadConcurrentlyInARandomHistory checks that at most one replica at a time has an open fence or
// runnables that have not been stopped. It excludes two limitations that the package documentation describes: a release
// by force, and a lease that is deleted before a process has seen it.
func TestL1_ReplicasNeverLeadConcurrentlyInARandomHistory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		history := drawHistory(rt)
		writes := rapid.Bool().Draw(rt, "writes") // writes check the clocks
		var violation string
		synctest.Test(t, func(t *testing.T) { violation = simulate(t, history, writes) })
		if violation != "" {
			rt.Fatalf("%s\n%s", violation, describe(history))
		}
	})
}

// If a leader does not write and its elector is suspended, only a check of the clocks ends its term.
func TestL1_TermEndsWhileTheElectorIsSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		history := []step{{0, faultSuspend, 0}, {6 * time.Second, faultReconnect, 0}}
		if violation := simulate(t, history, false); violation != "" {
			t.Error(violation)
		}
	})
}

func describe(history []step) string {
	var b strings.Builder
	var at time.Duration
	for _, s := range history {
		at += s.after
		fmt.Fprintf(&b, "%8s %s %d\n", at, s.fault, s.replica)
	}
	return b.String()
}

// lingeringWriter is a runnable that returns some time after its context is cancelled. If writes is set, it writes
// until then.
type lingeringWriter struct {
	rig    *rig
	linger time.Duration
	writes bool

	mu   sync.Mutex // guards done
	done <-chan struct{}
}

func (w *lingeringWriter) Run(ctx context.Context) error {
	w.mu.Lock()
	w.done = ctx.Done()
	w.mu.Unlock()
	if !w.writes {
		<-ctx.Done()
		time.Sleep(w.linger)
		return nil
	}
	uncancelled := context.WithoutCancel(ctx)
	var end time.Time
	for end.IsZero() || time.Now().Before(end) {
		_ = w.rig.write(uncancelled)
		if end.IsZero() && ctx.Err() != nil {
			end = time.Now().Add(w.linger)
		}
		time.Sleep(7 * time.Millisecond)
	}
	return nil
}

// isActive reports whether the writer is running and was not stopped.
func (w *lingeringWriter) isActive() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done == nil {
		return false
	}
	select {
	case <-w.done:
		return false
	default:
		return true
	}
}

// isFenceOpen reports whether a write would be admitted. It does not call term.check, because that could end the term.
func (r *rig) isFenceOpen() bool {
	term := r.leadership.fence.latest()
	if term == nil {
		return false
	}
	s := term.state.Load()
	return s.cause == nil && term.clock.since(s.renewed) < term.validity
}

// simulation runs three replicas with one lease.
type simulation struct {
	t      *testing.T
	server *fakeServer
	writes bool
	began  time.Time
	change []func(*Options)

	mu        sync.Mutex // guards the fields below
	rigs      [3]*rig
	writers   [3]*lingeringWriter
	stopped   [3]bool
	crashed   []*rig
	violation string
}

const replicaNames = "abc"

// start creates and starts replica i.
func (s *simulation) start(i int) {
	r := newRig(s.t, s.server, replicaNames[i:i+1], s.change...)
	w := &lingeringWriter{rig: r, linger: time.Duration(i) * time.Second, writes: s.writes}
	r.register("writer", w)
	s.mu.Lock()
	s.rigs[i], s.writers[i] = r, w
	s.mu.Unlock()
	r.start()
}

// check records a violation if more than one replica leads. It returns the replicas with an open fence.
func (s *simulation) check() (open string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	active := ""
	for i, r := range s.rigs {
		if r == nil {
			continue
		}
		if r.isFenceOpen() {
			open += replicaNames[i : i+1]
		}
		if s.writers[i].isActive() {
			active += replicaNames[i : i+1]
		}
	}
	if (len(open) > 1 || len(active) > 1) && s.violation == "" {
		s.violation = fmt.Sprintf("after %s: open fences %q, active writers %q", time.Since(s.began), open, active)
	}
	return open
}

// watch calls check until the returned function is called.
func (s *simulation) watch() (stop func()) {
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(3 * time.Millisecond):
				s.check()
			}
		}
	})
	return func() {
		close(done)
		watching.Wait()
	}
}

// simulate plays the history and returns a violation, or "".
func simulate(t *testing.T, history []step, writes bool) (violation string) {
	s := &simulation{t: t, server: &fakeServer{}, writes: writes, began: time.Now()}
	s.start(0)
	time.Sleep(time.Second) // so that the other replicas have seen the lease before the first fault
	s.start(1)
	s.start(2)
	time.Sleep(2 * time.Second)

	stopWatch := s.watch()
	for _, step := range history {
		time.Sleep(step.after)
		s.inject(step)
	}
	// Once there are no more faults, a replica must lead soon.
	for _, r := range s.rigs {
		r.lease.reconnect()
	}
	if s.stopped != [3]bool{true, true, true} {
		time.Sleep(20 * time.Second)
		if open := s.check(); len(open) != 1 && s.violation == "" {
			s.violation = fmt.Sprintf("at the end: open fences %q, lease %+v", open, s.server.lease())
		}
	}
	stopWatch()
	for _, r := range append(s.crashed, s.rigs[:]...) {
		_ = r.stop()
	}
	return s.violation
}

func (s *simulation) inject(step step) {
	r := s.rigs[step.replica]
	switch step.fault {
	case faultWallForward:
		r.ahead.Add(int64(time.Minute))
	case faultWallBack:
		r.ahead.Add(-int64(time.Minute))
	case faultStop:
		s.stopped[step.replica] = true
		r.cancel() // the shutdown continues during the next steps
	case faultCrash:
		s.crash(step.replica)
	case faultDelete:
		if s.allHaveSeenTheLease() {
			s.server.delete()
		}
	case faultEmpty:
		s.server.setHolder("")
	case faultShorten:
		s.server.edit(func(r *record) *record { r.LeaseDurationSeconds = 1; return r })
	case faultTake:
		s.server.setHolder("intruder")
	default:
		r.lease.injectRequestFault(step.fault)
	}
}

// crash stops a replica without releasing the lease and starts another replica in its place.
func (s *simulation) crash(i int) {
	if s.stopped[i] || !s.server.exists() {
		return // because the process that replaces it would not have seen the lease
	}
	r := s.rigs[i]
	r.lease.disconnect()
	r.cancel()
	s.crashed = append(s.crashed, r)
	s.start(i)
}

// allHaveSeenTheLease reports whether every process that is running has seen the lease.
func (s *simulation) allHaveSeenTheLease() bool {
	synctest.Wait()
	for i, r := range s.rigs {
		if !s.stopped[i] && !r.lease.seen.Load() {
			return false
		}
	}
	return true
}

func (l *fakeLease) injectRequestFault(f fault) {
	errReset := errors.New("connection reset")
	switch f {
	case faultDisconnect:
		l.disconnect()
	case faultReconnect:
		l.reconnect()
	case faultLoseResponses:
		l.intercept(func(_ context.Context, _ string, send func() error) error {
			_ = send()
			return errReset
		})
	case faultSlow:
		l.intercept(func(_ context.Context, _ string, send func() error) error {
			time.Sleep(400 * time.Millisecond)
			err := send()
			time.Sleep(400 * time.Millisecond)
			return err
		})
	case faultHang:
		l.intercept(func(ctx context.Context, _ string, send func() error) error {
			<-ctx.Done()
			_ = send()
			return ctx.Err()
		})
	case faultFlaky:
		n := 0
		l.intercept(func(_ context.Context, _ string, send func() error) error {
			if n++; n%3 == 0 {
				return send()
			}
			return errReset
		})
	case faultSuspend: // the elector ignores its context and continues as if no time had passed
		l.intercept(func(_ context.Context, _ string, send func() error) error {
			time.Sleep(5 * time.Second)
			l.reconnect()
			return send()
		})
	}
}
