package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// sight is something to be seen at the API server.
type sight struct {
	what  string
	check func(context.Context) error // nil when it is seen
}

// hopeless is a reason not to look again.
type hopeless struct{ error }

// see looks until it sees.
func see(ctx context.Context, s sight) error {
	const patience = 15 * time.Second
	return seeWithin(ctx, patience, s)
}

func seeWithin(ctx context.Context, patience time.Duration, s sight) error {
	const pause = 2 * time.Millisecond
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("gave up after %s", patience))
	defer cancel()
	last := errors.New("there was none")
	for {
		err := s.check(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		if errors.As(err, &hopeless{}) {
			return fmt.Errorf("%s: %w", s.what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not seen: %s (%w; the last look: %w)", s.what, context.Cause(ctx), last)
		case <-time.After(pause):
		}
	}
}
