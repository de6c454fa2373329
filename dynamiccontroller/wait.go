package dynamiccontroller

import (
	"context"
	"time"

	"github.com/go-logr/logr"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/protect"
)

// await waits until done is closed or ctx is cancelled, and reports whether done is closed.
func await(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return typewatch.IsClosed(done)
	}
}

// withLimit returns a context that is cancelled after d, or only by cancel if d is negative.
func withLimit(d time.Duration) (ctx context.Context, cancel context.CancelFunc) {
	if d < 0 {
		return context.WithCancel(context.Background())
	}
	return context.WithTimeout(context.Background(), d)
}

// closedAfter calls f in a goroutine. The returned channel is closed when f returns.
func closedAfter(f func()) (done <-chan struct{}) {
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		f()
	}()
	return returned
}

// callUserCode calls f and reports whether f returned normally. If f panics or calls runtime.Goexit, callUserCode logs
// it with the message.
func callUserCode(log logr.Logger, message string, f func()) (returned bool) {
	mistake := protect.Isolate(f)
	if mistake != nil {
		log.Error(mistake, message, keyStack, string(mistake.Stack))
	}
	return mistake == nil
}

// activity is something that the end of a run, or of RunWatches, waits for.
type activity struct {
	description string
	done        <-chan struct{}
}
