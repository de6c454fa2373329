package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// objectReader is implemented by engines whose handlers can read objects from a cache.
type objectReader interface {
	// Reader returns a function that reads objects of a served type.
	Reader(gvr schema.GroupVersionResource) (func(key string) (runtime.Object, error), error)
}

// measureEvents measures what watch events cost while handlers return immediately, and the latency from sending a write
// until a handler has read that version of the object from the cache. The writes come from another process.
func measureEvents(ctx context.Context, r *run) (measures, error) {
	o, err := r.startObserver(ctx)
	if err != nil {
		return nil, err
	}
	takeFootprint()
	unread, err := o.observe(ctx, r)
	if err != nil {
		return nil, err
	}
	withRead, err := o.observeReads(ctx, r)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(o.end(), o.failure()); err != nil {
		return nil, err
	}
	m := append(unread.measures(""), withRead.measures("read-")...)
	return append(m, o.latency(withRead)...), nil
}

// measureRate measures only the second part of measureEvents: what watch events cost if the handlers read their objects
// from the cache, and the latency.
func measureRate(ctx context.Context, r *run) (measures, error) {
	o, err := r.startObserver(ctx)
	if err != nil {
		return nil, err
	}
	withRead, err := o.observeReads(ctx, r)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(o.end(), o.failure()); err != nil {
		return nil, err
	}
	return append(withRead.measures(""), o.latency(withRead)...), nil
}

// startObserver serves the type of the fixture and waits until all objects have been reconciled.
func (r *run) startObserver(ctx context.Context) (*observer, error) {
	gvr := r.Fixture.types()[0]
	e, end, err := r.engine(ctx, 1)
	if err != nil {
		return nil, err
	}
	readable, ok := e.(objectReader)
	if !ok {
		return nil, errors.New("handlers of the engine cannot read from a cache")
	}
	objects := r.Fixture.Objects[0]
	o := &observer{initial: newProgress(objects), newest: make([]atomic.Int64, objects), end: end}
	if err := e.Start(ctx, gvr, o.handler); err != nil {
		return nil, err
	}
	if err := o.initial.wait(ctx); err != nil {
		return nil, err
	}
	o.reader, err = readable.Reader(gvr)
	return o, err
}

// observer is the handler of measureEvents and measureRate.
type observer struct {
	initial *progress
	end     func() error // Ends the engine.
	reader  func(key string) (runtime.Object, error)
	read    atomic.Pointer[func(key string) (runtime.Object, error)] // If nil, the handler returns immediately.
	newest  []atomic.Int64                                           // The newest version that was read, by object.

	mu        sync.Mutex // Guards the fields below.
	latencies []time.Duration
	err       error
}

func (o *observer) handler(key string) {
	o.initial.handler(key)
	read := o.read.Load()
	if read == nil {
		return
	}
	sent, err := readSent(*read, key)
	latency := time.Duration(time.Now().UnixNano() - sent)
	if err == nil && !advance(&o.newest[numberOf(key)], sent) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		o.err = fmt.Errorf("read %s: %w", key, err)
		return
	}
	o.latencies = append(o.latencies, latency)
}

// observeReads calls observe while the handlers read their objects.
func (o *observer) observeReads(ctx context.Context, r *run) (eventCost, error) {
	o.read.Store(&o.reader)
	takeFootprint()
	cost, err := o.observe(ctx, r)
	if err != nil {
		return cost, errors.Join(err, o.failure())
	}
	return cost, nil
}

// latency returns the latencies of the handlers that read their objects.
func (o *observer) latency(withRead eventCost) measures {
	return append(quantiles("latency", o.latencies),
		measure{"write-p50-ns", withRead.writeP50},
		measure{"latencies/event", float64(len(o.latencies)) / withRead.events})
}

