package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// draining is a fixture with two shards, in which a call for the object "slow" of the first one is running.
type draining struct {
	*fixture
	c       *calls
	release chan struct{}
	cause   func() error // of the context of the running call
}

func newDraining(t *testing.T) *draining {
	d := &draining{
		fixture: newSharded(t, 2, dynamiccontroller.Config{Workers: 4, ShutdownTimeout: time.Second}),
		release: make(chan struct{}),
	}
	d.c = newCalls(func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		if id.Name() == "slow" {
			d.cause = func() error { return context.Cause(ctx) }
			<-d.release
		}
		return nil
	})
	for _, gvr := range d.types {
		d.serve(gvr, d.c.handle)
	}
	return d
}

func (d *draining) begin() {
	d.enqueue(0, "slow")
	d.c.want(d.t, "before", named("slow"))
}

func (d *draining) enqueue(shard int, name string) {
	d.controller.Enqueue(d.id(d.types[shard], name))
	synctest.Wait()
}

// drain calls DrainShard in the background.
func (d *draining) drain(limit time.Duration) <-chan error {
	drained := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		drained <- d.controller.DrainShard(ctx, 0, 2)
	}()
	synctest.Wait()
	return drained
}

func TestDrainShard_WaitsForRunningCallsAndHoldsOthersBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDraining(t)
		stop, stopOther := d.runShard(0), d.runShard(1)
		d.begin()
		drained := d.drain(time.Hour)
		d.enqueue(0, "a")
		d.enqueue(1, "b")
		d.c.want(t, "during the drain", named("b"))
		time.Sleep(time.Minute)
		if len(drained) > 0 {
			t.Fatal("DrainShard has not waited for the running call")
		}
		if err := d.cause(); err != nil {
			t.Errorf("the context of the running call was cancelled: %v", err)
		}
		close(d.release)
		if err := <-drained; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		d.c.want(t, "after the drain", named())
		d.controller.ResumeShard(0, 2)
		synctest.Wait()
		d.c.want(t, "after the drain was ended", named("a"))
		stop()
		stopOther()
	})
}

func TestDrainShard_ListsHandlersThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDraining(t)
		stop := d.runShard(0)
		d.begin()
		drained := d.drain(time.Second)
		d.enqueue(0, "a")
		err := <-drained
		if text := fmt.Sprint(err); !strings.Contains(text, "drain shard 0 of 2") || !strings.Contains(text, "default/slow") {
			t.Errorf("got %v, want an error that names the hung handler", err)
		}
		d.c.want(t, "before the drain is ended", named())
		d.controller.ResumeShard(0, 2)
		synctest.Wait()
		d.c.want(t, "after the drain was ended", named("a"))
		close(d.release)
		stop()
	})
}

// Objects that a worker has taken from the queue, and types that are served during a drain, wait, too.
func TestDrainShard_AppliesToTypesThatAreServedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDraining(t)
		stop := d.runShard(0)
		if err := <-d.drain(time.Second); err != nil {
			t.Error(err)
		}
		if err := d.controller.StopServiceGVK(t.Context(), d.types[0]); err != nil {
			t.Error(err)
		}
		d.serve(d.types[0], d.c.handle)
		synctest.Wait()
		d.enqueue(0, "a")
		d.c.want(t, "during the drain", named())
		d.controller.ResumeShard(0, 2)
		synctest.Wait()
		d.c.want(t, "after the drain was ended", named("a"))
		stop()
	})
}

func TestDrainShard_EndsWithTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDraining(t)
		stop := d.runShard(0)
		if err := <-d.drain(time.Second); err != nil {
			t.Error(err)
		}
		stop()
		stop = d.runShard(0)
		synctest.Wait()
		d.enqueue(0, "a")
		d.c.want(t, "in the next run", named("a"))
		stop()
		if err := <-d.drain(time.Second); err != nil {
			t.Errorf("without a run: %v", err)
		}
		d.controller.ResumeShard(0, 2)
	})
}

// A call to DrainShard does not wait for the handlers of a run that has ended without them.
func TestDrainShard_FailsIfTheRunEndsWhileHandlersHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDraining(t)
		stop := d.startShard(0)
		d.begin()
		drained := d.drain(time.Hour)
		if err := stop(); !errors.Is(err, dynamiccontroller.ErrStillRunning) {
			t.Errorf("the run returned %v", err)
		}
		synctest.Wait()
		select {
		case err := <-drained:
			if !errors.Is(err, dynamiccontroller.ErrStillRunning) || !strings.Contains(err.Error(), "default/slow") {
				t.Errorf("got %v, want ErrStillRunning with the handler", err)
			}
		default:
			t.Error("DrainShard waits for a run that has ended")
		}
		close(d.release)
	})
}

// A call to DrainShard does not wait for handlers any more once the shard has been resumed.
func TestDrainShard_FailsIfTheShardIsResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDraining(t)
		stop := d.runShard(0)
		d.begin()
		first, second := d.drain(time.Hour), d.drain(time.Hour)
		d.controller.ResumeShard(0, 2)
		synctest.Wait()
		for _, drained := range []<-chan error{first, second} {
			select {
			case err := <-drained:
				if !errors.Is(err, dynamiccontroller.ErrShardResumed) {
					t.Errorf("got %v, want ErrShardResumed", err)
				}
			default:
				t.Error("DrainShard waits although the shard was resumed")
			}
		}
		d.enqueue(0, "a")
		d.c.want(t, "after the drain was ended", named("a"))
		again := d.drain(time.Hour)
		close(d.release)
		if err := <-again; err != nil {
			t.Errorf("the next drain: %v", err)
		}
		d.controller.ResumeShard(0, 2)
		stop()
	})
}

// A drain and a resume take effect one after the other: the shard is then either drained or resumed as a whole. An
// object that only one of the run and the queue held back would be retried after a second.
func TestDrainShard_IsSerializedWithResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDraining(t)
		stop := d.runShard(0)
		for range 200 {
			var users sync.WaitGroup
			users.Go(func() {
				err := d.controller.DrainShard(t.Context(), 0, 2)
				if err != nil && !errors.Is(err, dynamiccontroller.ErrShardResumed) {
					t.Error(err)
				}
			})
			users.Go(func() { d.controller.ResumeShard(0, 2) })
			users.Wait()
			d.enqueue(0, "a")
			d.controller.ResumeShard(0, 2)
			d.c.want(t, "after the last resume", named("a"))
		}
		stop()
	})
}
