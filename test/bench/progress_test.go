package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// progress records which objects of a type have been reconciled.
type progress struct {
	seen  []atomic.Bool
	left  atomic.Int64
	calls atomic.Int64

	begun, done func() // Called on the first reconcile, and when all objects have been reconciled.
	isBegun     <-chan struct{}
	isDone      <-chan struct{}
}

func newProgress(objects int) *progress {
	p := &progress{seen: make([]atomic.Bool, objects)}
	p.left.Store(int64(objects))
	p.begun, p.isBegun = signal()
	p.done, p.isDone = signal()
	return p
}

// signal returns a function and a channel that the function closes. The function can be called several times.
func signal() (fire func(), fired <-chan struct{}) {
	ch := make(chan struct{})
	return sync.OnceFunc(func() { close(ch) }), ch
}

// handler records a reconcile of the object with the key.
func (p *progress) handler(key string) {
	if p.calls.Add(1) == 1 {
		p.begun()
	}
	if n := numberOf(key); !p.seen[n].Swap(true) && p.left.Add(-1) == 0 {
		p.done()
	}
}

// numberOf returns the number of the object with the key. It is the inverse of nameOf.
func numberOf(key string) int {
	n, err := strconv.Atoi(key[strings.LastIndexByte(key, '-')+1:])
	if err != nil {
		panic(err) // All objects are named by nameOf.
	}
	return n
}

// wait waits until all objects have been reconciled.
func (p *progress) wait(ctx context.Context) error {
	const timeout = 10 * time.Minute
	if err := await(ctx, p.isDone, timeout); err != nil {
		return fmt.Errorf("%d of %d objects were not reconciled: %w", p.left.Load(), len(p.seen), err)
	}
	return nil
}

var errTimeout = errors.New("timed out")

// await waits until the channel is closed. It fails after the timeout.
func await(ctx context.Context, ch <-chan struct{}, timeout time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
	defer cancel()
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
