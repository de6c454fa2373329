package listwatch

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// The time limits of requests. Each of them ends the request and is an outcome.
const (
	headersLimit = 30 * time.Second // for the headers of a watch
	streamLimit  = 30 * time.Second // for a streaming list, without progress
	streamTotal  = 5 * time.Minute  // for a whole streaming list
	listLimit    = 2 * time.Minute  // for a plain list, without progress; an API server gives up after one minute
	silenceLimit = 90 * time.Second // for an open watch that has received a bookmark; they are sent once a minute
	timeoutSlack = 30 * time.Second // for a watch after its timeout
)

// limitError is the cause with which a request is cancelled that exceeds a limit.
type limitError struct {
	kind kind
	text string
}

func (e *limitError) Error() string { return e.text }

// watchdog cancels a request that exceeds a limit. Timers need no goroutine.
type watchdog struct {
	cancel   context.CancelCauseFunc
	timer    *time.Timer
	began    time.Time    // has a monotonic clock reading, unlike Unix times
	progress atomic.Int64 // when the last progress was made, in nanoseconds since began; storing if it cannot be judged

	mu    sync.Mutex // guards the fields below
	idle  time.Duration
	total time.Time // zero if the duration is not limited
	kinds struct{ idle, total kind }
}

// storing is the progress of a request whose data is being stored. Event handlers can hang.
const storing = -1

func newWatchdog(cancel context.CancelCauseFunc, idle time.Duration, kind kind) *watchdog {
	w := &watchdog{cancel: cancel, idle: idle, began: time.Now()}
	w.kinds.idle = kind
	w.touch()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(idle, w.check)
	return w
}

// touch records progress. It returns the current Unix time in nanoseconds.
func (w *watchdog) touch() int64 {
	now := time.Now()
	w.progress.Store(int64(now.Sub(w.began)))
	return now.UnixNano()
}

// pause is called before data is stored. The time until the next touch does not count.
func (w *watchdog) pause() { w.progress.Store(storing) }

// stop must be called when the request has ended.
func (w *watchdog) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.idle, w.total = 0, time.Time{}
	w.timer.Stop()
}

// limit replaces the limits. A limit of zero has no effect.
func (w *watchdog) limit(idle time.Duration, idleKind kind, total time.Time, totalKind kind) {
	w.mu.Lock()
	w.idle, w.total = idle, total
	w.kinds.idle, w.kinds.total = idleKind, totalKind
	w.mu.Unlock()
	w.check()
}

// check cancels the request if it has exceeded a limit. Otherwise, it sets the timer for the next check.
func (w *watchdog) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.idle == 0 && w.total.IsZero() {
		return
	}
	now, left := time.Now(), time.Duration(math.MaxInt64)
	if w.idle > 0 {
		left = w.idle
		if progress := w.progress.Load(); progress != storing {
			left = time.Duration(progress) + w.idle - now.Sub(w.began)
		}
		if left <= 0 {
			w.cancel(&limitError{w.kinds.idle, limitText(w.kinds.idle, w.idle)})
			return
		}
	}
	if !w.total.IsZero() {
		left = min(left, w.total.Sub(now))
		if left <= 0 {
			w.cancel(&limitError{w.kinds.total, totalText(w.kinds.total)})
			return
		}
	}
	w.timer.Reset(left)
}

func limitText(k kind, limit time.Duration) string {
	switch k {
	case unanswered:
		return fmt.Sprintf("no response to the watch request within %s", limit)
	case streamStalled:
		return fmt.Sprintf("streaming list: no progress within %s", limit)
	case stalled:
		return fmt.Sprintf("list: no response within %s", limit)
	default:
		return fmt.Sprintf("the watch is open, but no bookmark arrived within %s", limit)
	}
}

func totalText(k kind) string {
	if k == streamStalled {
		return fmt.Sprintf("streaming list: not complete within %s", streamTotal)
	}
	return fmt.Sprintf("the watch did not end within %s after its timeout", timeoutSlack)
}
