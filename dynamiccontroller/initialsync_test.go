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

// The initial sync waits for a child type that fails briefly, so that each owner is reconciled only once. If the child
// type has been failing for some time, the next run does not wait for it again.
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
				f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
				parent := f.types[0]
				f.put(parent, "a")
				f.put(child, "c", f.id(parent, "a"))
				until := time.Now().Add(test.last)
				f.client.PrependReactor("list", child.Resource, func(clienttesting.Action) (bool, runtime.Object, error) {
					return time.Now().Before(until), nil, test.err
				})
				stopWatches := f.runWatches()
				stop := f.run()
				c := newCalls(succeed)
				f.serve(parent, c.handle, dynamiccontroller.Owns(child))
				c.want(t, "while the child type fails", named())
				time.Sleep(10 * time.Second)
				c.want(t, "after ten seconds", named("a"))
				stop()
				stop = f.run()
				c.want(t, "a promotion", named("a"))
				stop()
				stopWatches()
			})
		})
	}
}

// If a secondary is replaced during the initial sync, the initial sync waits for the new watch instead.
func TestD4_InitialSyncWaitsForTheReplacementOfASecondary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		parent, child := f.types[0], f.types[1]
		f.put(parent, "a")
		hold, held := make(chan struct{}), false
		f.beforeList = func(gvr schema.GroupVersionResource) {
			if gvr == child && !held {
				held = true
				<-hold
			}
		}
		stop := f.run()
		c := newCalls(succeed)
		f.serve(parent, c.handle, dynamiccontroller.Owns(child))
		whole := dynamiccontroller.Owns(child, dynamiccontroller.WithCache(dynamiccontroller.CacheFull))
		if err := f.controller.AddWatches(context.Background(), parent, whole); err != nil {
			t.Fatal(err)
		}
		close(hold)
		time.Sleep(100 * time.Millisecond)
		c.want(t, "after the list of children", named("a"))
		stop()
	})
}
