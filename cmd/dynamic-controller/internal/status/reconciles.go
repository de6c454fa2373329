package status

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Reconciles counts reconciles by type and outcome. It calls the next Metrics, and is safe for concurrent use. The zero
// value of its other fields is ready to use.
type Reconciles struct {
	dynamiccontroller.Metrics
	types sync.Map // from schema.GroupVersionResource to *counts
}

// counts contains the counts of one type.
type counts struct {
	byOutcome sync.Map // from dynamiccontroller.Outcome to *atomic.Uint64
	took      atomic.Int64
}

// Reconciled implements [dynamiccontroller.Metrics].
func (r *Reconciles) Reconciled(
	gvr schema.GroupVersionResource, outcome dynamiccontroller.Outcome, took time.Duration,
) {
	r.Metrics.Reconciled(gvr, outcome, took)
	known, found := r.types.Load(gvr)
	if !found {
		known, _ = r.types.LoadOrStore(gvr, &counts{})
	}
	c := known.(*counts)
	count, found := c.byOutcome.Load(outcome)
	if !found {
		count, _ = c.byOutcome.LoadOrStore(outcome, &atomic.Uint64{})
	}
	count.(*atomic.Uint64).Add(1)
	c.took.Add(int64(took))
}

// Forget implements [dynamiccontroller.Metrics].
func (r *Reconciles) Forget(gvr schema.GroupVersionResource) {
	r.Metrics.Forget(gvr)
	r.types.Delete(gvr)
}

// of returns the counts of a type and the total duration of its reconciles.
func (r *Reconciles) of(gvr schema.GroupVersionResource) (byOutcome map[string]uint64, took time.Duration) {
	byOutcome = map[string]uint64{}
	known, found := r.types.Load(gvr)
	if !found {
		return byOutcome, 0
	}
	c := known.(*counts)
	c.byOutcome.Range(func(outcome, count any) bool {
		byOutcome[string(outcome.(dynamiccontroller.Outcome))] = count.(*atomic.Uint64).Load()
		return true
	})
	return byOutcome, time.Duration(c.took.Load())
}
