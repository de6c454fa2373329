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

// inParallel calls f for the children. The calls are concurrent, within the limits above. If the context ends, the
// remaining children fail. If f panics, inParallel panics with the text and the stack, once all calls have returned.
func (c *call) inParallel(ctx context.Context, children []*child, f func(*child)) {
	if len(children) == 1 {
		f(children[0])
		return
	}
	var group errgroup.Group
	group.SetLimit(c.config.MaxConcurrentApplies)
	size := semaphore.NewWeighted(maxConcurrentBytes)
	for _, child := range children {
		bytes := min(child.size, maxConcurrentBytes)
		if err := size.Acquire(ctx, bytes); err != nil {
			child.settle(nil, context.Cause(ctx))
			continue
		}
		group.Go(func() (err error) {
			defer size.Release(bytes)
			defer func() {
				if value := recover(); value != nil {
					err = fmt.Errorf("panic: %v\n%s", value, debug.Stack())
				}
			}()
			f(child)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		panic(err)
	}
}
