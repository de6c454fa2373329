package dynamiccontroller_test

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// maxAllocations is the budget for adding an object to the queue, reconciling it and settling the outcome.
const maxAllocations = 11

// reconcileOnce returns a function that enqueues an object and waits until its handler has returned.
func reconcileOnce(tb testing.TB) (reconcile func()) {
	f := newFixture(&testing.T{}, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
	gvr := f.types[0]
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- f.controller.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			tb.Error(err)
		}
	})
	called := make(chan struct{})
	if err := f.controller.StartServingGVK(ctx, gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
		called <- struct{}{}
		return nil
	}); err != nil {
		tb.Fatal(err)
	}
	if err := f.controller.WaitForGVRSync(ctx, gvr); err != nil {
		tb.Fatal(err)
	}
	id := dynamiccontroller.ObjectIdentifiers{NamespacedKey: "default/a", GVR: schema.GroupVersionResource(gvr)}
	return func() {
		f.controller.Enqueue(id)
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
