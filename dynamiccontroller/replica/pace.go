package replica

import (
	"context"
	"time"
)

// electorPeriod is the interval at which an elector of a fleet calls its lock. The lock sends requests at RetryPeriod,
// or when it is woken.
const electorPeriod = 100 * time.Millisecond

// pace makes a lock send a request every RetryPeriod, or at once when it is woken. client-go's elector cannot
// be woken, so it calls its lock more often, and the lock waits.
type pace struct {
	period time.Duration
	woken  chan struct{} // has a buffer of one

	// Used only by the goroutine that sends requests.
	last time.Time // when the last request was sent
}

func newPace(period time.Duration) *pace { return &pace{period: period, woken: make(chan struct{}, 1)} }

// wake ends the current wait, or the next one.
func (p *pace) wake() {
	select {
	case p.woken <- struct{}{}:
	default:
	}
}

// wait waits until the next request is due. It returns an error if ctx is cancelled before. A nil pace does not wait.
func (p *pace) wait(ctx context.Context) error {
	if p == nil {
		return nil
	}
	due := time.NewTimer(p.period - time.Since(p.last))
	defer due.Stop()
	select {
	case <-due.C:
	case <-p.woken:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	p.last = time.Now()
	return nil
}

// sent records that a request is sent without a wait.
func (p *pace) sent() {
	if p != nil {
		p.last = time.Now()
	}
}
