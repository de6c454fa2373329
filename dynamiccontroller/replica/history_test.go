package replica

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// step is one thing that happens in a history, some time after the one before.
type step struct {
	after   time.Duration
	what    string
	replica int
}

var happenings = []string{
	"cut off", "healed", "answers lost", "slow", "hangs", "flaky", "wall ahead", "wall back", "stop",
	"delete", "empty", "shorten", "take by force", "paused", "crash",
}

func drawHistory(t *rapid.T) []step {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{
			after:   time.Duration(rapid.IntRange(0, 4000).Draw(t, "ms")) * time.Millisecond,
			what:    rapid.SampledFrom(happenings).Draw(t, "what"),
			replica: rapid.IntRange(0, 2).Draw(t, "replica"),
		}
	}), 5, 40).Draw(t, "history")
}

// Whatever happens to the lease and to the requests for it, two replicas never have an open fence at once, nor runnables
// that were not told to end: a replica that has seen the lease before waits for whoever may still lead. What the docs except
// is not in here: a release by force, and a lease that is deleted before a process has seen it.
func TestL1_InNoHistoryDoTwoReplicasLead(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		history := drawHistory(rt)
		writes := rapid.Bool().Draw(rt, "writes") // which look at the clocks
		var broken string
		synctest.Test(t, func(t *testing.T) { broken = play(t, history, writes) })
		if broken != "" {
			rt.Fatalf("%s\n%s", broken, describe(history))
		}
	})
}

// A leader whose elector stands still, and that writes nothing, is told by nobody but the look at the clocks.
func TestL1_AnElectorThatStandsStillDoesNotKeepTheWorkGoing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if broken := play(t, []step{{0, "paused", 0}, {6 * time.Second, "healed", 0}}, false); broken != "" {
			t.Error(broken)
		}
	})
}

func describe(history []step) string {
	var b strings.Builder
	var at time.Duration
	for _, s := range history {
		at += s.after
		fmt.Fprintf(&b, "%8s %s %d\n", at, s.what, s.replica)
	}
	return b.String()
}

// writer is what a leading half does: it waits, or it writes all the time, also for a while after it was told to end.
type writer struct {
	rig    *rig
	linger time.Duration
	writes bool

	mu  sync.Mutex // guards ran
	ran <-chan struct{}
}

func (w *writer) Run(ctx context.Context) error {
	w.mu.Lock()
	w.ran = ctx.Done()
	w.mu.Unlock()
	if !w.writes {
		<-ctx.Done()
		time.Sleep(w.linger)
		return nil
	}
	late := context.WithoutCancel(ctx)
	var until time.Time
	for until.IsZero() || time.Now().Before(until) {
		_ = w.rig.write(late)
		if until.IsZero() && ctx.Err() != nil {
			until = time.Now().Add(w.linger)
		}
		time.Sleep(7 * time.Millisecond)
	}
	return nil
}

// works tells whether it runs and was not told to end.
func (w *writer) works() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ran == nil {
		return false
	}
	select {
	case <-w.ran:
		return false
	default:
		return true
	}
}

// open tells whether a write would pass, without being one: to ask the term is what ends it.
func (r *rig) open() bool {
	term := r.leads.fence.latest()
	if term == nil {
		return false
	}
	s := term.state.Load()
	return s.cause == nil && term.clock.since(s.renewed) < term.certain
}

// players are the processes of a history.
type players struct {
	t      *testing.T
	server *server
	writes bool
	began  time.Time

	mu      sync.Mutex // guards what follows
	rigs    [3]*rig
	writers [3]*writer
	broken  string
	stopped [3]bool
	dead    []*rig
}

const names = "abc"

// start makes process i, and starts it.
func (p *players) start(i int) {
	r := newRig(p.t, p.server, names[i:i+1])
	w := &writer{rig: r, linger: time.Duration(i) * time.Second, writes: p.writes}
	wantNoError(p.t, r.Register("writer", w))
	p.mu.Lock()
	p.rigs[i], p.writers[i] = r, w
	p.mu.Unlock()
	r.start()
}

// look notes if more than one leads, and says who has an open fence.
func (p *players) look() (open string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	working := ""
	for i, r := range p.rigs {
		if r == nil {
			continue
		}
		if r.open() {
			open += names[i : i+1]
		}
		if p.writers[i].works() {
			working += names[i : i+1]
		}
	}
	if (len(open) > 1 || len(working) > 1) && p.broken == "" {
		p.broken = fmt.Sprintf("at %s these may write: %q, and these work: %q", time.Since(p.began), open, working)
	}
	return open
}

// allHaveSeenTheLease tells whether its deletion takes nobody by surprise.
func (p *players) allHaveSeenTheLease() bool {
	synctest.Wait()
	for i, r := range p.rigs {
		if !p.stopped[i] && !r.lease.seen.Load() {
			return false
		}
	}
	return true
}

