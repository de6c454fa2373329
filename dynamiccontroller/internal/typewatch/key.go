package typewatch

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/internal/shards"
)

// Selection describes which objects are watched. Selections that are equal describe the same objects.
type Selection struct {
	GVR           schema.GroupVersionResource
	Namespaces    string // separated by commas, sorted and without duplicates; empty for all namespaces
	LabelSelector string // empty for all objects
	FieldSelector string // empty for all objects
	// BucketLabel is the label that contains the bucket of the type to which an object belongs. If it is not empty, the
	// selection is narrowed to the shard of the subscription's [Activity].
	BucketLabel string
}

// Key identifies a watch: its objects and what is stored of them. The key of a watch never changes.
type Key struct {
	Selection
	// Shard is set by the pool. The zero Shard does not narrow the watch.
	Shard      shards.Shard
	Projection objects.Projection
}

// labelSelector returns the selector for requests.
func (k Key) labelSelector() string {
	narrowing := ""
	if k.Shard.Count > 0 {
		narrowing = k.Shard.Selector(k.BucketLabel)
	}
	if k.LabelSelector == "" || narrowing == "" {
		return k.LabelSelector + narrowing
	}
	return k.LabelSelector + "," + narrowing
}
