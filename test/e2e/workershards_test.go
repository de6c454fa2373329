package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
	"github.com/dynamic-controller/engine/internal/shards"
	"github.com/dynamic-controller/engine/test/e2e/internal/history"
)

// shardLease returns the name of the lease of a shard.
func shardLease(fleet string, index int) string { return fmt.Sprintf("%s-shard-%d", fleet, index) }

func (j *job) shardLease(index int) string { return shardLease(j.Lease, index) }

// leaseOf returns the name of the lease that a context depends on. With shards, a context without a term depends on
// none.
func (w *worker) leaseOf(ctx context.Context) string {
	if index, count := replica.Shard(ctx); count > 1 {
		return w.shardLease(index)
	}
	if _, ok := replica.Term(ctx); !ok && w.Shards > 0 {
		return ""
	}
	return w.Lease
}

// recordWarmShards logs which shards the replica keeps warm, until ctx is cancelled.
func (w *worker) recordWarmShards(ctx context.Context) {
	const interval = 50 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	warm := map[int]bool{}
	for ctx.Err() == nil {
		for index, shard := range w.status().Shards {
			if shard.Warm == warm[index] {
				continue
			}
			warm[index] = shard.Warm
			kind := history.Cold
			if shard.Warm {
				kind = history.Warm
			}
			w.log.Add(history.Event{Kind: kind, Lease: w.shardLease(index)})
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// leftovers returns an error that describes what the engine still does for a shard. It must return nil when the watches
// of the shard have returned.
func (w *worker) leftovers(index, count int) (err error) {
	for _, gvr := range w.Types {
		if shards.Of(gvr.GroupResource(), count) != index {
			continue
		}
		s, failure := w.engine.TypeStatusOf(gvr)
		err = errors.Join(err, failure, leftoversOf(gvr, s))
	}
	return err
}

func leftoversOf(gvr schema.GroupVersionResource, s dynamiccontroller.TypeStatus) error {
	queued := s.Live + s.Background + s.Delayed
	if s.State == dynamiccontroller.TypeStopped && s.Objects == 0 && queued == 0 && s.Running == 0 {
		return nil
	}
	return fmt.Errorf("%s is %s with %d objects, %d of them queued and %d being reconciled",
		gvr.Resource, s.State, s.Objects, queued, s.Running)
}

// A trap makes a process stop or kill itself in a situation that lasts only for a moment. The test sets a trap by
// creating a file, which is removed by the process that reaches the trap.
type trap string

const (
	trapHandler     trap = "handler"      // A handler call waits until its shard moves, and then stops the process.
	trapSlowHandler trap = "slow handler" // A handler call waits until its shard moves, and then returns slowly.
	trapSend        trap = "send"         // A write that has passed the fence stops the process before it is sent.
	trapRelease     trap = "release"      // The process kills itself when it is about to release a shard.
)

func trapFile(dir, process string, t trap) string {
	return filepath.Join(dir, process+"-"+string(t)+".trap")
}

// isTrap reports whether the test has set a trap for this process, and removes the trap.
func (w *worker) isTrap(t trap, lease string) bool {
	if os.Remove(trapFile(w.Traps, w.Process, t)) != nil {
		return false
	}
	w.log.Add(history.Event{Kind: history.Trapped, Lease: lease, Error: string(t)})
	return true
}

// stopItself stops the process until the test resumes it.
func (w *worker) stopItself() {
	w.log.Add(history.Event{Kind: history.Stopped})
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
}

// linger delays the return of a handler call whose context is cancelled, while the replica leads the shard. The shard
// must not be released in the meantime.
func (w *worker) linger(ctx context.Context) {
	const (
		interval = 10 * time.Millisecond
		longest  = 500 * time.Millisecond
	)
	index, _ := replica.Shard(ctx)
	for end := time.Now().Add(longest); time.Now().Before(end); <-time.After(interval) {
		if all := w.status().Shards; index >= len(all) || !all[index].Leading {
			return
		}
	}
}

// killItself does not return.
func (w *worker) killItself() {
	w.log.Add(history.Event{Kind: history.Killed})
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
