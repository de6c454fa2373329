// Package shards divides the types into shards. Packages replica and dynamiccontroller do not import each other. They
// use this package to agree on the shard of a type, and to pass a shard in a context.
package shards

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Max is the maximum number of shards.
const Max = 256

// Shard is one of Count parts of the types. Shards with different counts overlap.
type Shard struct{ Index, Count int }

// Whole is the only shard of a layout with one shard. It contains all types.
var Whole = Shard{Index: 0, Count: 1}

// Contains reports whether a type is in the shard. The function depends on the arguments alone, and it must not change
// between releases, because replicas of different releases must agree. The version of the type has no influence,
// because two versions of a type are the same objects.
func (s Shard) Contains(gr schema.GroupResource) bool { return Of(gr, s.Count) == s.Index }

// Of returns the index of a type's shard.
func Of(gr schema.GroupResource, count int) int {
	sum := sha256.Sum256([]byte(gr.Group + "/" + gr.Resource))
	return int(binary.BigEndian.Uint64(sum[:]) % uint64(count)) //nolint:gosec // the remainder is small
}

// Bucket returns the bucket of a type, one of Max parts of the types, as the value of a label. A layout assigns whole
// buckets to its shards if the number of shards is a power of two. The bucket of a type does not depend on the layout,
// so that labelled objects need not be written when the layout changes.
func Bucket(gr schema.GroupResource) string { return strconv.Itoa(Of(gr, Max)) }

// HasBuckets reports whether a layout with the given number of shards assigns whole buckets to its shards.
func HasBuckets(count int) bool { return count > 0 && Max%count == 0 }

// Selector returns a label selector for the objects that belong to types of the shard. It also selects all objects
// without the label: they can belong to any type. The layout must have buckets. For the whole, Selector returns an
// empty string.
func (s Shard) Selector(label string) string {
	if s.Count == 1 {
		return ""
	}
	var others []string
	for bucket := range Max {
		if bucket%s.Count != s.Index {
			others = append(others, strconv.Itoa(bucket))
		}
	}
	return label + " notin (" + strings.Join(others, ",") + ")"
}

type key struct{}

// With returns a context that carries the shard.
func With(ctx context.Context, s Shard) context.Context { return context.WithValue(ctx, key{}, s) }

// From returns the shard that ctx carries. A context without a shard stands for all types.
func From(ctx context.Context) Shard {
	if s, ok := ctx.Value(key{}).(Shard); ok {
		return s
	}
	return Whole
}
