package bench

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// serving is an engine that has reconciled all objects of the job's fixture.
type serving struct {
	engine  engine
	end     func() error
	took    time.Duration // From the first call to Start until all objects were reconciled.
	calls   int64         // The number of handler calls.
	objects int
	before  footprint // Before the engine was created.
	now     footprint
}

// serve starts all types of the fixture at the same time and waits until their objects are reconciled.
func (r *run) serve(ctx context.Context) (*serving, error) {
	gvrs := r.Fixture.types()
	all := make([]*progress, len(gvrs))
	for i := range all {
		all[i] = newProgress(r.Fixture.Objects[i])
	}
	s := &serving{before: takeFootprint()}
	var err error
	if s.engine, s.end, err = r.engine(ctx, len(gvrs)); err != nil {
		return nil, err
	}
	began := time.Now()
	if err := atOnce(gvrs, func(i int, gvr schema.GroupVersionResource) error {
		return s.engine.Start(ctx, gvr, all[i].handler)
	}); err != nil {
		return nil, err
	}
	for _, p := range all {
		if err := p.wait(ctx); err != nil {
			return nil, err
		}
	}
	s.took = time.Since(began)
	s.now = takeFootprint()
	for i, p := range all {
		s.calls += p.calls.Load()
		s.objects += r.Fixture.Objects[i]
	}
	return s, nil
}

// speed returns the time until all objects were reconciled, and the number of handler calls for each object.
func (s *serving) speed() measures {
	return measures{{"all-reconciled-ns", float64(s.took)}, {"calls/object", float64(s.calls) / float64(s.objects)}}
}