func (o *observer) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// readSent reads the object and returns the send time that the write of this version stored in it.
func readSent(read func(key string) (runtime.Object, error), key string) (int64, error) {
	object, err := read(key)
	if err != nil {
		return 0, err
	}
	u, ok := object.(runtime.Unstructured)
	if !ok {
		return 0, fmt.Errorf("the object is a %T, want runtime.Unstructured", object)
	}
	sent, _, err := unstructured.NestedInt64(u.UnstructuredContent(), "spec", "n")
	return sent, err
}

// advance stores value in *to if it is greater than the current value, and reports whether it was.
func advance(to *atomic.Int64, value int64) bool {
	for {
		old := to.Load()
		if value <= old {
			return false
		}
		if to.CompareAndSwap(old, value) {
			return true
		}
	}
}

// eventCost is the cost of a number of watch events.
type eventCost struct {
	events, calls, seconds float64
	allocs, allocBytes     float64
	cpu                    time.Duration
	writeP50               float64 // In nanoseconds.
}

func (c eventCost) measures(prefix string) measures {
	return measures{
		{prefix + "allocs/event", c.allocs / c.events},
		{prefix + "alloc-bytes/event", c.allocBytes / c.events},
		{prefix + "cpu-us/event", float64(c.cpu.Microseconds()) / c.events},
		{prefix + "calls/event", c.calls / c.events},
		{prefix + "events/s", c.events / c.seconds},
	}
}

// observe runs the writer and waits for the handler calls that result from its writes.
func (o *observer) observe(ctx context.Context, r *run) (eventCost, error) {
	const (
		timeout = 10 * time.Second // Limits the wait, because there can be fewer calls than events.
		pause   = 10 * time.Millisecond
	)
	calls := o.initial.calls.Load()
	before := takeUsage()
	writer := r.job
	writer.Scenario = scenarioWriter
	written, err := writer.start(ctx)
	if err != nil {
		return eventCost{}, err
	}
	c := eventCost{
		events:   written.value("writes"),
		writeP50: written.value("write-p50-ns"),
		seconds:  written.value("took-ns") / float64(time.Second),
	}
	for began := time.Now(); float64(o.initial.calls.Load()-calls) < c.events && time.Since(began) < timeout; {
		time.Sleep(pause)
	}
	after := takeUsage()
	c.calls = float64(o.initial.calls.Load() - calls)
	c.allocs = float64(after.allocs - before.allocs)
	c.allocBytes = float64(after.allocBytes - before.allocBytes)
	c.cpu = after.cpu - before.cpu
	return c, nil
}

// writeEvents updates the objects in turn, at the job's event rate and for the job's event time. In spec.n, each update
// stores the time at which it was sent.
func writeEvents(ctx context.Context, r *run) (measures, error) {
	objects := r.client.Resource(r.Fixture.types()[0]).Namespace(namespace)
	times := make([]time.Duration, int(r.EventTime.Seconds()*float64(r.EventRate)))
	errs := make(chan error, len(times))
	began := time.Now()
	ticker := time.NewTicker(time.Second / time.Duration(r.EventRate))
	defer ticker.Stop()
	var writes sync.WaitGroup
	for i := range times {
		name := r.Fixture.name(i % r.Fixture.Objects[0])
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		writes.Go(func() {
			sent := time.Now()
			patch := fmt.Appendf(nil, `{"spec":{"n":%d}}`, sent.UnixNano())
			_, err := objects.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
			times[i] = time.Since(sent)
			errs <- err
		})
	}
	writes.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return measures{
		{"writes", float64(len(times))},
		{"took-ns", float64(time.Since(began))},
		{"write-p50-ns", float64(quantile(times, 0.5))},
	}, nil
}

func (o ours) Reader(gvr schema.GroupVersionResource) (func(key string) (runtime.Object, error), error) {
	lister, err := o.Lister(gvr)
	return func(key string) (runtime.Object, error) {
		namespace, name, err := cache.SplitMetaNamespaceKey(key)
		if err != nil {
			return nil, err
		}
		return lister.ByNamespace(namespace).Get(name)
	}, err
}
