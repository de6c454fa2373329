package typewatch

import (
	"slices"
	"sync"
	"time"

	"github.com/dynamic-controller/engine/internal/protect"
)

// calls calls the user functions of one subscription. Its methods are safe for concurrent use.
type calls struct {
	guard protect.Guard

	mu      sync.Mutex // guards running
	running []*running // the calls that have not returned, oldest first
}

// running is a user function that is being called.
type running struct {
	function string
	since    time.Time
}

// call calls f, which calls the user function with the given name. It returns the mistake of the function, if any; see
// [protect.Guard].
func (c *calls) call(function string, f func()) *protect.Mistake {
	r := &running{function: function, since: time.Now()}
	c.mu.Lock()
	c.running = append(c.running, r)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.running = slices.DeleteFunc(c.running, func(other *running) bool { return other == r })
	}()
	return c.guard.Call(f)
}

// oldest returns the name of the function that has been running for the longest time, and the time of its call. If no
// function is running, the time is zero.
func (c *calls) oldest() (function string, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.running) == 0 {
		return "", time.Time{}
	}
	return c.running[0].function, c.running[0].since
}
