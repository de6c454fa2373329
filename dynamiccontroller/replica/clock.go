package replica

import "time"

// instant is a moment on both clocks. The monotonic one stops while a virtual machine is suspended, the wall clock can be
// set: whoever must not be late takes the one that is ahead.
type instant struct{ mono, wall time.Time }

// clock reads both clocks.
type clock struct {
	wall func() time.Time // replaces the wall clock in tests; nil otherwise
}

func realClock() clock { return clock{} }

func (c clock) now() instant {
	now := time.Now()
	wall := now
	if c.wall != nil {
		wall = c.wall()
	}
	return instant{mono: now, wall: wall.Round(0)} // Round strips the monotonic reading
}

// since is how much time may have gone by at the most.
func (c clock) since(then instant) time.Duration {
	now := c.now()
	return max(now.mono.Sub(then.mono), now.wall.Sub(then.wall))
}
