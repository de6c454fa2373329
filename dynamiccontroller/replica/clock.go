package replica

import (
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/election"
)

// instant is a reading of both clocks.
type instant = election.Instant

// clock reads both clocks.
type clock struct {
	wall func() time.Time // replaces the wall clock in tests, nil otherwise
}

func (c clock) now() instant {
	now := time.Now()
	wall := now
	if c.wall != nil {
		wall = c.wall()
	}
	return instant{Mono: now, Wall: wall.Round(0)} // Round strips the monotonic reading
}

// since returns the time elapsed since the instant then, according to the clock that has advanced further.
func (c clock) since(then instant) time.Duration { return c.now().Since(then) }
