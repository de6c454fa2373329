package dynamiccontroller_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// BenchmarkFlow measures how long an object of one namespace waits for the 5,000 waiting objects of another namespace.
// The handler takes 20 ms, and there are 10 workers. An operation is a reconcile of all objects. Run it with
//
//	go test -run '^$' -bench 'Flow$' -benchtime 1x ./dynamiccontroller
func BenchmarkFlow(b *testing.B) {
	for name, opts := range map[string][]dynamiccontroller.ServeOption{
		"none": nil, "namespace": {byNamespace},
		"namespace-limit-9": {byNamespace, dynamiccontroller.WithFlowConcurrency(9)},
	} {
		b.Run("flow="+name, func(b *testing.B) { benchmarkFlow(b, opts) })
	}
}

func benchmarkFlow(b *testing.B, opts []dynamiccontroller.ServeOption) {
	const objects, work = 5000, 20 * time.Millisecond
	gvr := benchTypes(1)[0]
	id := func(namespace string, n int) dynamiccontroller.ObjectIdentifiers {
		return dynamiccontroller.ObjectIdentifiers{GVR: gvr, NamespacedKey: fmt.Sprintf("%s/%d", namespace, n)}
	}
	busy := make([]dynamiccontroller.ObjectIdentifiers, objects)
	for n := range busy {
		busy[n] = id("busy", n)
	}
	c := benchController(memory{})
	var calls atomic.Int64
	var left atomic.Pointer[countdown]
	called := make(chan time.Time, 1)
	err := c.StartServingGVK(b.Context(), gvr, func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		if id.Namespace() == "quiet" {
			called <- time.Now()
		}
		calls.Add(1)
		time.Sleep(work)
		left.Load().done()
		return nil
	}, opts...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(benchRun(b, c.Run))
	if err := c.WaitForGVRSync(b.Context(), gvr); err != nil { // until a run serves the type, Enqueue drops
		b.Fatal(err)
	}
	var waited time.Duration
	for b.Loop() {
		reconciled := newCountdown(objects + 1)
		left.Store(reconciled)
		c.Enqueue(busy...)
		time.Sleep(10*work + work/2)
		began := time.Now()
		c.Enqueue(id("quiet", 0))
		waited += (<-called).Sub(began)
		<-reconciled.zero
	}
	b.ReportMetric(float64(waited.Milliseconds())/float64(b.N), "waited-ms/op")
	b.ReportMetric(float64(calls.Load())/float64(b.N), "calls/op")
}
