package dynamiccontroller_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
	"github.com/dynamic-controller/engine/internal/testkit"
)

// Runs and types begin and end while objects wait for own writes, and watches hang for longer and for shorter than the
// limit. No object is reconciled twice at the same time, and none waits for ever.
func TestD12_RunsAndTypesEndDuringWaits(t *testing.T) {
	const parents = 20
	duration := 3 * time.Second
	if testing.Short() {
		duration = time.Second / 2
	}
	l := newLagServer(t)
	l.controller = controllertest.NewController(t, l.server, dynamiccontroller.Config{MaxWriteLag: 30 * time.Millisecond})
	var active, called sync.Map
	var concurrent atomic.Int64
	l.write = func(ctx context.Context, name string) error {
		if _, isActive := active.LoadOrStore(name, true); isActive {
			concurrent.Add(1)
		}
		defer active.Delete(name)
		called.Store(name, true)
		if rand.IntN(2) == 0 {
			return nil
		}
		child := lagObject(lagChildren, "", nil)
		child.SetGenerateName(name + "-")
		_, err := l.in(lagChildren).Create(ctx, child, metav1.CreateOptions{})
		return err
	}
	l.serve(dynamiccontroller.Owns(lagChildren))
	for i := range parents {
		l.server.Apply(lagObject(lagParents, fmt.Sprint(i), nil))
	}
	end := time.Now().Add(duration)
	var others sync.WaitGroup
	until := func(f func()) {
		others.Go(func() {
			for time.Now().Before(end) {
				f()
			}
		})
	}
	until(func() {
		ctx, cancel := context.WithTimeout(t.Context(), rand.N(150*time.Millisecond))
		defer cancel()
		if err := l.controller.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	until(func() {
		time.Sleep(rand.N(200 * time.Millisecond))
		if err := l.controller.StopServiceGVK(t.Context(), lagParents); err != nil {
			t.Error(err)
		}
		l.serve(dynamiccontroller.Owns(lagChildren))
	})
	until(func() {
		release := l.server.HoldWatches(lagChildren)
		time.Sleep(rand.N(60 * time.Millisecond))
		release()
		time.Sleep(rand.N(20 * time.Millisecond))
	})
	until(func() {
		l.controller.Enqueue(l.id(fmt.Sprint(rand.IntN(parents))))
		time.Sleep(100 * time.Microsecond)
	})
	others.Wait()
	controllertest.Run(t, l.controller.Run)
	called.Clear()
	testkit.Eventually(t, time.Minute, func() error { // all objects are reconciled by a last run, and none waits
		for i := range parents {
			if _, ok := called.Load(fmt.Sprint(i)); !ok {
				return fmt.Errorf("object %d has not been reconciled", i)
			}
		}
		status, err := l.controller.TypeStatusOf(lagParents)
		if err == nil && status.Settling > 0 {
			err = fmt.Errorf("%d objects wait", status.Settling)
		}
		return err
	})
	if n := concurrent.Load(); n > 0 {
		t.Errorf("%d concurrent calls for one object", n)
	}
}
