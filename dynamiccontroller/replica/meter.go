package replica

import (
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
	"github.com/dynamic-controller/engine/internal/protect"
	"github.com/dynamic-controller/engine/internal/shards"
)

// ShardMeter is implemented by runnables of [ScopeShard] that report the cost of a shard. A DynamicController
// implements it. The planner balances shards by their cost. Without it, all shards count the same.
type ShardMeter interface {
	// ShardLoad returns the number of objects that are in memory for the shard, and since the shard's term began, the time
	// that handlers have been busy with it, and the number of changes of objects that were received. It returns false if
	// these are unknown. The replica calls it every two LeaseDurations while it leads the shard, and uses the median of
	// five intervals. ShardLoad must not block, and must not call methods of the Replica.
	ShardLoad(index, count int) (objects int, busy time.Duration, changes int64, ok bool)
}

// usageOf returns the usage of a shard, summed over its runnables. It returns false if no runnable reports one.
func usageOf(of shards.Shard, runnables []namedRunnable) (usage fleet.Usage, known bool) {
	for _, n := range runnables {
		meter, ok := n.runnable.(ShardMeter)
		if !ok {
			continue
		}
		_ = protect.Call(func() {
			objects, busy, changes, ok := meter.ShardLoad(of.Index, of.Count)
			usage.Objects += objects
			usage.Busy += busy
			usage.Changes += changes
			known = known || ok
		})
	}
	return usage, known
}
