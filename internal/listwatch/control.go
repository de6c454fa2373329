package listwatch

import (
	"context"
	"errors"
	"sync"
)

// errInterrupted is the cause with which a request is cancelled because of a command.
var errInterrupted = errors.New("interrupted")

// noCommand is the zero kind.
const noCommand = listed

// control passes commands from other goroutines to a Loop.
type control struct {
	wake chan struct{} // ends a delay; holds one value

	mu      sync.Mutex // guards the fields below
	cancel  context.CancelCauseFunc
	command kind // vanished, historyBegan, relistRequested or noCommand
	began   bool // the first request of the run was sent
}

// interrupt sets a command and ends the current request. If several commands are pending, the first kind of vanished,
// historyBegan and relistRequested takes precedence.
func (c *control) interrupt(command kind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.began {
		return // the result of the first list determines what to do
	}
	if c.command != vanished && (c.command != historyBegan || command == vanished) {
		c.command = command
	}
	if c.cancel != nil {
		c.cancel(errInterrupted)
	}
}

// prepare registers a request that waits before it is sent. It returns false if a command is pending.
func (c *control) prepare(cancel context.CancelCauseFunc) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel = cancel
	return c.command == noCommand
}

// begin registers a request. It returns false if a command is pending, so that the request must not be sent.
func (c *control) begin(cancel context.CancelCauseFunc) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.began, c.cancel = true, cancel
	return c.command == noCommand
}

// take returns the pending command.
func (c *control) take() kind {
	c.mu.Lock()
	defer c.mu.Unlock()
	command := c.command
	c.command = noCommand
	return command
}

// end is called when Run returns.
func (c *control) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.began, c.cancel, c.command = false, nil, noCommand
}
