package replica

import (
	"context"
	"errors"
	"fmt"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
)

// errNotNow is returned to an elector that has acquired the Lease of a shard although the shard must not be led.
var errNotNow = errors.New("the shard cannot be led now")

// layoutCheck checks that a shard may be led, after its Lease was acquired. The fleet's leader announces a change of
// the layout before it waits for the Leases of all shards. A member that has acquired one either reads the
// announcement, or the leader waits for it.
type layoutCheck struct {
	shards int                                       // of the layout that the shard belongs to
	holder func(ctx context.Context) (string, error) // reads the holder identity of the fleet's Lease
	keep   *keep
}

func (m *fleetMember) layoutCheck(shards int) layoutCheck {
	return layoutCheck{shards: shards, holder: m.clients.holderOf(m.options), keep: m.keep}
}

// verify returns an error unless the shard may be led.
func (c layoutCheck) verify(ctx context.Context) error {
	holder, err := c.holder(ctx)
	if err != nil {
		return fmt.Errorf("%w: read the fleet's lease: %w", errNotNow, err)
	}
	if h, ok := fleet.ParseHolder(holder); !ok || h.Changing || h.Shards != c.shards {
		return fmt.Errorf("%w: the fleet's lease is held by %q", errNotNow, holder)
	}
	if err := c.keep.check(); err != nil {
		return fmt.Errorf("%w: %w", errNotNow, err)
	}
	return nil
}
