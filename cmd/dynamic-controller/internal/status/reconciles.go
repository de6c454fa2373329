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
func (r *Reconciles) Reconciled(done dynamiccontroller.Reconcile) {
	r.Metrics.Reconciled(done)
	known, found := r.types.Load(done.GVR)
	if !found {
		known, _ = r.types.LoadOrStore(done.GVR, &counts{})
	}
	c := known.(*counts)
	count, found := c.byOutcome.Load(done.Outcome)
	if !found {
		count, _ = c.byOutcome.LoadOrStore(done.Outcome, &atomic.Uint64{})
	}
	count.(*atomic.Uint64).Add(1)
	c.took.Add(int64(done.Took))
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
