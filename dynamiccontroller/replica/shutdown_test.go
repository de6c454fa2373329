package replica

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func stepsDown(o *Options)   { o.OnFailure = StepDown }
func exitsOnLoss(o *Options) { o.OnLostLease = ExitOnLoss }

// realistic makes RenewDeadline much longer than what is left of a shutdown.
func realistic(o *Options) {
	d := DefaultOptions()
	o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = d.LeaseDuration, d.RenewDeadline, d.RetryPeriod
}

func TestAStandbyThatOnceLedHasAllItsTimeToEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a, every := newRig(t, s, "a"), &worker{linger: 3 * time.Second}
		wantNoError(t, a.RegisterWithoutLeaderElection("every", every))
		a.start()
		time.Sleep(time.Second)
		b := newRig(t, s, "b").start()
		a.lease.fail()
		time.Sleep(10 * time.Second)
		a.lease.heal()
		time.Sleep(time.Hour)
		if got := a.Status(); got.Leading || got.Term != 1 {
			t.Fatalf("status %+v", got)
		}
		wantNoError(t, a.stop())
		wantLives(t, every, 1, 0)
		wantNoError(t, b.stop())
	})
}

// However Run ends, all its steps have one ShutdownTimeout, and two seconds where that is used up.
func TestTheWholeEndIsBounded(t *testing.T) {
	const most = 5*time.Second + 2*leastGrace
	for name, c := range map[string]struct {
		change func(*Options)
		fails  time.Duration // the leading half does, after that time
		lose   bool
		hangs  time.Duration // the leading half, at its end
	}{
		"told to":                              {hangs: 4999 * time.Millisecond},
		"told to, and the leading half hangs":  {hangs: time.Hour},
		"told to, and the work ends at once":   {},
		"a failure":                            {fails: 2 * time.Second, hangs: 4 * time.Second},
		"a failure, and the rest hangs":        {fails: 2 * time.Second, hangs: time.Hour},
		"a loss":                               {change: exitsOnLoss, lose: true, hangs: 4 * time.Second},
		"a loss, and the leading half hangs":   {change: exitsOnLoss, lose: true, hangs: time.Hour},
		"alone, a failure, and the rest hangs": {change: func(o *Options) { alone(o); stepsDown(o) }, fails: 2 * time.Second, hangs: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{}
				change := func(*Options) {}
				if c.change != nil {
					change = c.change
				}
				a := newRig(t, s, "a", realistic, change)
				deaf, every := &worker{linger: c.hangs}, &worker{linger: time.Hour}
				wantNoError(t, a.Register("deaf", deaf))
				wantNoError(t, a.RegisterWithoutLeaderElection("every", every))
				if c.fails > 0 {
					a.lead("culprit", func(context.Context) error {
						time.Sleep(c.fails)
						return errBroken
					})
				}
				a.start()
				time.Sleep(2 * time.Second)
				began := time.Now()
				unreachable := func(ctx context.Context, _ string, _ func() error) error {
					<-ctx.Done()
					return ctx.Err()
				}
				switch {
				case c.lose:
					s.give("thief")
					for deaf.ended() == nil {
						time.Sleep(time.Millisecond)
					}
					began = time.Now()
					a.lease.set(unreachable)
				case c.fails > 0 && a.lease != nil:
					a.lease.set(unreachable)
				case c.fails == 0:
					a.lease.set(unreachable)
					a.cancel()
				}
				err := a.result()
				wantSays(t, err, "every")
				if c.hangs == time.Hour {
					wantSays(t, err, "deaf")
				}
				if c.fails > 0 {
					wantIs(t, err, errBroken)
				}
				if c.lose {
					wantIs(t, err, ErrLeaseLost)
				}
				if took := time.Since(began); took > most || took < 4990*time.Millisecond { // a loss is seen up to a millisecond late
					t.Errorf("it took %s", took)
				}
				wantIs(t, a.write(t.Context()), ErrNotLeading)
				time.Sleep(time.Hour) // let the deaf ones return
			})
		})
	}
}

// A release that has all the time of a StepDown has less when Run ends meanwhile.
func TestAReleaseThatRunEndsDuringIsBoundedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a := newRig(t, s, "a", realistic, stepsDown, func(o *Options) { o.ShutdownTimeout = time.Second })
		a.lead("culprit", func(context.Context) error {
			time.Sleep(time.Second)
			return errBroken
		})
		a.start()
		time.Sleep(500 * time.Millisecond)
		a.lease.set(func(ctx context.Context, _ string, _ func() error) error {
			<-ctx.Done()
			return ctx.Err()
		})
		time.Sleep(time.Second)
		began := time.Now()
		_ = a.stop()
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// What was waited for without a limit since the lease was lost is waited for from ctx's end on as in any shutdown.
func TestTheLimitBeginsAnewWhenRunEndsLongAfterALoss(t *testing.T) {
	for name, linger := range map[string]time.Duration{"it returns in time": 64 * time.Second, "it does not": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{}
				a, slow := newRig(t, s, "a"), &worker{linger: linger}
				wantNoError(t, a.Register("slow", slow))
				a.start()
				time.Sleep(time.Second)
				s.give("thief")
				for slow.ended() == nil {
					time.Sleep(time.Millisecond)
				}
				time.Sleep(time.Minute)
				began := time.Now()
				err := a.stop()
				took := time.Since(began)
				switch {
				case linger < time.Hour && (took < 3*time.Second || took > 4*time.Second):
					t.Errorf("it took %s, and ended with %v", took, err)
				case linger == time.Hour && (took != 5*time.Second || err == nil || !strings.Contains(err.Error(), "slow")):
					t.Errorf("it took %s, and ended with %v", took, err)
				}
				time.Sleep(time.Hour)
			})
		})
	}
}

func TestRunWithAContextThatHasEndedAsksForNoLease(t *testing.T) {
	for name, change := range map[string]func(*Options){"elected": func(*Options) {}, "alone": alone} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{}
				a, w := newRig(t, s, "a", change), &worker{}
				wantNoError(t, a.Register("w", w))
				ended, end := context.WithCancel(t.Context())
				end()
				wantNoError(t, a.Run(ended))
				wantLives(t, w, 0, 0)
				if a.lease != nil && a.lease.requests.Load() > 0 || a.Status().Term != 0 {
					t.Errorf("status %+v", a.Status())
				}
			})
		})
	}
}
