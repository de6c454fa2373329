package bench

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// measureTypes serves all types of the fixture, stops them, and then starts and stops one after another.
func measureTypes(ctx context.Context, r *run) (measures, error) {
	types := r.Fixture.types()
	all := make([]*progress, len(types))
	for i := range all {
		all[i] = newProgress(r.Fixture.Objects[i])
	}
	before := takeFootprint()
	e, end, err := r.engine(ctx, len(types))
	if err != nil {
		return nil, err
	}

	began := time.Now()
	if err := atOnce(types, func(i int, gvr schema.GroupVersionResource) error {
		return e.Start(ctx, gvr, all[i].handler)
	}); err != nil {
		return nil, err
	}
	for _, p := range all {
		if err := p.wait(ctx); err != nil {
			return nil, err
		}
	}
	took := time.Since(began)
	served := takeFootprint()
	calls, objects := int64(0), 0
	for i, p := range all {
		calls += p.calls.Load()
		objects += r.Fixture.Objects[i]
	}

	if err := atOnce(types, func(_ int, gvr schema.GroupVersionResource) error { return e.Stop(ctx, gvr) }); err != nil {
		return nil, err
	}
	stopped := takeFootprint()

	cycles, err := cycle(ctx, e, types, r.CycleTime)
	if err != nil {
		return nil, err
	}
	if err := end(); err != nil {
		return nil, err
	}
	m := served.since(before, "")
	m = append(m, measure{"all-reconciled-ns", float64(took)}, measure{"calls/object", float64(calls) / float64(objects)},
		measure{"cycles/s", cycles})
	return append(m, stopped.since(before, "left-")[:2]...), nil
}

// atOnce calls f for each type, from as many goroutines: some engines wait for a sync in it.
func atOnce(types []schema.GroupVersionResource, f func(int, schema.GroupVersionResource) error) error {
	var calls errgroup.Group
	for i, gvr := range types {
		calls.Go(func() error { return f(i, gvr) })
	}
	return calls.Wait()
}

// cycle starts types, sees the first reconcile and stops them, one type after another, and returns how many a second.
func cycle(ctx context.Context, e engine, types []schema.GroupVersionResource, during time.Duration) (float64, error) {
	const tooLong = 30 * time.Second
	began, n := time.Now(), 0
	for ; n == 0 || time.Since(began) < during; n++ {
		gvr := types[n%len(types)]
		first, isFirst := signal()
		if err := e.Start(ctx, gvr, func(string) { first() }); err != nil {
			return 0, err
		}
		if err := await(ctx, isFirst, tooLong); err != nil {
			return 0, err
		}
		if err := e.Stop(ctx, gvr); err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(began).Seconds(), nil
}
