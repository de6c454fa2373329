package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// stopWork is the duration of handler calls, so that some handlers are running when types are stopped.
const stopWork = time.Millisecond

// measureStop serves all types of the fixture while their objects are written continuously. Meanwhile, it stops and
// starts one type after another, at most once per StopPeriod. It takes the footprint after half of the stops and after
// all of them.
func measureStop(ctx context.Context, r *run) (measures, error) {
	const timeout = 30 * time.Second
	gvrs := r.Fixture.types()
	before := takeFootprint()
	e, end, err := r.engine(ctx, len(gvrs))
	if err != nil {
		return nil, err
	}
	late := &atomic.Int64{}
	registrations := make([]*registration, len(gvrs))
	if err := atOnce(gvrs, func(i int, gvr schema.GroupVersionResource) error {
		registrations[i] = newRegistration(late)
		return e.Start(ctx, gvr, registrations[i].handler)
	}); err != nil {
		return nil, err
	}
	load := r.writeAll(ctx, gvrs)

	half, stops, began := footprint{}, make([]time.Duration, 0, r.Stops), time.Now()
	var resting time.Duration
	for n := range r.Stops {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(time.Until(began.Add(resting + time.Duration(n)*r.StopPeriod))):
		}
		i := n % len(gvrs)
		if err := await(ctx, registrations[i].begun, timeout); err != nil {
			return nil, fmt.Errorf("start %d: %w", n, err)
		}
		stopping := time.Now()
		if err := e.Stop(ctx, gvrs[i]); err != nil {
			return nil, err
		}
		registrations[i].stopped.Store(true)
		stops = append(stops, time.Since(stopping))
		registrations[i] = newRegistration(late)
		if err := e.Start(ctx, gvrs[i], registrations[i].handler); err != nil {
			return nil, err
		}
		if n+1 == r.Stops/2 {
			paused := time.Now()
			load.pause(func() { half = takeFootprint() })
			resting = time.Since(paused)
		}
	}
	took := time.Since(began) - resting
	var full footprint
	load.pause(func() { full = takeFootprint() })
	if err := load.end(); err != nil {
		return nil, err
	}
	if err := end(); err != nil {
		return nil, err
	}
	m := quantiles("stop", stops)
	m = append(m, measure{"cycles/s", float64(r.Stops) / took.Seconds()}, measure{"late-calls", float64(late.Load())})
	m = append(m, half.since(before, "half-")[:2]...)
	return append(m, full.since(before, "end-")[:2]...), nil
}

// registration represents the period from a start to a stop of a type.
type registration struct {
	first   func()
	begun   <-chan struct{}
	stopped atomic.Bool   // Set after Stop has returned.
	late    *atomic.Int64 // Counts the handler calls that start after Stop has returned.
}

func newRegistration(late *atomic.Int64) *registration {
	r := &registration{late: late}
	r.first, r.begun = signal()
	return r
}

func (r *registration) handler(string) {
	if r.stopped.Load() {
		r.late.Add(1)
	}
	r.first()
	time.Sleep(stopWork)
}

// load writes to objects continuously.
type load struct {
	running sync.WaitGroup
	cancel  context.CancelFunc
	paused  sync.RWMutex // Locked for reading during a write.
	failure atomic.Pointer[error]
}

// writeAll repeatedly writes to all objects of the types.
func (r *run) writeAll(ctx context.Context, gvrs []schema.GroupVersionResource) *load {
	const writers = 2
	l := &load{}
	ctx, l.cancel = context.WithCancel(ctx)
	for w := range writers {
		l.running.Go(func() {
			for n := w; ctx.Err() == nil; n += writers {
				l.paused.RLock()
				i := n % len(gvrs)
				patch := fmt.Appendf(nil, `{"spec":{"n":%d}}`, time.Now().UnixNano())
				_, err := r.client.Resource(gvrs[i]).Namespace(namespace).Patch(ctx, nameOf(n/len(gvrs)%r.Fixture.Objects[i]),
					types.MergePatchType, patch, metav1.PatchOptions{})
				l.paused.RUnlock()
				if err != nil && ctx.Err() == nil {
					l.failure.Store(&err)
					return
				}
			}
		})
	}
	return l
}

func (l *load) pause(during func()) {
	l.paused.Lock()
	defer l.paused.Unlock()
	during()
}

func (l *load) end() error {
	l.cancel()
	l.running.Wait()
	if err := l.failure.Load(); err != nil {
		return *err
	}
	return nil
}
