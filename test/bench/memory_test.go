package bench

import "context"

// perObject is the unit of heap per object.
const perObject = "B/object"

// measureMemory measures the heap per object of one type, after all objects have been cached and reconciled.
func measureMemory(ctx context.Context, r *run) (measures, error) {
	s, err := r.serve(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.end(); err != nil {
		return nil, err
	}
	heap := float64(s.now.heap) - float64(s.before.heap)
	return measures{{perObject, heap / float64(s.objects)}}, nil
}

// measureScale measures the memory and the goroutines of an engine that serves the fixture, and the time until all
// objects are reconciled.
func measureScale(ctx context.Context, r *run) (measures, error) {
	s, err := r.serve(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.end(); err != nil {
		return nil, err
	}
	m := s.now.since(s.before, "")
	m = append(m, rssSince(s.before, s.now)...)
	return append(m, s.speed()...), nil
}

// rssSince returns the resident memory and its peak, minus the resident memory of an earlier footprint.
func rssSince(before, now footprint) measures {
	return measures{
		{"rss-B", float64(now.rss) - float64(before.rss)},
		{"peak-rss-B", float64(now.peakRSS) - float64(before.rss)},
	}
}
