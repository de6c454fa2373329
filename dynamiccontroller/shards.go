package dynamiccontroller

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/internal/shards"
)

// WithShard returns a context with which [DynamicController.Run] and [DynamicController.RunWatches] serve one shard:
// one of count parts of the types. Without it, they serve all types. The shard of a type depends on its group and
// resource only, and is the same in every process and every release. The count must be between 1 and 256, and the index
// between 0 and count-1; otherwise, Run and RunWatches return an error that wraps [ErrInvalidOptions].
//
// Package replica sets the shard of the contexts that it passes to its runnables. WithShard is for programs that elect
// leaders in another way. All shards that a controller serves at the same time must have the same count, and so must
// those that it watches.
func WithShard(ctx context.Context, index, count int) context.Context {
	return shards.With(ctx, shards.Shard{Index: index, Count: count})
}

// BucketOf returns the bucket of a type: one of 256 parts of the types, as the value of a label. It depends on the
// type's group and resource only, and is the same in every process and every release. If the number of shards is a
// power of two, all types in a bucket are in the same shard. For its use, see [WithBucketLabel].
func BucketOf(gr schema.GroupResource) string { return shards.Bucket(gr) }

// validateShard returns an error if there is no such shard.
func validateShard(s shards.Shard) error {
	switch {
	case s.Count < 1 || s.Count > shards.Max:
		return invalid(fmt.Errorf("invalid shard %d of %d: the count must be between 1 and %d", s.Index, s.Count, shards.Max))
	case s.Index < 0 || s.Index >= s.Count:
		return invalid(fmt.Errorf("invalid shard %d of %d: the index must be between 0 and %d", s.Index, s.Count, s.Count-1))
	}
	return nil
}

// overlaps reports whether one of the current shards has types in common with another one.
func overlaps[V any](current map[shards.Shard]V, with shards.Shard) bool {
	for scope := range current {
		if scope.Count != with.Count || scope.Index == with.Index {
			return true
		}
	}
	return false
}

// isIn reports whether the type belongs to a shard.
func (r *registration) isIn(scope shards.Shard) bool {
	return scope.Count == 1 || r.indexAmong(scope.Count) == scope.Index
}

// indexAmong returns the index of the type's shard. It caches the last result.
func (r *registration) indexAmong(count int) int {
	if cached := r.shard.Load(); cached != nil && cached.Count == count {
		return cached.Index
	}
	shard := shards.Shard{Index: shards.Of(r.gvr.GroupResource(), count), Count: count}
	r.shard.Store(&shard)
	return shard.Index
}
