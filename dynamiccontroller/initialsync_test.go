package dynamiccontroller_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// The initial sync waits for a type of children that fails briefly, so that its owners are reconciled once. If the type
// has been failing for some time, the next run does not wait for it again.
func TestD4_InitialSyncWaitsForBrieflyFailingChildren(t *testing.T) {
	child := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "type1s"}
	for name, test := range map[string]struct {
		err  error
		last time.Duration
	}{
		"not found":   {apierrors.NewNotFound(child.GroupResource(), ""), 14 * time.Millisecond},
		"forbidden":   {apierrors.NewForbidden(child.GroupResource(), "", nil), 100 * time.Millisecond},
		"too many":    {apierrors.NewTooManyRequests("later", 1), 500 * time.Millisecond},
		"refused":     {errors.New("connection refused"), 500 * time.Millisecond},
		"never found": {apierrors.NewNotFound(child.GroupResource(), ""), time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
				parent := w.types[0]
				w.put(parent, "a")
				w.put(child, "c", w.id(parent, "a"))
				until := time.Now().Add(test.last)
				w.client.PrependReactor("list", child.Resource, func(clienttesting.Action) (bool, runtime.Object, error) {
					return time.Now().Before(until), nil, test.err
				})
				stopWatches := w.runWatches()
				stop := w.run()
				c := newCalls(succeed)
				w.serve(parent, c.handle, dynamiccontroller.Owns(child))
				c.want(t, "while it fails", named())
				time.Sleep(10 * time.Second)
				c.want(t, "after ten seconds", named("a"))
				if err := stop(); err != nil {
					t.Error(err)
				}
				stop = w.run()
				c.want(t, "a promotion", named("a"))
				if err := errors.Join(stop(), stopWatches()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// If a secondary is replaced during the initial sync, the initial sync waits for the new watch instead.
func TestD4_InitialSyncWaitsForTheReplacementOfASecondary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		parent, child := w.types[0], w.types[1]
		w.put(parent, "a")
		hold, held := make(chan struct{}), false
		w.beforeList = func(gvr schema.GroupVersionResource) {
			if gvr == child && !held {
				held = true
				<-hold
			}
		}
		stop := w.run()
		c := newCalls(succeed)
		w.serve(parent, c.handle, dynamiccontroller.Owns(child))
		if err := w.controller.AddWatches(context.Background(), parent, dynamiccontroller.Owns(child, dynamiccontroller.WithCache(dynamiccontroller.CacheFull))); err != nil {
			t.Fatal(err)
		}
		close(hold)
		time.Sleep(100 * time.Millisecond)
		c.want(t, "after its list", named("a"))
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
