package replica

import (
	"errors"
	"fmt"
	"strings"
)

// Alive is for a liveness probe: an error says that this process should be replaced. That is so if its term goes on though
// the lease was not renewed for LeaseDuration, which should be impossible, and still does RetryPeriod after Alive first saw
// it: a process that was stopped, or whose wall clock has jumped, may be asked before it could end the term. And if runnables of the leading half have not
// returned for more than ShutdownTimeout after their contexts ended, which keeps this replica from ever leading again.
//
// Not to lead, and not to reach the API server, is no reason. It makes no request.
func (r *Replica) Alive() error {
	if t := r.leads.fence.latest(); t != nil {
		if err := t.overdue(r.options.skew(), r.options.RetryPeriod); err != nil {
			return err
		}
	}
	if left := r.leads.hung(r.options.ShutdownTimeout); left != "" {
		return fmt.Errorf("these have not returned for more than %s after their contexts ended: %s", r.options.ShutdownTimeout, left)
	}
	return nil
}

// Ready is for a readiness probe: it is nil while Run runs and all runnables of the per-replica half that have a method
// HasSynced() bool say true. Whether this replica leads is of no matter, so that a standby is ready. It makes no request.
func (r *Replica) Ready() error {
	r.mu.Lock()
	registered, phase := r.registered, r.phase
	r.mu.Unlock()
	if phase != running {
		return errors.New("the replica does not run")
	}
	var waiting []string
	for _, n := range registered {
		if s, ok := n.runnable.(interface{ HasSynced() bool }); ok && !s.HasSynced() {
			waiting = append(waiting, n.name)
		}
	}
	if len(waiting) > 0 {
		return fmt.Errorf("these have not synced: %s", strings.Join(waiting, ", "))
	}
	return nil
}
