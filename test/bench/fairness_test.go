package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// busyWork is the duration of each handler call for the busy type.
const busyWork = time.Millisecond

// measureFairness writes to a quiet type at a constant rate, without waiting for reconciles, and measures the time from
// sending a write until the object is reconciled. It first measures the quiet type alone, and then while all objects of
// a busy type are queued.
func measureFairness(ctx context.Context, r *run) (measures, error) {
	quiet, busy := r.Fixture.types()[0], r.Fixture.types()[1]
	e, end, err := r.engine(ctx, 2)
	if err != nil {
		return nil, err
	}
	p := newProbe(r, quiet)
	if err := e.Start(ctx, quiet, p.handler); err != nil {
		return nil, err
	}
	if err := p.initial.wait(ctx); err != nil {
		return nil, err
	}

	var alone, behind, drained []time.Duration
	for range r.Rounds {
		takeFootprint()
		times, err := p.take(ctx, time.After(r.AloneTime))
		if err != nil {
			return nil, err
		}
		alone = append(alone, times...)

		backlog := newProgress(r.Fixture.Objects[1])
		if err := e.Start(ctx, busy, func(key string) {
			time.Sleep(busyWork)
			backlog.handler(key)
		}); err != nil {
			return nil, err
		}
		if err := await(ctx, backlog.isBegun, time.Minute); err != nil {
			return nil, fmt.Errorf("busy type: %w", err)
		}
		began, over := time.Now(), make(chan time.Time)
		worked := make(chan error, 1)
		go func() {
			err := backlog.wait(ctx)
			drained = append(drained, time.Since(began))
			worked <- err
			close(over)
		}()
		times, err = p.take(ctx, over)
		if err != nil {
			return nil, err
		}
		if err := <-worked; err != nil {
			return nil, err
		}
		behind = append(behind, times...)
		if err := e.Stop(ctx, busy); err != nil {
			return nil, err
		}
	}
	if err := end(); err != nil {
		return nil, err
	}
	m := append(quantiles("alone", alone), quantiles("behind", behind)...)
	m = append(m,
		measure{"behind/alone-p50", float64(quantile(behind, 0.5)) / float64(quantile(alone, 0.5))},
		measure{"write-p50-ns", float64(quantile(p.writes, 0.5))},
		measure{"busy-done-p50-ns", float64(quantile(drained, 0.5))},
		measure{"samples", float64(len(behind))},
	)
	return m, nil
}

// probe writes to the objects of a type and measures the time until they are reconciled.
type probe struct {
	run     *run
	gvr     schema.GroupVersionResource
	initial *progress // The progress of the initial reconciles.

	mu      sync.Mutex         // Guards the fields below.
	sent    map[int]*time.Time // Writes that have not been reconciled, by object.
	next    int
	times   []time.Duration
	writes  []time.Duration // Response times of the API server.
	failure error
}

func newProbe(r *run, gvr schema.GroupVersionResource) *probe {
	return &probe{run: r, gvr: gvr, initial: newProgress(r.Fixture.Objects[0]), sent: map[int]*time.Time{}}
}

func (p *probe) handler(key string) {
	now := time.Now()
	p.initial.handler(key)
	n := numberOf(key)
	p.mu.Lock()
	defer p.mu.Unlock()
	if at, pending := p.sent[n]; pending {
		p.times = append(p.times, now.Sub(*at))
		delete(p.sent, n)
	}
}

// take sends writes until it receives a value from over. It then waits for the last reconcile and returns the
// latencies.
func (p *probe) take(ctx context.Context, over <-chan time.Time) ([]time.Duration, error) {
	const (
		interval = 20 * time.Millisecond
		timeout  = time.Minute
	)
	p.mu.Lock()
	p.times = nil
	p.mu.Unlock()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var writing sync.WaitGroup
	for isOver := false; !isOver; {
		select {
		case <-ticker.C:
			writing.Go(func() { p.write(ctx) })
		case <-over:
			isOver = true
		case <-ctx.Done():
			isOver = true
		}
	}
	writing.Wait()
	for began := time.Now(); p.pending() > 0 && time.Since(began) < timeout; {
		<-ticker.C
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case p.failure != nil:
		return nil, p.failure
	case len(p.sent) > 0:
		return nil, fmt.Errorf("%d writes to the quiet type were not reconciled: %w", len(p.sent), errTimeout)
	}
	return p.times, nil
}

func (p *probe) pending() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.sent)
}

// write changes the next object. It fails if an earlier write to that object has not been reconciled.
func (p *probe) write(ctx context.Context) {
	p.mu.Lock()
	n := p.next % len(p.initial.seen)
	if p.sent[n] != nil {
		p.failure = fmt.Errorf("an earlier write to object %d of the quiet type has not been reconciled", n)
		p.mu.Unlock()
		return
	}
	p.next++
	patch := fmt.Appendf(nil, `{"spec":{"n":%d}}`, time.Now().UnixNano())
	sent := time.Now()
	p.sent[n] = &sent
	p.mu.Unlock()

	_, err := p.run.client.Resource(p.gvr).Namespace(namespace).Patch(ctx, nameOf(n),
		types.MergePatchType, patch, metav1.PatchOptions{})

	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes = append(p.writes, time.Since(sent))
	if err != nil {
		p.failure = err
	}
}
