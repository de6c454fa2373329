package handlers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// ErrTimeout is the cause with which [Timeout] ends a handler's context, and what the handler's error says then.
var ErrTimeout = errors.New("the handler took longer than its timeout")

// Timeout ends the handler's context after d, with the cause [ErrTimeout]. It waits for the handler to return, which is
// up to the handler: its object is in hand for as long. It is for a part of a chain; for a whole handler there is
// dynamiccontroller.WithReconcileTimeout.
//
// It writes nothing and needs no rights.
func Timeout(d time.Duration) Middleware {
	return func(handler dynamiccontroller.Handler) dynamiccontroller.Handler {
		return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			ctx, cancel := context.WithTimeoutCause(ctx, d, ErrTimeout)
			defer cancel()
			err := handler(ctx, id)
			// An error of the handler's own making stays what it is.
			if errors.Is(err, context.DeadlineExceeded) && errors.Is(context.Cause(ctx), ErrTimeout) && !errors.Is(err, ErrTimeout) {
				return fmt.Errorf("%w: %w", ErrTimeout, err)
			}
			return err
		}
	}
}
