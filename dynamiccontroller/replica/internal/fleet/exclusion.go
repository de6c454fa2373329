package fleet

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/election"
)

// LeaseFactor is the duration of the fleet's Lease in multiples of LeaseDuration. It is the time for which the Lease
// keeps replicas without shards from leading, after its last renewal. It leaves time for another member to become the
// fleet's leader, so that the shards continue while the leader is replaced.
const LeaseFactor = election.FleetFactor

// Exclusion is the certainty that the fleet's Lease keeps replicas without shards from leading. Each term of a shard
// depends on it. It is safe for concurrent use, and takes no locks.
type Exclusion struct {
	now   func() election.Instant
	state atomic.Pointer[exclusionState]
}

type exclusionState struct {
	renewed  election.Instant // a time at which the last renewal had not yet taken effect
	validity time.Duration
	cause    error // why there is no certainty, nil if there is
}

// NewExclusion returns an Exclusion without certainty.
func NewExclusion(now func() election.Instant) *Exclusion {
	e := &Exclusion{now: now}
	e.Revoke(errors.New("no renewal of the fleet's lease has been observed"))
	return e
}

// Renew records that the Lease was renewed at the given time or later, for the duration in the Lease. As for a term, a
// part of the duration is not used.
func (e *Exclusion) Renew(at election.Instant, seconds int) {
	e.state.Store(&exclusionState{renewed: at, validity: election.Validity(time.Duration(seconds) * time.Second)})
}

// Revoke ends the certainty until the next renewal.
func (e *Exclusion) Revoke(cause error) { e.state.Store(&exclusionState{cause: cause}) }

// Check returns an error if replicas without shards may be able to lead.
func (e *Exclusion) Check() error {
	s := e.state.Load()
	switch {
	case s.cause != nil:
		return s.cause
	case e.now().Since(s.renewed) >= s.validity:
		return errExclusionExpired
	default:
		return nil
	}
}

var errExclusionExpired = errors.New("no renewal of the fleet's lease has been observed in time")
