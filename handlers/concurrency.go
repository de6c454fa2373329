package handlers

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// limitRequeue is the minimum delay for a call that exceeds the limit of its class. The maximum is twice as long. With
// this delay, a thousand waiting objects cost about a thousand map lookups per second.
const limitRequeue = 500 * time.Millisecond

// Concurrency limits the number of concurrent calls in each class to n, or to 1 if n is less than 1. classOf returns
// the class of an object. For example, Concurrency(1, ObjectIdentifiers.Namespace) allows one call at a time in each
// namespace.
//
// A call that exceeds the limit does not wait, because a waiting call would occupy a worker that other types need.
// Instead, it returns a RequeueAfter of half a second to a second. Waiting objects are therefore reconciled in no
// particular order. The requeue also resets the backoff of an object that has failed before. If the returned middleware
// is used for several types, they share the limit.
func Concurrency(n int, classOf func(dynamiccontroller.ObjectIdentifiers) string) Middleware {
	classes := &classCounter{limit: max(n, 1), running: map[string]int{}}
	return func(handler dynamiccontroller.Handler) dynamiccontroller.Handler {
		return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			class := classOf(id)
			if !classes.enter(class) {
				return dynamiccontroller.RequeueAfter(limitRequeue + rand.N(limitRequeue))
			}
			defer classes.leave(class)
			return handler(ctx, id)
		}
	}
}

// classCounter counts the running calls per class.
type classCounter struct {
	limit int

	mu      sync.Mutex     // guards running
	running map[string]int // contains only classes with running calls
}

func (c *classCounter) enter(class string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running[class] >= c.limit {
		return false
	}
	c.running[class]++
	return true
}

func (c *classCounter) leave(class string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running[class]--; c.running[class] == 0 {
		delete(c.running, class)
	}
}
