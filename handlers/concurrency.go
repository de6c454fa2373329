package handlers

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// classRetry is how soon an object is tried again whose class had no room, up to as much again as jitter. It is what a
// person does not notice, and a thousand objects that wait cost a thousand map lookups a second.
const classRetry = 500 * time.Millisecond

// Concurrency lets at most n calls run at once of each class that classOf tells: 1 and ObjectIdentifiers.Namespace for
// one at a time in a namespace, for instance.
//
// A call for which there is no room is not made to wait, for that would hold a worker which other types need: it asks to
// be called again after half a second to a second. So there is no order among those that wait, and one that fails and is
// then put off begins its backoff anew. Each use of the returned middleware shares the same room, so that several types
// can share it. N below 1 counts as 1.
//
// It writes nothing and needs no rights.
func Concurrency(n int, classOf func(dynamiccontroller.ObjectIdentifiers) string) Middleware {
	room := &classes{most: max(n, 1), running: map[string]int{}}
	return func(handler dynamiccontroller.Handler) dynamiccontroller.Handler {
		return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			class := classOf(id)
			if !room.enter(class) {
				return dynamiccontroller.RequeueAfter(classRetry + rand.N(classRetry))
			}
			defer room.leave(class)
			return handler(ctx, id)
		}
	}
}

// classes counts the calls of each class.
type classes struct {
	most int

	mu      sync.Mutex     // guards running
	running map[string]int // without classes that have none
}

func (c *classes) enter(class string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running[class] >= c.most {
		return false
	}
	c.running[class]++
	return true
}

func (c *classes) leave(class string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running[class]--; c.running[class] == 0 {
		delete(c.running, class)
	}
}
