package controllertest_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
)

// naive returns a handler that creates a child with a generated name if the cache shows none.
func naive(
	controller *dynamiccontroller.DynamicController, server *controllertest.Server,
) (dynamiccontroller.Handler, dynamiccontroller.Watch) {
	owned := dynamiccontroller.Owns(configMaps)
	return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		parent := server.Get(id)
		lister, err := controller.SecondaryLister(id.GVR, owned.Key())
		if err != nil {
			return err
		}
		children, err := lister.OwnedBy(parent.GetUID())
		if err != nil || len(children) > 0 {
			return err
		}
		child := configMap("", parent.GetUID())
		child.SetGenerateName("child-")
		_, err = in(server, configMaps).Create(ctx, child, metav1.CreateOptions{})
		return err
	}, owned
}

// TestLag_ShowsThatAHandlerTrustsItsCache shows what a lagging cache is for. There is only one child without the lag,
// and with the promise that a handler's next call for the same object reads what the last one has written.
func TestLag_ShowsThatAHandlerTrustsItsCache(t *testing.T) {
	const delay = time.Second
	for name, test := range map[string]struct {
		lag  func(*controllertest.Server) (over func())
		want int // children if MaxWriteLag is negative
	}{
		"no lag": {func(*controllertest.Server) func() { return func() {} }, 1},
		"delayed": {func(server *controllertest.Server) func() {
			server.DelayWatches(configMaps, delay)
			return func() { time.Sleep(delay) }
		}, 2},
		"held": {func(server *controllertest.Server) func() {
			release, other := server.HoldWatches(configMaps), server.HoldWatches(configMaps)
			return func() {
				release()
				release()
				synctest.Wait()
				other()
			}
		}, 2},
		"no longer delayed": {func(server *controllertest.Server) func() {
			server.DelayWatches(configMaps, delay)
			server.DelayWatches(configMaps, 0)
			return func() {}
		}, 1},
		"another type": {func(server *controllertest.Server) func() {
			server.DelayWatches(namespaces, delay)
			return func() {}
		}, 1},
	} {
		for maxLag, want := range map[time.Duration]int{-1: test.want, 0: 1} {
			t.Run(fmt.Sprintf("%s, MaxWriteLag %d", name, maxLag), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					server := newServer()
					controller := controllertest.NewController(t, server, dynamiccontroller.Config{MaxWriteLag: maxLag})
					handler, owned := naive(controller, server)
					serve(t, controller, handler, owned)
					controllertest.Run(t, controller.Run)
					controllertest.WaitIdle(t, controller)
					over := test.lag(server)
					id := server.Apply(widget("first", 1))
					controllertest.WaitIdle(t, controller)
					controller.Enqueue(id)
					controllertest.WaitIdle(t, controller)
					over()
					controllertest.WaitIdle(t, controller)
					controller.Enqueue(id)
					controllertest.WaitIdle(t, controller)
					list, err := in(server, configMaps).List(t.Context(), metav1.ListOptions{})
					if err != nil || len(list.Items) != want {
						t.Errorf("got %d children, error %v, want %d", len(list.Items), err, want)
					}
				})
			})
		}
	}
}

// Events that are held back are delivered in order, and a watch that holds events still ends.
func TestLag_EventsKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer()
		list, err := in(server, widgets).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		opts := metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}
		stream, err := in(server, widgets).Watch(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		release := server.HoldWatches(widgets)
		server.DelayWatches(widgets, time.Hour)
		server.Apply(widget("first", 1))
		server.DelayWatches(widgets, 0)
		server.Apply(widget("second", 1))
		release()
		for _, want := range []string{"first", "second"} {
			began := time.Now()
			event := <-stream.ResultChan()
			if got := event.Object.(metav1.Object).GetName(); got != want {
				t.Errorf("got an event of %s, want %s", got, want)
			}
			if waited := time.Since(began); want == "first" && waited != time.Hour {
				t.Errorf("waited %s, want an hour", waited)
			}
		}
		defer server.HoldWatches(widgets)()
		server.Apply(widget("third", 1))
		synctest.Wait()
		stream.Stop()
		if event, open := <-stream.ResultChan(); open {
			t.Errorf("got %v from a watch that was stopped", event)
		}
	})
}
