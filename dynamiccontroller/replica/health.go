package replica

import (
	"errors"
	"fmt"
	"strings"
)

// The names of the health checks, as used in the errors from Alive and Ready.
const (
	checkLeaseRenewal     = "lease-renewal"
	checkRunnableShutdown = "runnable-shutdown"
	checkRunning          = "running"
	checkSync             = "sync"
)

// checkError returns an error that names the failed check, or nil if err is nil.
func checkError(check string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("check %q failed: %w", check, err)
}

// Alive is a liveness check. It returns an error if the process should be restarted. The error names each failed check:
//
//   - lease-renewal: a term continues although its lease was not renewed for LeaseDuration. This indicates a bug. The
//     check fails only if the term continues for another RetryPeriod after Alive first observed this, because a process
//     that was suspended, or whose wall clock has jumped, needs a moment to end the term.
//   - runnable-shutdown: leader-gated runnables have not returned within ShutdownTimeout after their contexts were
//     cancelled, or the work that they have left running has not. This replica cannot lead again before that. With
//     shards, this includes the runnables of shards that this replica no longer leads or keeps warm, but not the work
//     that they have left running, because another replica can lead the shard.
//
// Alive does not fail on a standby or while the API server is unreachable. It makes no requests.
func (r *Replica) Alive() error {
	var renewal, shutdown error
	leaderships, hungWarming := []*leadership{r.leadership}, ""
	if r.member != nil {
		leaderships = append(leaderships, r.member.shards.leaderships()...)
		hungWarming = r.member.shards.hung(r.options.ShutdownTimeout)
	}
	for _, l := range leaderships {
		if t := l.fence.latest(); t != nil {
			renewal = errors.Join(renewal, t.overdue(r.options.clockSkew(), r.options.RetryPeriod))
		}
		if names := l.hung(r.options.ShutdownTimeout); names != "" {
			shutdown = errors.Join(shutdown, fmt.Errorf(
				"runnables have not returned within %s after their contexts were cancelled: %s",
				r.options.ShutdownTimeout, names))
		}
	}
	if hungWarming != "" {
		shutdown = errors.Join(shutdown, fmt.Errorf(
			"runnables have not returned within %s after their shard was no longer kept warm: %s",
			r.options.ShutdownTimeout, hungWarming))
	}
	return errors.Join(checkError(checkLeaseRenewal, renewal), checkError(checkRunnableShutdown, shutdown))
}

// CacheSyncer is implemented by runnables of [ScopeReplica] that keep caches up to date. The result of the Watches
// method of a DynamicController implements it.
type CacheSyncer interface {
	// HasSynced reports whether the caches are complete. It must not block.
	HasSynced() bool
}

// Ready is a readiness check. It does not depend on leadership, so that a standby can be ready. It makes no requests.
// The error names the failed check:
//
//   - running: Run has not been called or has started to stop the per-replica runnables.
//   - sync: HasSynced of a per-replica runnable returns false. With shards, it also fails until the shards that this
//     replica should lead or keep warm have synced for the first time. For up to four LeaseDurations, it also waits
//     until it is planned which ones these are, and until the other replicas have synced their shards.
func (r *Replica) Ready() error {
	r.mu.Lock()
	registered, state := r.registered, r.runState
	r.mu.Unlock()
	if state != running {
		return checkError(checkRunning, errors.New("the replica is not running"))
	}
	var waiting []string
	for _, n := range registered {
		if s, ok := n.runnable.(CacheSyncer); ok && !s.HasSynced() {
			waiting = append(waiting, n.name)
		}
	}
	if len(waiting) > 0 {
		return checkError(checkSync, fmt.Errorf("runnables have not synced: %s", strings.Join(waiting, ", ")))
	}
	if r.member != nil {
		return checkError(checkSync, r.member.readiness.Check())
	}
	return nil
}