// crash ends a process without a word, and another takes its place at once.
func (p *players) crash(i int) {
	if p.stopped[i] || !p.server.exists() {
		return // the new one would not see that there was a lease
	}
	r := p.rigs[i]
	r.lease.fail()
	r.cancel()
	p.dead = append(p.dead, r)
	p.start(i)
}

// play lets a history happen and says what was wrong in it.
func play(t *testing.T, history []step, writes bool) (broken string) {
	p := &players{t: t, server: &server{}, writes: writes, began: time.Now()}
	p.start(0)
	time.Sleep(time.Second) // the others see the lease before anything happens to it
	p.start(1)
	p.start(2)
	time.Sleep(2 * time.Second)

	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(3 * time.Millisecond):
				p.look()
			}
		}
	})
	for _, step := range history {
		time.Sleep(step.after)
		p.happen(step)
	}
	// All is well again: somebody leads soon, if anybody runs.
	for _, r := range p.rigs {
		r.lease.heal()
	}
	if p.stopped != [3]bool{true, true, true} {
		time.Sleep(20 * time.Second)
		if open := p.look(); len(open) != 1 && p.broken == "" {
			p.broken = fmt.Sprintf("in the end these may write: %q; the lease is %+v", open, p.server.now())
		}
	}
	close(over)
	watching.Wait()
	for _, r := range append(p.dead, p.rigs[:]...) {
		_ = r.stop()
	}
	return p.broken
}

func (p *players) happen(step step) {
	s, r := p.server, p.rigs[step.replica]
	lost := errors.New("connection reset")
	switch step.what {
	case "cut off":
		r.lease.fail()
	case "healed":
		r.lease.heal()
	case "answers lost":
		r.lease.set(func(_ context.Context, _ string, do func() error) error {
			_ = do()
			return lost
		})
	case "slow": // takes effect late, and is answered late
		r.lease.set(func(ctx context.Context, _ string, do func() error) error {
			time.Sleep(400 * time.Millisecond)
			err := do()
			time.Sleep(400 * time.Millisecond)
			return err
		})
	case "hangs": // and takes effect after nobody waits any more
		r.lease.set(func(ctx context.Context, verb string, do func() error) error {
			<-ctx.Done()
			_ = do()
			return ctx.Err()
		})
	case "flaky":
		n := 0
		r.lease.set(func(ctx context.Context, _ string, do func() error) error {
			if n++; n%3 == 0 {
				return do()
			}
			return lost
		})
	case "paused": // as far as its elector goes: it stands still, heeds no context, and goes on as if no time had gone by
		r.lease.set(func(_ context.Context, _ string, do func() error) error {
			time.Sleep(5 * time.Second)
			r.lease.heal()
			return do()
		})
	case "wall ahead":
		r.ahead.Add(int64(time.Minute))
	case "wall back":
		r.ahead.Add(-int64(time.Minute))
	case "stop":
		p.stopped[step.replica] = true
		r.cancel() // it goes on while the next things happen
	case "crash":
		p.crash(step.replica)
	case "delete":
		if p.allHaveSeenTheLease() {
			s.delete()
		}
	case "empty":
		s.give("")
	case "shorten":
		s.edit(func(r *record) *record { r.LeaseDurationSeconds = 1; return r })
	case "take by force":
		s.give("thief")
	}
}

// TestL4_WinAndLoseLeavesNothingBehind wins and loses a thousand times.
func TestL4_WinAndLoseLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		r := newRig(t, s, "a", func(o *Options) { o.Log = (&lines{}).logger().V(9) })
		lead, every := &counter{}, &counter{}
		wantNoError(t, r.Register("lead", lead))
		wantNoError(t, r.RegisterWithoutLeaderElection("every", every))
		r.start()
		cycles := func(n int) (goroutines int, heap uint64) {
			for range n {
				time.Sleep(time.Second)
				s.edit(func(*record) *record { return &record{LeaseDurationSeconds: 1} })
				time.Sleep(3 * time.Second)
			}
			synctest.Wait()
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return runtime.NumGoroutine(), m.HeapAlloc
		}
		goroutines, heap := cycles(50)
		goroutinesAfter, heapAfter := cycles(1000)
		if goroutinesAfter > goroutines { // fewer, if one of a test before this one has ended meanwhile
			t.Errorf("%d goroutines before, %d after", goroutines, goroutinesAfter)
		}
		if grown := int64(heapAfter) - int64(heap); grown > 256<<10 {
			t.Errorf("the heap grew by %d bytes", grown)
		}
		if lead.lives != 1051 || lead.running != 1 || every.lives != 1 {
			t.Errorf("the leading half had %d lives, %d running, the other %d", lead.lives, lead.running, every.lives)
		}
		t.Logf("goroutines %d and %d, heap %d and %d", goroutines, goroutinesAfter, heap, heapAfter)
		wantNoError(t, r.stop())
	})
}

// counter is a worker that remembers no more than numbers.
type counter struct{ lives, running int }

func (c *counter) Run(ctx context.Context) error {
	c.lives++
	c.running++
	<-ctx.Done()
	c.running--
	return nil
}
