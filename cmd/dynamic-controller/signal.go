package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// untilSignal returns a context that ends with the first SIGTERM or SIGINT. The next one ends the process at once.
func untilSignal(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		// The signals have their usual effect again before anybody can see that the context ended: signal.NotifyContext
		// would still take one then.
		select {
		case s := <-signals:
			signal.Stop(signals)
			cancel(fmt.Errorf("got the signal %q", s))
		case <-ctx.Done():
			signal.Stop(signals)
		}
	}()
	return ctx, func() { cancel(nil) }
}
