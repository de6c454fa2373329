package handlers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// ErrTimeout is the cancellation cause of a context that is cancelled by [Timeout]. It is also returned, together with
// the handler's error, if the handler returns an error because of the timeout.
var ErrTimeout = errors.New("the handler took longer than its timeout")

// Timeout cancels the handler's context after d, with the cause [ErrTimeout]. It waits until the handler returns. Use
// it for a part of a chain. To limit the duration of a whole handler, use dynamiccontroller.WithReconcileTimeout.
func Timeout(d time.Duration) Middleware {
	return func(handler dynamiccontroller.Handler) dynamiccontroller.Handler {
		return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			ctx, cancel := context.WithTimeoutCause(ctx, d, ErrTimeout)
			defer cancel()
			err := handler(ctx, id)
			// Other errors of the handler do not result from the timeout.
			expired := errors.Is(context.Cause(ctx), ErrTimeout) && errors.Is(err, context.DeadlineExceeded)
			if expired && !errors.Is(err, ErrTimeout) {
				return fmt.Errorf("%w: %w", ErrTimeout, err)
			}
			return err
		}
	}
}
