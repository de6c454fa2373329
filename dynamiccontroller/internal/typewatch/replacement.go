package typewatch

import (
	"sync/atomic"
	"time"
)

// replacement is a pending move of a subscription to another watch. The current watch stays in use until the new watch
// has synced and has caught up with the current one. Then the subscription switches, the difference is delivered, and
// the old watch ends unless another subscription uses it.
//
// A separate goroutine attempts to switch, because an attempt needs the delivery locks of both watches. The goroutine
// ends when there is nothing left to check.
type replacement struct {
	onReplace   func()        // called before the event handler is called with the difference
	onDelivered func()        // called afterwards
	isMove      bool          // created by the pool, with unchanged options
	presence    *presence     // of the subscription
	from        func() *place // the current place of the subscription
	relist      func()        // makes the new watch relist
	attempt     func() bool   // switches if the new watch is ready, and reports whether the replacement is over
	checks      atomic.Int64  // checks requested since the goroutine started; 0 if it is not running
	switched    chan struct{} // closed when the call to onReplace has returned
	ended       chan struct{} // closed when the replacement is over

	// Guarded by the pool's mu.
	options Options
	to      *place

	// Used only by the goroutine that attempts to switch.
	relists  *time.Timer   // makes the new watch relist; nil if that watch has never been behind
	relistAt time.Time     // when the timer fires
	lag      time.Duration // the delay of the timer
}

var _ waiter = (*replacement)(nil)

// setTargetLocked makes the replacement wait for another watch.
func (r *replacement) setTargetLocked(to *place) {
	if r.to != nil {
		r.to.removeLocked(r)
	}
	r.to = to
	to.watch.env.config.Progress()
	to.addLocked(r)
	r.check()
}

// current returns the watch that is in use until the replacement is over.
func (r *replacement) current() *watch { return r.from().watch }

// check triggers an attempt to switch the subscription. It does not block.
func (r *replacement) check() {
	if r.checks.Add(1) == 1 {
		go r.run()
	}
}

// run repeats the attempt until no more checks are requested. When the replacement is over, run keeps the count of
// requested checks above zero. This prevents check from starting another goroutine.
func (r *replacement) run() {
	over := true
	defer func() {
		if over && r.relists != nil {
			r.relists.Stop()
		}
		if over {
			close(r.ended)
		}
	}()
	for over {
		checks := r.checks.Load()
		if r.attempt() {
			return
		}
		over = !r.checks.CompareAndSwap(checks, 0)
	}
}

// If a new watch has synced but has not caught up with the current watch, it relists after a delay between minLag and
// maxLag. This is needed because a watch with different selectors might not receive the event that would let it catch
// up, and bookmarks are sent only about once a minute.
const (
	minLag = time.Second
	maxLag = time.Minute
)

// relistLater calls relist after a delay.
func (r *replacement) relistLater() {
	if now := time.Now(); now.After(r.relistAt) {
		r.lag = min(max(2*r.lag, minLag), maxLag)
		r.relistAt = now.Add(r.lag)
		r.relists = time.AfterFunc(r.lag, r.relist)
	}
}
