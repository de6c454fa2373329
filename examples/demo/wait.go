package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// condition is a condition that objects in the API server must meet.
type condition struct {
	what  string
	check func(context.Context) error // returns nil if the condition is true
}

// permanentError is an error after which a condition is not checked again.
type permanentError struct{ error }

// waitFor waits until a condition is true. After a second, it reports the condition on stderr.
func waitFor(ctx context.Context, c condition) error {
	const timeout = 15 * time.Second
	return waitWithin(ctx, timeout, c)
}

func waitWithin(ctx context.Context, timeout time.Duration, c condition) error {
	const pollInterval = 2 * time.Millisecond
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("gave up after %s", timeout))
	defer cancel()
	slow := time.AfterFunc(time.Second, func() { fmt.Fprintf(os.Stderr, "waiting until %s\n", c.what) })
	defer slow.Stop()
	last := errors.New("the condition was not checked")
	for {
		err := c.check(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		if errors.As(err, &permanentError{}) {
			return fmt.Errorf("%s: %w", c.what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("condition %q was not met (%w; last error: %w)", c.what, context.Cause(ctx), last)
		case <-time.After(pollInterval):
		}
	}
}
