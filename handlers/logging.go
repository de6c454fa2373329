package handlers

import (
	"context"
	"time"

	"github.com/go-logr/logr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// outcomeDone is the logged outcome for a nil error.
const outcomeDone = "done"

// Logging logs the outcome and the duration of each call at V(1). It uses the logger in the context, to which the
// engine has added the object and, at V(1), the cause of the call. Errors are logged at the same level because the
// engine already logs parked objects, and the first of several consecutive failures, for operators.
func Logging() Middleware {
	return func(handler dynamiccontroller.Handler) dynamiccontroller.Handler {
		return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			start := time.Now()
			err := handler(ctx, id)
			if log := logr.FromContextOrDiscard(ctx).V(1); log.Enabled() {
				outcome := outcomeDone
				if err != nil {
					outcome = err.Error()
				}
				log.Info("Reconciled", keyOutcome, outcome, keyTook, time.Since(start).String())
			}
			return err
		}
	}
}
