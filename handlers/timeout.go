package handlers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// ErrTimeout is the cancellation cause of a context that [Timeout] cancels. If the handler returns an error because of
// the timeout, ErrTimeout is joined to that error.
var ErrTimeout = errors.New("the handler took longer than its timeout")

// Timeout cancels the handler's context after d with the cause [ErrTimeout], and waits until the handler returns. Use
// it for part of a chain. To limit the duration of a whole handler, use dynamiccontroller.WithReconcileTimeout.
func Timeout(d time.Duration) Middleware {
	return func(handler dynamiccontroller.Handler) dynamiccontroller.Handler {
		return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			ctx, cancel := context.WithTimeoutCause(ctx, d, ErrTimeout)
			defer cancel()
			err := handler(ctx, id)
			// Any other error from the handler is not caused by the timeout.
			expired := errors.Is(context.Cause(ctx), ErrTimeout) && errors.Is(err, context.DeadlineExceeded)
			if expired && !errors.Is(err, ErrTimeout) {
				return fmt.Errorf("%w: %w", ErrTimeout, err)
			}
			return err
		}
	}
}
