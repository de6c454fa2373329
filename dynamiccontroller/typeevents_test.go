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

// A type event that is wrong costs one list: the objects are deleted, found again, and the type is Synced.
func TestS5_AWrongTypeEventIsCorrected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{})
		gvr := w.types[0]
		var told events
		w.controller = dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{ResyncPeriod: -1}, w.client,
			dynamiccontroller.WithTypeEvents(told.subscribe))
		w.put(gvr, "w")
		stop := w.run()
		c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil })
		w.serve(gvr, c.handle)
		told.tell(gvr, false)
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

// A type that was unknown for long is watched the moment that it is told to be served.
func TestS5_ATypeThatAppearsIsWatchedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{})
		gvr := w.types[0]
		there := false
		w.client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return !there, nil, apierrors.NewNotFound(gvr.GroupResource(), "")
		})
		var told events
		w.controller = dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{}, w.client,
			dynamiccontroller.WithTypeEvents(told.subscribe))
		stop := w.run()
		w.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil })
		time.Sleep(time.Hour)
		w.client.ClearActions()
		time.Sleep(10 * time.Minute)
		if n := len(w.client.Actions()); n < 10 || n > 30 {
			t.Errorf("%d requests in ten minutes for a type that is not there", n)
		}
		there = true
		if status := w.status(gvr); status.State != dynamiccontroller.TypeNotFound {
			t.Fatalf("%+v", status)
		}
		before := time.Now()
		told.tell(gvr, true)
		synctest.Wait()
		if status := w.status(gvr); status.State != dynamiccontroller.TypeSynced || time.Since(before) != 0 {
			t.Errorf("%+v", status)
		}
		told.tell(w.types[0].GroupResource().WithVersion("v2"), false) // not served: nobody's business
		if err := stop(); err != nil {
			t.Error(err)
		}
		if told.tell != nil {
			t.Error("still subscribed after the run")
		}
	})
}
