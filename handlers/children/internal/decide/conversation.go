package decide

import (
	"fmt"
	"iter"
	"runtime/debug"
)

// conversation runs a function that asks questions, so that the caller can answer one at a time, and stop.
type conversation[Q, A any] struct {
	answer    A
	isStopped bool
	next      func() (Q, bool)
	stop      func()
}

// converse begins a conversation. After stop, and for every question that the caller has not answered, the function
// gets the answer stopped. It then must return.
func converse[Q, A any](stopped A, talk func(ask func(Q) A)) *conversation[Q, A] {
	c := &conversation[Q, A]{answer: stopped}
	c.next, c.stop = iter.Pull(func(yield func(Q) bool) {
		defer func() {
			if value := recover(); value != nil { // the stack of the caller does not contain this one
				panic(fmt.Sprintf("%v\n%s", value, debug.Stack()))
			}
		}()
		talk(func(question Q) A {
			if !c.isStopped {
				c.answer = stopped
				c.isStopped = !yield(question)
			}
			if c.isStopped {
				return stopped
			}
			return c.answer
		})
	})
	return c
}

// First returns the first question, and whether there is one.
func (c *conversation[Q, A]) First() (Q, bool) { return c.next() }

// Next returns the question that follows the answer to the last one, and whether there is one.
func (c *conversation[Q, A]) Next(answer A) (Q, bool) {
	c.answer = answer
	return c.next()
}

// Stop ends the conversation. It can be called at any time, and more than once. All methods must be called by the
// goroutine that began the conversation: iter.Pull ends the process if another one is locked to its thread.
func (c *conversation[Q, A]) Stop() { c.stop() }
