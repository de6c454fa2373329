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

// notServed returns the error of a client for a request for a type that the API server does not serve. A dynamic client
// leaves resource and name empty.
func notServed(resource schema.GroupResource, name string) error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, http.MethodPatch, resource, name, "404 page not found", 0, true)
}

// This covers the details that clients add. The responses of the API server are covered in test/integration.
func TestD9_NotFoundOfAMissingTypeEndsRetries(t *testing.T) {
	const (
		served  = "served"  // the type is served, the object was deleted
		gone    = "gone"    // a type event reported that the type is gone
		unknown = "unknown" // the type's watch gets a 404, and the cache still holds the object
	)
	own, other := schema.GroupResource{Group: "example.com", Resource: "type0s"}, schema.GroupResource{Group: "example.com", Resource: "type1s"}
	withoutDetails := &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound}}
	for _, test := range []struct {
		name   string
		typeIs string
		err    error
		ends   bool
		logged bool // because the error does not name the object
	}{
		{"no details, the type is gone", gone, notServed(schema.GroupResource{}, ""), true, true},
		{"wrapped", gone, fmt.Errorf("patch the status: %w", notServed(schema.GroupResource{}, "")), true, true},
		{"nil details", gone, withoutDetails, true, true},
		{"the object's own details", gone, notServed(own, "w"), true, false},
		{"details without a name", gone, notServed(own, ""), true, true},
		{"details without a group", gone, notServed(schema.GroupResource{Resource: own.Resource}, "w"), true, true},
		{"another object's details", gone, notServed(own, "other"), false, false},
		{"another type's details", gone, notServed(other, "w"), false, false},
		{"another group's details", gone, notServed(schema.GroupResource{Group: "other.example.com", Resource: own.Resource}, "w"), false, false},
		{"joined with another error", gone, errors.Join(notServed(schema.GroupResource{}, ""), errOnPurpose), false, false},
		{"another failure", gone, apierrors.NewInternalError(errOnPurpose), false, false},
		{"no details, the type is served", served, notServed(schema.GroupResource{}, ""), false, false},
		{"no details, the cache holds the object", unknown, notServed(schema.GroupResource{}, ""), false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, dynamiccontroller.Config{})
				gvr, counts := w.types[0], &outcomes{}
				var typeEvents events
				logged := &logBuffer{}
				config := dynamiccontroller.Config{Workers: 1, QueueMaxRetries: 3, MinRetryDelay: time.Second, MaxRetryDelay: time.Second, ResyncPeriod: -1}
				w.controller = dynamiccontroller.NewDynamicController(logged.logger(1), config, w.client,
					dynamiccontroller.WithTypeEvents(typeEvents.subscribe), dynamiccontroller.WithMetrics(counts))
				var absent atomic.Bool
				w.client.PrependReactor("*", "*", func(clienttesting.Action) (bool, kruntime.Object, error) {
					if absent.Load() && test.typeIs == gone {
						// The type event is handled, and its last calls have returned, before the 404.
						time.Sleep(10 * time.Second)
					}
					return absent.Load(), nil, notServed(schema.GroupResource{}, "")
				})
				var streams []watch.Interface
				w.client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
					if absent.Load() {
						return true, nil, notServed(schema.GroupResource{}, "")
					}
					stream, err := w.client.Tracker().Watch(action.GetResource(), action.GetNamespace())
					streams = append(streams, stream)
					return true, stream, err
				})
				w.put(gvr, "w")
				stop := w.run()
				c := newCalls(nil)
				c.do = func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
					if len(c.at[id.Name()]) == 1 {
						return nil
					}
					return test.err
				}
				w.serve(gvr, c.handle)
				switch test.typeIs {
				case served:
					w.delete(gvr, "w")
				case gone:
					absent.Store(true)
					typeEvents.notify(gvr, false)
				case unknown:
					absent.Store(true)
					for _, stream := range streams {
						stream.Stop()
					}
					time.Sleep(time.Second)
					if state := w.status(gvr).State; state != dynamiccontroller.TypeNotFound {
						t.Fatalf("the type is %s", state)
					}
					w.controller.Enqueue(w.id(gvr, "w"))
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				n, parked := len(c.at["w"]), w.status(gvr).Parked
				if test.ends && (n != 2 || parked != 0 || counts.got[1] != dynamiccontroller.OutcomeGone) {
					t.Errorf("%d calls, %d parked, %v; want a single last call", n, parked, counts.got)
				}
				if !test.ends && (n != 2+config.QueueMaxRetries || parked != 1) {
					t.Errorf("%d calls, %d parked, %v; want retries", n, parked, counts.got)
				}
				if got := logged.count("its type is not served") == 1; got != test.logged {
					t.Errorf("logged: %t, want %t", got, test.logged)
				}
				absent.Store(false)
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
