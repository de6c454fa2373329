package replica

import "time"

// instant is a reading of both clocks. The monotonic clock stops while a virtual machine is suspended, and the wall
// clock can be set. A deadline must therefore use the clock that has advanced further.
type instant struct{ mono, wall time.Time }

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
	return instant{mono: now, wall: wall.Round(0)} // Round strips the monotonic reading
}

// since returns the time elapsed since the instant then, according to the clock that has advanced further.
func (c clock) since(then instant) time.Duration {
	now := c.now()
	return max(now.mono.Sub(then.mono), now.wall.Sub(then.wall))
}
