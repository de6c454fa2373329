package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// moves begins and ends runs and watches of four shards at random, while types are started, swapped and stopped, and
// objects change. It is not in a bubble, where goroutines are rarely interrupted.
type moves struct {
	*fixture
	running sync.Map // the objects with a running call
	calls   atomic.Int64
	last    sync.Map // the types and the number of the last call
}

const moveShards = 4

func (m *moves) handle(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	if _, concurrent := m.running.LoadOrStore(id, true); concurrent {
		m.t.Errorf("the handler was called concurrently for %s", id)
	}
	defer m.running.Delete(id)
	if lister, err := m.controller.Lister(id.GVR); err == nil {
		if _, err := lister.Objects("", nil); errors.Is(err, dynamiccontroller.ErrOtherShard) {
			m.t.Errorf("the handler of %s was called without its shard", id)
		}
	}
	m.last.Store(id.GVR, m.calls.Add(1))
	return nil
}

func (m *moves) start(gvr schema.GroupVersionResource) {
	owned := m.types[rand.N(len(m.types))]
	opts := [][]dynamiccontroller.ServeOption{
		{}, {metadataOnly}, {withoutLabel}, {dynamiccontroller.Owns(owned)},
		{dynamiccontroller.Watches(owned, mapTo("default/a")), metadataOnly},
		{dynamiccontroller.WithPredicate(func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) bool {
			return true
		})},
	}
	if err := m.controller.StartServingGVK(context.Background(), gvr, m.handle, opts[rand.N(len(opts))]...); err != nil {
		m.t.Error(err)
	}
}

// change changes a type until ctx is cancelled.
func (m *moves) change(ctx context.Context, gvr schema.GroupVersionResource) {
	for ctx.Err() == nil {
		owned := dynamiccontroller.Owns(m.types[rand.N(len(m.types))])
		var err error
		switch rand.N(8) {
		case 0:
			err = m.controller.StopServiceGVK(context.Background(), gvr)
		case 1:
			if err = m.controller.AddWatches(context.Background(), gvr, owned); errors.Is(err, dynamiccontroller.ErrNotServed) {
				err = nil
			}
		case 2:
			err = m.controller.RemoveWatches(context.Background(), gvr, owned.Key())
		case 3:
			m.controller.Enqueue(m.id(gvr, "absent"))
		default:
			m.start(gvr)
		}
		if err != nil {
			m.t.Error(err)
		}
		time.Sleep(rand.N(time.Millisecond))
	}
}

// repeat begins and ends a run, or a call to RunWatches, of a shard until ctx is cancelled.
func (m *moves) repeat(ctx context.Context, shard int, run func(context.Context) error) {
	for ctx.Err() == nil {
		current, end := context.WithTimeout(ctx, rand.N(3*time.Millisecond))
		if err := m.shard(shard, run)(current); err != nil {
			m.t.Error(err)
		}
		end()
		if rand.N(3) == 0 {
			time.Sleep(rand.N(time.Millisecond))
		}
	}
}

func TestH9_ShardsMoveWhileTypesAndObjectsChange(t *testing.T) {
	before := countGoroutines()
	m := &moves{fixture: newShardedAmong(t, 8, moveShards, dynamiccontroller.Config{
		Workers: 4, MinRetryDelay: time.Microsecond, MaxRetryDelay: time.Millisecond, ShutdownTimeout: 20 * time.Second,
	})}
	for _, gvr := range m.types {
		m.create(gvr, "a")
		m.start(gvr)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for shard := range moveShards {
		wg.Go(func() { m.repeat(ctx, shard, m.controller.Run) })
		wg.Go(func() { m.repeat(ctx, shard, m.controller.RunWatches) })
	}
	for _, gvr := range m.types {
		wg.Go(func() { m.change(ctx, gvr) })
	}
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			m.create(m.types[i%len(m.types)], fmt.Sprint(i))
			if old := i - 80; old >= 0 {
				if err := m.client.Tracker().Delete(m.types[old%len(m.types)], "default", fmt.Sprint(old)); err != nil {
					m.t.Error(err)
				}
			}
			time.Sleep(200 * time.Microsecond)
		}
	})
	wg.Wait()
	if n := m.controller.WatchCount(); n != 0 {
		t.Errorf("%d watches are left", n)
	}
	m.wantDelivery()
	for _, status := range m.controller.Status() {
		if status.Objects+status.Parked+status.Failing+status.Live+status.Background+status.Delayed != 0 {
			t.Errorf("after all shards have left, the status is %+v", status)
		}
	}
	stopAll(t, m.fixture)
	deadline := time.Now().Add(10 * time.Second)
	for countGoroutines() > before && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	if n := countGoroutines(); n > before {
		t.Errorf("%d goroutines, %d before the test", n, before)
	}
}

// wantDelivery checks that the types of two shards that are here receive events.
func (m *moves) wantDelivery() {
	for _, gvr := range m.types {
		m.start(gvr)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, shard := range []int{1, 2} {
		wg.Go(func() {
			if err := m.shard(shard, m.controller.Run)(ctx); err != nil {
				m.t.Error(err)
			}
		})
	}
	for i, gvr := range m.types {
		if shard := i % moveShards; shard != 1 && shard != 2 {
			continue
		}
		limit, stop := context.WithTimeout(ctx, 30*time.Second)
		if err := m.controller.WaitForGVRSync(limit, gvr); err != nil {
			m.t.Error(err)
		}
		before := m.calls.Load()
		m.create(gvr, "last")
		for {
			if last, called := m.last.Load(gvr); called && last.(int64) > before {
				break
			}
			if limit.Err() != nil {
				m.t.Errorf("an event of type %d was not delivered", i)
				break
			}
			time.Sleep(time.Millisecond)
		}
		stop()
	}
	cancel()
	wg.Wait()
}
