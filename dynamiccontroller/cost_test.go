package dynamiccontroller_test

import (
	"context"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// maxAllocations is the budget for adding an object to the queue, reconciling it and settling the outcome.
const maxAllocations = 11

// reconcileOnce returns a function that enqueues an object and waits until its handler has returned.
func reconcileOnce(tb testing.TB) (reconcile func()) {
	w := newWorld(&testing.T{}, 1, dynamiccontroller.Config{})
	gvr := w.types[0]
	w.controller = dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1}, w.client)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- w.controller.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			tb.Error(err)
		}
	})
	called := make(chan struct{})
	if err := w.controller.StartServingGVK(ctx, gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
		called <- struct{}{}
		return nil
	}); err != nil {
		tb.Fatal(err)
	}
	if err := w.controller.WaitForGVRSync(ctx, gvr); err != nil {
		tb.Fatal(err)
	}
	id := dynamiccontroller.ObjectIdentifiers{NamespacedKey: "default/a", GVR: schema.GroupVersionResource(gvr)}
	return func() {
		w.controller.Enqueue(id)
		<-called
	}
}

func TestReconcile_StaysWithinTheAllocationBudget(t *testing.T) {
	reconcile := reconcileOnce(t)
	if n := testing.AllocsPerRun(1000, reconcile); n > maxAllocations {
		t.Errorf("%.1f allocations per reconcile, want at most %d", n, maxAllocations)
	}
}

func BenchmarkReconcile(b *testing.B) {
	reconcile := reconcileOnce(b)
	b.ReportAllocs()
	for b.Loop() {
		reconcile()
	}
}
