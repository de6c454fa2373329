package children

import (
	"context"
	"fmt"
	"runtime/debug"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
)

// DefaultMaxConcurrentApplies is the default of Config.MaxConcurrentApplies. On a server with a latency of 10 ms, more
// concurrent requests of one parent hardly save time.
const DefaultMaxConcurrentApplies = 16

// maxConcurrentBytes limits the total size of the children of a parent that are applied at the same time. A response is
// several times as large while it is decoded.
const maxConcurrentBytes = 1 << 20

// extraApplies limits the goroutines that apply children in addition to the callers of Reconcile, in the whole process.
// Otherwise, many parents with many children could send so many requests that all others wait in the API server.
var extraApplies = semaphore.NewWeighted(DefaultMaxConcurrentApplies)

// inParallel calls f for the children, in the goroutine of the caller and in as many others as the limits above allow.
// If the context ends, the remaining children fail. If f panics, inParallel panics with the text and the stack once all
// calls have returned.
func (c *call) inParallel(ctx context.Context, children []*child, f func(*child)) {
	queue := make(chan *child, len(children))
	for _, child := range children {
		queue <- child
	}
	close(queue)
	size := semaphore.NewWeighted(maxConcurrentBytes)
	work := func() (err error) {
		defer func() {
			if value := recover(); value != nil {
				err = fmt.Errorf("panic: %v\n%s", value, debug.Stack())
			}
		}()
		for child := range queue {
			bytes := min(child.Size, maxConcurrentBytes)
			if err := size.Acquire(ctx, bytes); err != nil {
				child.fail(context.Cause(ctx))
				continue
			}
			func() {
				defer size.Release(bytes)
				f(child)
			}()
		}
		return nil
	}
	var group errgroup.Group
	for range min(c.config.MaxConcurrentApplies, len(children)) - 1 {
		if c.planner != nil || !extraApplies.TryAcquire(1) {
			break
		}
		group.Go(func() error {
			defer extraApplies.Release(1)
			return work()
		})
	}
	err := work()
	if others := group.Wait(); err == nil {
		err = others
	}
	if err != nil {
		panic(err)
	}
}
