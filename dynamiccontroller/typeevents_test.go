package dynamiccontroller_test

import (
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// After a wrong type event, the type is listed once. The type's objects are delivered as deleted, and then as new.
func TestS5_WrongTypeEventIsCorrected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var typeEvents events
		f := newFixture(t, 1, dynamiccontroller.Config{ResyncPeriod: -1},
			dynamiccontroller.WithTypeEvents(typeEvents.subscribe))
		gvr := f.types[0]
		f.put(gvr, "w")
		stop := f.run()
		c := newCalls(succeed)
		f.serve(gvr, c.handle)
		typeEvents.notify(gvr, false)
		time.Sleep(time.Minute)
		synctest.Wait()
		status := f.status(gvr)
		if status.State != dynamiccontroller.TypeSynced || status.Message != "" || status.Objects != 1 {
			t.Errorf("the status is %+v, want a synced type with one object and no error", status)
		}
		if n := len(c.at["w"]); n < 2 {
			t.Errorf("%d calls, want one for the first list and one for the deletion", n)
		}
		stop()
	})
}

// A type that has not been found for a long time is watched as soon as a type event reports it as served.
func TestS5_TypeEventEndsTheBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var typeEvents events
		f := newFixture(t, 1, dynamiccontroller.Config{}, dynamiccontroller.WithTypeEvents(typeEvents.subscribe))
		gvr := f.types[0]
		exists := false
		f.client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return !exists, nil, apierrors.NewNotFound(gvr.GroupResource(), "")
		})
		stop := f.run()
		f.serve(gvr, succeed)
		time.Sleep(time.Hour)
		f.client.ClearActions()
		time.Sleep(10 * time.Minute)
		if n := len(f.client.Actions()); n < 10 || n > 30 {
			t.Errorf("%d requests in ten minutes for a type that does not exist, want 10 to 30", n)
		}
		exists = true
		if status := f.status(gvr); status.State != dynamiccontroller.TypeNotFound {
			t.Fatalf("the status is %+v, want NotFound", status)
		}
		before := time.Now()
		typeEvents.notify(gvr, true)
		synctest.Wait()
		if status := f.status(gvr); status.State != dynamiccontroller.TypeSynced || time.Since(before) != 0 {
			t.Errorf("the status is %+v, want Synced immediately after the event", status)
		}
		typeEvents.notify(f.types[0].GroupResource().WithVersion("v2"), false) // ignored: v2 is not served by the controller
		stop()
		if typeEvents.notify != nil {
			t.Error("the controller is still subscribed to type events after the run has ended")
		}
	})
}
