package bench

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// measureTypes serves all types of the fixture, stops them, and then starts and stops one type after another.
func measureTypes(ctx context.Context, r *run) (measures, error) {
	types := r.Fixture.types()
	s, err := r.serve(ctx)
	if err != nil {
		return nil, err
	}
	e := s.engine
	if err := atOnce(types, func(_ int, gvr schema.GroupVersionResource) error { return e.Stop(ctx, gvr) }); err != nil {
		return nil, err
	}
	stopped := takeFootprint()

	cycles, err := cycle(ctx, e, types, r.CycleTime)
	if err != nil {
		return nil, err
	}
	if err := s.end(); err != nil {
		return nil, err
	}
	m := s.now.since(s.before, "")
	m = append(append(m, s.speed()...), measure{"cycles/s", cycles})
	return append(m, stopped.since(s.before, "left-")[:2]...), nil
}

// atOnce calls f concurrently for all types, because some engines' Start methods wait for a sync.
func atOnce(types []schema.GroupVersionResource, f func(int, schema.GroupVersionResource) error) error {
	var calls errgroup.Group
	for i, gvr := range types {
		calls.Go(func() error { return f(i, gvr) })
	}
	return calls.Wait()
}

// cycle goes through the types one after another: it starts a type, waits for its first reconcile and stops it. It
// returns the number of types per second.
func cycle(ctx context.Context, e engine, types []schema.GroupVersionResource, during time.Duration) (float64, error) {
	const timeout = 30 * time.Second
	began, n := time.Now(), 0
	for ; n == 0 || time.Since(began) < during; n++ {
		gvr := types[n%len(types)]
		first, isFirst := signal()
		if err := e.Start(ctx, gvr, func(string) { first() }); err != nil {
			return 0, err
		}
		if err := await(ctx, isFirst, timeout); err != nil {
			return 0, err
		}
		if err := e.Stop(ctx, gvr); err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(began).Seconds(), nil
}
