package dynamiccontroller

import (
	"context"
	"maps"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/lastwrites"
	"github.com/dynamic-controller/engine/internal/shards"
)

// A run waits for at most maxCatchUp. It waits in vain if a watch does not select the object of the newest write.
const (
	maxCatchUp      = 500 * time.Millisecond
	catchUpInterval = 5 * time.Millisecond
)

// catchUp waits until the caches of a run contain the last writes of the previous leader, which ctx carries.
// Otherwise, a handler could repeat a write, because it reads the state before it. Caches that have not synced are not
// waited for. Their first list contains these writes, unless an API server answers it from a cache that is behind.
func (c *DynamicController) catchUp(ctx context.Context, scope shards.Shard) {
	behind := c.subscriptionsTo(scope, lastwrites.From(ctx))
	ctx, cancel := context.WithTimeout(ctx, maxCatchUp)
	defer cancel()
	ticker := time.NewTicker(catchUpInterval)
	defer ticker.Stop()
	for {
		maps.DeleteFunc(behind, func(sub *typewatch.Subscription, version uint64) bool {
			return !sub.View().IsBehind(version)
		})
		if len(behind) == 0 {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// subscriptionsTo returns the subscriptions of the types in the scope, and of standalone watches, to resources that
// were written. The value of each is the version that its cache must contain.
func (c *DynamicController) subscriptionsTo(
	scope shards.Shard, writes lastwrites.Versions,
) map[*typewatch.Subscription]uint64 {
	if len(writes) == 0 {
		return nil
	}
	versions := map[*typewatch.Subscription]uint64{}
	add := func(sub *typewatch.Subscription) {
		if version, ok := writes[sub.View().GroupResource()]; ok {
			versions[sub] = version
		}
	}
	regs, _ := c.registeredIn(scope)
	for _, reg := range regs {
		add(reg.feed.Primary())
		for _, secondary := range reg.feed.Secondaries() {
			add(secondary)
		}
	}
	for _, w := range c.StandaloneWatches() {
		add(w.sub)
	}
	return versions
}
