package replica

import (
	"context"

	"github.com/dynamic-controller/engine/internal/shards"
)

// Scope determines where and when a runnable runs, and which context it gets.
type Scope int

const (
	// ScopeLeader is the scope of leader-gated runnables. The runnable starts with each term. Its context carries the term
	// (see [Term]) and is cancelled with a cause, which is [ErrLeaseLost] if the lease was lost. With shards, it runs on
	// the leader of the fleet.
	ScopeLeader Scope = iota
	// ScopeReplica is the scope of per-replica runnables. The runnable starts once, with Run, and is stopped after the
	// leader-gated runnables have returned. It should only read, because a client created from FencedConfig refuses
	// writes unless this replica leads. If it is a [CacheSyncer], Ready returns an error until HasSynced returns true.
	ScopeReplica
	// ScopeShard runs a runnable once for each shard that this replica leads. It starts with each term of a shard. Its
	// context carries the term of the shard, and the shard (see [Shard]), so that the Run method of a DynamicController
	// reconciles the types of the shard. Several shards run at the same time, so Run of the runnable must allow concurrent
	// calls. In all other respects, the runnable is like one of ScopeLeader. With one shard, which is the default, it is
	// the same.
	ScopeShard
	// ScopeWarmShard runs a runnable once for each shard that this replica leads or keeps warm. Two replicas keep each
	// shard warm, so that one of them can lead it without a delay when the other one ends. The context carries the shard
	// (see [Shard]). The runnable starts before those of ScopeShard, and is stopped after they have returned, when the
	// replica no longer keeps the shard warm. It should only read.
	//
	// If the runnable is a [ShardSyncer], a shard is moved to this replica once HasSyncedShard has returned true. Of a
	// DynamicController, register the result of Watches. With one shard, which is the default, the scope is the same as
	// ScopeReplica.
	ScopeWarmShard
)

// within returns the scope that applies with the options. Without shards, there are only two.
func (s Scope) within(o Options) Scope {
	switch {
	case s == ScopeShard && !o.isSharded():
		return ScopeLeader
	case s == ScopeWarmShard && !o.isSharded():
		return ScopeReplica
	default:
		return s
	}
}

// Shard returns the shard that ctx carries, and the number of shards. The contexts of runnables for shards carry one,
// and so do contexts derived from them. For all other contexts, Shard returns 0 and 1: the only shard of one.
func Shard(ctx context.Context) (index, count int) {
	s := shards.From(ctx)
	return s.Index, s.Count
}
