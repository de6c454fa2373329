package dynamiccontroller_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/internal/lastwrites"
)

// delayedWatch delivers the events of another watch with a delay.
type delayedWatch struct {
	watch.Interface
	events chan watch.Event
	done   chan struct{}
}

func newDelayedWatch(of watch.Interface, delay time.Duration) *delayedWatch {
	d := &delayedWatch{Interface: of, events: make(chan watch.Event), done: make(chan struct{})}
	go func() {
		defer close(d.events)
		for event := range of.ResultChan() {
			time.Sleep(delay)
			select {
			case d.events <- event:
			case <-d.done:
				return
			}
		}
	}()
	return d
}

func (d *delayedWatch) ResultChan() <-chan watch.Event { return d.events }

func (d *delayedWatch) Stop() {
	close(d.done)
	d.Interface.Stop()
}

// The previous leader has written an object that the watch of the standby receives late.
func TestH5_RunWaitsForTheWritesOfTheLastLeader(t *testing.T) {
	const delay = 200 * time.Millisecond
	for name, test := range map[string]struct {
		writes func(f *fixture, own, owned uint64) lastwrites.Versions
		waits  time.Duration
	}{
		"of the type": {func(f *fixture, own, _ uint64) lastwrites.Versions {
			return lastwrites.Versions{f.types[0].GroupResource(): own}
		}, delay},
		"of an owned type": {func(f *fixture, _, owned uint64) lastwrites.Versions {
			return lastwrites.Versions{f.types[2].GroupResource(): owned}
		}, delay},
		"of another resource": {func(_ *fixture, own, _ uint64) lastwrites.Versions {
			return lastwrites.Versions{schema.GroupResource{Resource: "configmaps"}: own}
		}, 0},
		"that never arrive": {func(f *fixture, own, _ uint64) lastwrites.Versions {
			return lastwrites.Versions{f.types[0].GroupResource(): own + 1}
		}, 500 * time.Millisecond},
		"none": {func(*fixture, uint64, uint64) lastwrites.Versions { return nil }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newSharded(t, 3, dynamiccontroller.Config{Workers: 1})
				gvr, child := f.types[0], f.types[2]
				f.put(gvr, "a")
				f.client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
					stream, err := f.client.Tracker().Watch(action.GetResource(), action.GetNamespace())
					if err != nil {
						return true, nil, err
					}
					return true, newDelayedWatch(stream, delay), nil
				})
				c := newCalls(succeed)
				f.serve(gvr, c.handle, dynamiccontroller.Owns(child))
				stopWatches := f.watchShard(0)
				time.Sleep(time.Second)
				number := func(version string) uint64 { return must(strconv.ParseUint(version, 10, 64)) }
				owned, own := number(f.put(child, "c", f.id(gvr, "a"))), number(f.put(gvr, "a"))
				versions, began := test.writes(f, own, owned), time.Now()
				stop := f.stopper(inBackground(f.shard(0, func(ctx context.Context) error {
					return f.controller.Run(lastwrites.With(ctx, versions))
				})))
				time.Sleep(time.Second)
				synctest.Wait()
				if at := c.at["a"]; len(at) == 0 {
					t.Error("the handler was not called")
				} else if waited := at[0].Sub(began); waited < test.waits || waited > test.waits+10*time.Millisecond {
					t.Errorf("the first call began after %v, want %v", waited, test.waits)
				}
				stop()
				stopWatches()
			})
		})
	}
}
