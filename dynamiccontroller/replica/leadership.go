package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"
)

// leadership is one lease, the fence that belongs to it, and what runs while it is held. A Replica has one of them; nothing
// in it is the process's alone, so that there may be one a shard.
type leadership struct {
	options Options
	log     logr.Logger
	fence   *fence
	lock    *lock // nil without an election
	end     *shutdown

	mu         sync.Mutex // guards what follows; it is held while a term's half starts what is registered
	registered []named
	half       *half     // of the present term, nil between terms
	ending     time.Time // since when the present term's runnables are to return
}

// register adds a runnable, and starts it if there is a term.
func (l *leadership) register(n named) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.registered = append(l.registered, n)
	if l.half != nil {
		l.half.start(n)
	}
}

// run leads whenever it can until ctx ends.
func (l *leadership) run(ctx context.Context) error {
	if ctx.Err() != nil {
		return nil
	}
	if l.lock == nil {
		_, err := l.lead(ctx, l.fence.open(l.fence.clock.now(), l.options))
		return err
	}
	defer l.lock.cut() // no connection outlives Run
	backoff := l.backoff()
	for {
		ended, err := l.serveTerm(ctx)
		pause := wait.Jitter(l.options.RetryPeriod, jitter)
		switch {
		case ctx.Err() != nil:
			return err
		case ended == endedByLoss && l.options.OnLostLease == ExitOnLoss:
			return err
		case ended == endedByLoss, ended == notLed && err == nil:
		case ended == endedByFailure && l.options.OnFailure == StepDown:
			t := l.fence.latest()
			if time.Since(t.began) > longestBackoff {
				backoff = l.backoff()
			}
			pause = backoff.Step()
			if t.loss() != nil {
				// The lease names this replica until it expires, and others may win it only then, 4.4 x RetryPeriod
				// after that at the most: who wins it back before has not stepped down.
				pause += l.options.LeaseDuration + 3*l.options.RetryPeriod
			}
		default:
			return err
		}
		if err != nil {
			l.log.Info("campaigning again", keyAfter, pause.String(), keyCause, err.Error())
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		if ctx.Err() != nil { // even if both were true
			return nil
		}
	}
}

const (
	jitter         = 0.2
	longestBackoff = time.Minute
	// holdUpPeriod is how often the log says what holds up the end of a lost term.
	holdUpPeriod = 10 * time.Second
)

func (l *leadership) backoff() wait.Backoff {
	return wait.Backoff{Duration: 2 * l.options.RetryPeriod, Factor: 2, Jitter: jitter, Steps: 1000, Cap: longestBackoff}
}

// ending says how a term ended.
type ending int

const (
	endedByCaller ending = iota
	endedByFailure
	endedByLoss
	endedHung // told to end, some runnables have not returned
	notLed    // there was no term
)

// lead runs the runnables of one term until it is over and they have returned. When the caller's ctx ends they are waited
// for at most ShutdownTimeout; after a loss, until they return, as no other term may begin before. The term is over, and
// so the fence closed, when it returns.
func (l *leadership) lead(ctx context.Context, t *term) (ending, error) {
	log := l.log.WithValues(keyTerm, t.number)
	work, endWork := t.context(context.WithoutCancel(ctx))
	defer endWork(nil)
	if t.check() == nil { // it may have taken long to hear of the win; then the half starts nothing
		log.Info("leading")
	}
	h := newHalf(work)
	l.begin(h)
	defer l.over()

	var (
		result   error
		how      = endedByCaller
		stop     = ctx.Done()
		failed   = (<-chan error)(h.failed)
		lost     = (<-chan struct{})(t.over)
		timeout  <-chan time.Time
		holdUp   <-chan time.Time
		watchdog = time.NewTimer(l.nextLook(t))
	)
	defer watchdog.Stop()
	// The runnables are told to end, once; the lease is renewed meanwhile.
	tell := func(cause error) {
		if timeout != nil {
			return
		}
		endWork(cause)
		h.end()
		l.tellEnding()
		timeout = time.After(l.options.ShutdownTimeout)
		holdUp = time.Tick(holdUpPeriod)
	}
	fail := func(err error) {
		failed = nil
		log.Error(err, "the leading half fails")
		if result == nil && how == endedByCaller {
			how, result = endedByFailure, err
			if l.exits(how) {
				l.end.begin()
			}
		}
		tell(err)
	}
	for {
		var event event
		select {
		case <-watchdog.C:
			if t.check() == nil { // also when no write asks
				watchdog.Reset(l.nextLook(t))
			}
		case <-holdUp:
			log.Info("waiting for runnables to return", keyRunning, h.left())
		case err := <-failed:
			fail(err)
		case <-stop:
			event = toldToEnd
		case <-lost:
			t.cutOff() // termContext.Err does not cancel writes
			event = leaseLost
		case <-timeout:
			event = timedOut
		case <-h.joined:
			event = allReturned
		}
		if event == nothing {
			continue
		}
		select {
		case err := <-failed: // it came first, though select may pick any
			fail(err)
		default:
		}
		switch event {
		case toldToEnd:
			stop = nil
			l.end.begin()
			log.Info("ending the term", keyCause, context.Cause(ctx).Error())
			tell(fmt.Errorf("the replica ends: %w", context.Cause(ctx)))
			if t.loss() != nil { // it was told long ago: now there is a limit
				left, _ := l.end.left()
				timeout = time.After(left)
			}

		case leaseLost:
			lost = nil
			if l.options.OnLostLease == ExitOnLoss {
				result = errors.Join(t.loss(), result)
			}
			if !l.exits(how) { // a failure that ends Run still does
				how = endedByLoss
			}
			if l.exits(how) {
				l.end.begin()
			}
			log.Info("the lease is lost", keyCause, t.loss().Error())
			tell(t.loss())

		case timedOut:
			timeout = make(chan time.Time) // told, and no longer waited for in silence
			hung := fmt.Errorf("these have not returned %s after their contexts ended, and the lease is left to expire: %s",
				l.options.ShutdownTimeout, h.left())
			if lost != nil {
				lost = nil
				_ = t.lose("its runnables did not return in time")
				if how == endedByFailure && !l.exits(how) {
					how = endedByLoss // it goes on as after a loss, once they return
					if l.exits(how) {
						result = errors.Join(t.loss(), result)
					}
				}
			}
			log.Error(hung, "the term does not end")
			result = errors.Join(result, hung)
			if ctx.Err() != nil || l.exits(how) {
				return endedHung, result
			}

		case allReturned:
			unclean, doubt := h.complaints()
			result = errors.Join(result, unclean)
			if doubt != nil && lost != nil {
				_ = t.lose("it is not known whether all that its runnables started has ended")
				log.Error(doubt, "the lease is left to expire")
			}
			t.finish()
			return how, result
		}
	}
}

// event is what happens to a term, but for a failure, which goes before.
type event int

const (
	nothing event = iota
	toldToEnd
	leaseLost
	timedOut
	allReturned
)

// exits tells whether Run ends after a term that ended so. Without an election there is nobody to step down for.
func (l *leadership) exits(how ending) bool {
	switch how {
	case endedByFailure:
		return l.options.OnFailure == ExitOnFailure || l.lock == nil
	case endedByLoss:
		return l.options.OnLostLease == ExitOnLoss
	}
	return false
}

// nextLook is when the term's clocks are to be looked at again: the wall clock, which no timer follows, every RetryPeriod.
func (l *leadership) nextLook(t *term) time.Duration {
	if t.certain == 0 {
		return time.Hour
	}
	return max(min(t.left(), l.options.RetryPeriod), time.Millisecond)
}

func (l *leadership) begin(h *half) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.half, l.ending = h, time.Time{}
	for _, n := range l.registered {
		h.start(n)
	}
}

func (l *leadership) tellEnding() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ending = time.Now()
}

func (l *leadership) over() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.half = nil
}

// hung says what of a term that is to end has not returned within the given time.
func (l *leadership) hung(within time.Duration) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.half == nil || l.ending.IsZero() || time.Since(l.ending) <= within {
		return ""
	}
	return l.half.left()
}

func (l *leadership) has(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.registered, func(n named) bool { return n.name == name })
}
