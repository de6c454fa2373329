package attempts

import (
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"
)

// Each type has a budget of retries, so that a type whose objects all fail does not overload the API server.
const (
	retriesPerSecond = 100
	retriesBurst     = 1000
)

// Backoff computes the delays of retries. The delay doubles with each consecutive failure in the table, from Min to
// Max. Jitter spreads out the retries of objects that failed at the same time. Its methods are safe for concurrent use.
//
// client-go's rate limiters are not used, because the exponential one has no jitter, and the bucket limiter's delays
// grow with each earlier failure.
type Backoff struct {
	table    *Table
	min, max time.Duration
	budget   *rate.Limiter
}

// NewBackoff returns a backoff with a full budget. The minimum must not exceed the maximum.
func NewBackoff(table *Table, minimum, maximum time.Duration) *Backoff {
	return &Backoff{table: table, min: minimum, max: maximum, budget: rate.NewLimiter(retriesPerSecond, retriesBurst)}
}

// Delay returns the delay before the next retry of an object.
func (b *Backoff) Delay(key string) time.Duration {
	delay, doublings := b.max, max(b.table.Count(key)-1, 0)
	if b.min <= delay>>doublings {
		delay = b.min << doublings
	}
	if delay += rand.N(delay/2 + 1); delay < b.max {
		reservation := b.budget.Reserve()
		if delay = max(delay, reservation.Delay()); delay < b.max {
			return delay
		}
		reservation.Cancel() // a retry after the maximum delay does not use the budget
	}
	return max(b.min, b.max-rand.N(b.max/4+1))
}
