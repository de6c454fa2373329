package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// notServed returns the error that clients return if the API server does not serve the requested type. If the client is
// a dynamic client, resource and name are empty.
func notServed(resource schema.GroupResource, name string) error {
	const message = "404 page not found"
	return apierrors.NewGenericServerResponse(http.StatusNotFound, http.MethodPatch, resource, name, message, 0, true)
}

// makeAbsent makes all requests fail with a 404 while absent is true. If late is set, each request fails only after ten
// seconds. By then, the last handler calls for the type's objects have returned.
func (f *fixture) makeAbsent(late bool) (absent *atomic.Bool, closeWatches func()) {
	absent = &atomic.Bool{}
	f.client.PrependReactor("*", "*", func(clienttesting.Action) (bool, kruntime.Object, error) {
		if absent.Load() && late {
			time.Sleep(10 * time.Second)
		}
		return absent.Load(), nil, notServed(schema.GroupResource{}, "")
	})
	var streams []watch.Interface
	f.client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		if absent.Load() {
			return true, nil, notServed(schema.GroupResource{}, "")
		}
		stream, err := f.client.Tracker().Watch(action.GetResource(), action.GetNamespace())
		streams = append(streams, stream)
		return true, stream, err
	})
	return absent, func() {
		for _, stream := range streams {
			stream.Stop()
		}
	}
}

// The states of the type in a notFoundCase.
const (
	served  = "served"  // The type is served, and the object was deleted.
	gone    = "gone"    // A type event reported that the type is gone.
	unknown = "unknown" // The type's watch gets a 404, and the cache still holds the object.
)

// notFoundCase is a case of TestD9_NotFoundForMissingTypeEndsRetries.
type notFoundCase struct {
	name   string
	typeIs string
	err    error
	ends   bool
}

// run serves a type, puts it into the state of the test case and makes the handler return the error.
func (test notFoundCase) run(t *testing.T) {
	const retries = 3
	var typeEvents events
	counts, logged := &outcomes{}, &logBuffer{}
	f := newFixtureWithLogger(t, logged.logger(1), 1, retryEverySecond(retries),
		dynamiccontroller.WithTypeEvents(typeEvents.subscribe), dynamiccontroller.WithMetrics(counts))
	gvr := f.types[0]
	absent, closeWatches := f.makeAbsent(test.typeIs == gone)
	f.put(gvr, "w")
	stop := f.run()
	c := newCalls(nil)
	c.do = func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		if len(c.at[id.Name()]) == 1 {
			return nil
		}
		return test.err
	}
	f.serve(gvr, c.handle)
	switch test.typeIs {
	case served:
		f.delete(gvr, "w")
	case gone:
		absent.Store(true)
		typeEvents.notify(gvr, false)
	case unknown:
		absent.Store(true)
		closeWatches()
		time.Sleep(time.Second)
		if state := f.status(gvr).State; state != dynamiccontroller.TypeNotFound {
			t.Fatalf("the state of the type is %s, want NotFound", state)
		}
		f.controller.Enqueue(f.id(gvr, "w"))
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	n, parked := len(c.at["w"]), f.status(gvr).Parked
	if test.ends && (n != 2 || parked != 0 || counts.got[1] != dynamiccontroller.OutcomeGone) {
		t.Errorf("%d calls, %d parked objects, outcomes %v; want one last call and no retries", n, parked, counts.got)
	}
	if !test.ends && (n != 2+retries || parked != 1) {
		t.Errorf("%d calls, %d parked objects, outcomes %v; want retries until the object is parked", n, parked, counts.got)
	}
	if got := logged.count("Object gone, will not retry") == 1; got != test.ends {
		t.Errorf("logged that the object is gone: %t, want %t", got, test.ends)
	}
	absent.Store(false)
	stop()
}

// The errors have the details that clients add. A test in test/integration covers the API server's responses.
func TestD9_NotFoundForMissingTypeEndsRetries(t *testing.T) {
	own := schema.GroupResource{Group: "example.com", Resource: "type0s"}
	otherType := schema.GroupResource{Group: "example.com", Resource: "type1s"}
	otherGroup := schema.GroupResource{Group: "other.example.com", Resource: "type0s"}
	withoutDetails := &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
	}}
	for _, test := range []notFoundCase{
		{"no details, the type is gone", gone, notServed(schema.GroupResource{}, ""), true},
		{"wrapped", gone, fmt.Errorf("patch the status: %w", notServed(schema.GroupResource{}, "")), true},
		{"nil details", gone, withoutDetails, true},
		{"the object's own details", gone, notServed(own, "w"), true},
		{"details without a name", gone, notServed(own, ""), true},
		{"details without a group", gone, notServed(schema.GroupResource{Resource: own.Resource}, "w"), true},
		{"another object's details", gone, notServed(own, "other"), false},
		{"another type's details", gone, notServed(otherType, "w"), false},
		{"another group's details", gone, notServed(otherGroup, "w"), false},
		{"joined with another error", gone, errors.Join(notServed(schema.GroupResource{}, ""), errOnPurpose), false},
		{"another failure", gone, apierrors.NewInternalError(errOnPurpose), false},
		{"no details, the type is served", served, notServed(schema.GroupResource{}, ""), false},
		{"no details, the cache holds the object", unknown, notServed(schema.GroupResource{}, ""), false},
	} {
		t.Run(test.name, func(t *testing.T) { synctest.Test(t, test.run) })
	}
}
