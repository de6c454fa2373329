package bench

import "context"

// measureSync measures the CPU time, the wall time and the memory used by the initial list of one type with many
// objects. It forces no GC cycles until all objects are reconciled.
func measureSync(ctx context.Context, r *run) (measures, error) {
	gvr := r.Fixture.types()[0]
	p := newProgress(r.Fixture.Objects[0])
	before := takeFootprint()
	start := takeUsage()
	peaks := sampleHeap()
	e, end, err := r.engine(ctx, 1)
	if err != nil {
		return nil, err
	}
	if err := e.Start(ctx, gvr, p.handler); err != nil {
		return nil, err
	}
	if err := e.WaitForSync(ctx, gvr); err != nil {
		return nil, err
	}
	synced := takeUsage()
	if err := p.wait(ctx); err != nil {
		return nil, err
	}
	reconciled := takeUsage()
	peaks.stop()
	now := takeFootprint()
	if err := end(); err != nil {
		return nil, err
	}
	steady := float64(now.heap) - float64(before.heap)
	live := max(steady, float64(peaks.live)-float64(before.heap))
	return append(measures{
		{"synced-cpu-ns", float64(synced.cpu - start.cpu)},
		{"synced-ns", float64(synced.at.Sub(start.at))},
		{"reconciled-cpu-ns", float64(reconciled.cpu - start.cpu)},
		{"reconciled-ns", float64(reconciled.at.Sub(start.at))},
		{"allocs/object", float64(reconciled.allocs-start.allocs) / float64(len(p.seen))},
		{"steady-heap-B", steady},
		{"peak-live-heap-B", live},
		{"peak-live/steady", live / steady},
		{"peak-heap-B", float64(peaks.objects) - float64(before.heap)},
	}, rssSince(before, now)...), nil
}
