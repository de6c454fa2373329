package replica

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/election"
)

// keepFactor is the duration of the fleet's Lease in multiples of LeaseDuration. It is the time for which the Lease
// keeps replicas without shards from leading, after its last renewal. It leaves time for another member to become the
// fleet's leader, so that the shards continue while the leader is replaced.
const keepFactor = 4

// keep is the certainty that the fleet's Lease keeps replicas without shards from leading. Each term of a shard depends
// on it. It is safe for concurrent use, and takes no locks.
type keep struct {
	clock clock
	state atomic.Pointer[keepState]
}

type keepState struct {
	renewed  instant // a time at which the last renewal had not yet taken effect
	validity time.Duration
	cause    error // why there is no certainty, nil if there is
}

func newKeep(clock clock) *keep {
	k := &keep{clock: clock}
	k.revoke(errors.New("no renewal of the fleet's lease has been observed"))
	return k
}

// renew records that the lease was renewed at the given time or later, for the duration in the Lease. As for the fence,
// a part of the duration is not used.
func (k *keep) renew(at instant, seconds int) {
	k.state.Store(&keepState{renewed: at, validity: election.Validity(time.Duration(seconds) * time.Second)})
}

// revoke ends the certainty until the next renewal.
func (k *keep) revoke(cause error) { k.state.Store(&keepState{cause: cause}) }

// check returns an error if replicas without shards may be able to lead. A nil keep depends on nothing.
func (k *keep) check() error {
	if k == nil {
		return nil
	}
	s := k.state.Load()
	if s.cause != nil {
		return s.cause
	}
	if k.clock.since(s.renewed) >= s.validity {
		return errKeepExpired
	}
	return nil
}

var errKeepExpired = errors.New("no renewal of the fleet's lease has been observed in time")
