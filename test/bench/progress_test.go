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

// progress is which of a type's objects have been reconciled.
type progress struct {
	seen  []atomic.Bool
	left  atomic.Int64
	calls atomic.Int64

	begun, done func() // at the first call, and when all were seen
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

// signal is a channel and what closes it, any number of times.
func signal() (fire func(), fired <-chan struct{}) {
	ch := make(chan struct{})
	return sync.OnceFunc(func() { close(ch) }), ch
}

// handler counts the object with the key.
func (p *progress) handler(key string) {
	if p.calls.Add(1) == 1 {
		p.begun()
	}
	if n := numberOf(key); !p.seen[n].Swap(true) && p.left.Add(-1) == 0 {
		p.done()
	}
}

// numberOf is the inverse of nameOf, on a key.
func numberOf(key string) int {
	n, err := strconv.Atoi(key[strings.LastIndexByte(key, '-')+1:])
	if err != nil {
		panic(err) // there are no other objects
	}
	return n
}

// wait returns when all objects have been reconciled.
func (p *progress) wait(ctx context.Context) error {
	const tooLong = 2 * time.Minute
	if err := await(ctx, p.isDone, tooLong); err != nil {
		return fmt.Errorf("%d of %d objects were not reconciled: %w", p.left.Load(), len(p.seen), err)
	}
	return nil
}

var errTooLong = errors.New("it takes too long")

// await waits for the channel to be closed.
func await(ctx context.Context, ch <-chan struct{}, atMost time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, atMost, errTooLong)
	defer cancel()
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
