package handlers

import (
	"context"
	"time"

	"github.com/go-logr/logr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// outcomeDone stands in the log for a nil error.
const outcomeDone = "done"

// Logging tells each call's outcome and duration at V(1), with the context's logger, in which the engine has put the
// object. An error is an outcome like another: the engine tells an operator of the first failure in a row and of a parked
// object, and nobody needs to read that twice.
//
// It writes nothing and needs no rights.
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
				log.Info("reconciled", keyOutcome, outcome, keyTook, time.Since(start).String())
			}
			return err
		}
	}
}
