package dynamiccontroller_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A wrong type event causes one list: the objects are delivered as deleted and then found again, and the type is
// Synced.
func TestS5_WrongTypeEventIsCorrected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{})
		gvr := w.types[0]
		var typeEvents events
		w.controller = dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{ResyncPeriod: -1}, w.client,
			dynamiccontroller.WithTypeEvents(typeEvents.subscribe))
		w.put(gvr, "w")
		stop := w.run()
		c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil })
		w.serve(gvr, c.handle)
		typeEvents.notify(gvr, false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if status := w.status(gvr); status.State != dynamiccontroller.TypeSynced || status.Message != "" || status.Objects != 1 {
			t.Errorf("%+v", status)
		}
		if n := len(c.at["w"]); n < 2 {
			t.Errorf("%d calls, want one for the deletion", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A type that was not found for a long time is watched as soon as a type event reports it as served.
func TestS5_TypeEventEndsTheBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{})
		gvr := w.types[0]
		exists := false
		w.client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return !exists, nil, apierrors.NewNotFound(gvr.GroupResource(), "")
		})
		var typeEvents events
		w.controller = dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{}, w.client,
			dynamiccontroller.WithTypeEvents(typeEvents.subscribe))
		stop := w.run()
		w.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil })
		time.Sleep(time.Hour)
		w.client.ClearActions()
		time.Sleep(10 * time.Minute)
		if n := len(w.client.Actions()); n < 10 || n > 30 {
			t.Errorf("%d requests in ten minutes for a type that does not exist", n)
		}
		exists = true
		if status := w.status(gvr); status.State != dynamiccontroller.TypeNotFound {
			t.Fatalf("%+v", status)
		}
		before := time.Now()
		typeEvents.notify(gvr, true)
		synctest.Wait()
		if status := w.status(gvr); status.State != dynamiccontroller.TypeSynced || time.Since(before) != 0 {
			t.Errorf("%+v", status)
		}
		typeEvents.notify(w.types[0].GroupResource().WithVersion("v2"), false) // not served by the controller: ignored
		if err := stop(); err != nil {
			t.Error(err)
		}
		if typeEvents.notify != nil {
			t.Error("still subscribed after the run")
		}
	})
}
