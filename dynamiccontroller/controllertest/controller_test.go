package controllertest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
)

func newController(t testing.TB, server *controllertest.Server) *dynamiccontroller.DynamicController {
	return controllertest.NewController(t, server, dynamiccontroller.Config{Workers: 2})
}

func serve(
	t *testing.T, controller *dynamiccontroller.DynamicController, handler dynamiccontroller.Handler,
	opts ...dynamiccontroller.ServeOption,
) {
	t.Helper()
	if err := controller.StartServingGVK(t.Context(), widgets, handler, opts...); err != nil {
		t.Fatal(err)
	}
}

// startWatch starts a watch for which the widget "first" is reconciled after each change.
func startWatch(t *testing.T, controller *dynamiccontroller.DynamicController, gvr schema.GroupVersionResource) {
	t.Helper()
	_, err := controller.StartWatch(gvr,
		func(context.Context, dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers {
			return []dynamiccontroller.ObjectIdentifiers{first}
		})
	if err != nil {
		t.Fatal(err)
	}
}

func succeed(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil }

// keys returns the keys of the reconciled objects in order, and fails the test if a handler returned an error.
func keys(t *testing.T, calls []call) []string {
	t.Helper()
	var keys []string
	for _, call := range calls {
		keys = append(keys, call.id.NamespacedKey)
		if call.err != nil {
			t.Errorf("%s: %v", call.id, call.err)
		}
	}
	slices.Sort(keys)
	return keys
}

// Handlers are called for the same causes as in production.
func TestNewController_CallsHandlersWithTheirCauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer()
		controller := newController(t, server)
		var causes []string
		serve(t, controller, func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			causes = append(causes, dynamiccontroller.CauseOf(ctx).String())
			return nil
		}, dynamiccontroller.Owns(configMaps))
		id := server.Apply(widget("first", 1))
		controllertest.Run(t, controller.Run)
		controllertest.WaitIdle(t, controller)
		server.Apply(widget("first", 2))
		controllertest.WaitIdle(t, controller)
		server.Apply(configMap("owned", server.Get(id).GetUID()))
		controllertest.WaitIdle(t, controller)
		controller.Enqueue(id)
		controllertest.WaitIdle(t, controller)
		want := []string{"initial_list", "event", "secondary_event of configmaps.v1 default/owned", "enqueue"}
		if !slices.Equal(causes, want) {
			t.Errorf("got the causes %q, want %q", causes, want)
		}
	})
}

// Every cache mode, and changes to owned objects, work with the server.
func TestWaitIdle_WaitsForTheReconcilesOfChanges(t *testing.T) {
	for name, mode := range map[string]dynamiccontroller.CacheMode{
		"full": dynamiccontroller.CacheFull, "metadata": dynamiccontroller.CacheMetadata, "keys": dynamiccontroller.CacheKeys,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newServer()
				controller := newController(t, server)
				var calls recorder
				serve(t, controller, calls.record(succeed), dynamiccontroller.WithCache(mode), dynamiccontroller.Owns(configMaps))
				server.Apply(widget("first", 1))
				controllertest.Run(t, controller.Run)
				expect := func(what string, want ...string) {
					t.Helper()
					controllertest.WaitIdle(t, controller)
					if got := keys(t, calls.take()); !slices.Equal(got, want) {
						t.Errorf("%s: reconciled %q, want %q", what, got, want)
					}
				}
				expect("the initial list", "default/first")
				expect("no change")
				for i := range 200 { // more than the events that client-go's fake watch can hold
					server.Apply(widget(fmt.Sprintf("other-%03d", i), 1))
				}
				controllertest.WaitIdle(t, controller)
				if got := keys(t, calls.take()); len(got) != 200 {
					t.Errorf("200 new objects: %d reconciles", len(got))
				}
				server.Apply(configMap("child", server.Get(first).GetUID()))
				expect("a new child", "default/first")
				server.Delete(dynamiccontroller.ObjectIdentifiers{GVR: configMaps, NamespacedKey: "default/child"})
				expect("a deleted child", "default/first")
				server.Delete(first)
				expect("a deletion", "default/first")
			})
		})
	}
}

func TestWaitIdle_WaitsForRunningHandlersButNotForRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer()
		controller := newController(t, server)
		var calls recorder
		attempt := 0
		serve(t, controller, calls.record(func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			time.Sleep(10 * time.Second)
			if attempt++; attempt == 1 {
				return dynamiccontroller.RequeueAfter(time.Hour)
			}
			return nil
		}))
		controllertest.Run(t, controller.Run)
		began := time.Now()
		server.Apply(widget("first", 1))
		controllertest.WaitIdle(t, controller)
		got := calls.take()
		if len(got) != 1 || got[0].id != first {
			t.Fatalf("got calls %v", got)
		}
		if after, requeued := dynamiccontroller.RequeueDelay(got[0].err); !requeued || after != time.Hour {
			t.Errorf("got error %v, want the one that the handler returned", got[0].err)
		}
		if took := time.Since(began); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("WaitIdle took %s of the bubble's time, want the time of the handler", took)
		}
		time.Sleep(time.Hour)
		controllertest.WaitIdle(t, controller)
		if got := calls.take(); len(got) != 1 || got[0].err != nil {
			t.Errorf("got calls %v after an hour", got)
		}
	})
}

// The list of a standalone watch fails once. Its reconciles come after the retry, for which WaitIdle waits.
func TestWaitIdle_WaitsForStandaloneWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer()
		failed := false
		server.PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			defer func() { failed = true }()
			return !failed, nil, errors.New("on purpose")
		})
		controller := newController(t, server)
		var calls recorder
		serve(t, controller, calls.record(succeed))
		controllertest.Run(t, controller.Run)
		controllertest.WaitIdle(t, controller)
		server.Apply(configMap("watched", ""))
		startWatch(t, controller, configMaps)
		controllertest.WaitIdle(t, controller)
		if got := keys(t, calls.take()); !failed || !slices.Equal(got, []string{"default/first"}) {
			t.Errorf("reconciled %q after the list of a standalone watch", got)
		}
		server.Apply(configMap("watched-too", ""))
		controllertest.WaitIdle(t, controller)
		if got := keys(t, calls.take()); !slices.Equal(got, []string{"default/first"}) {
			t.Errorf("reconciled %q after a change", got)
		}
	})
}

// A reactor changes an object between the read and the write of a handler.
func TestReactor_CausesAConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer()
		controller := newController(t, server)
		var calls recorder
		serve(t, controller, calls.record(func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			lister, err := controller.Lister(id.GVR)
			if err != nil {
				return err
			}
			object, err := lister.Get(id.NamespacedKey)
			if err != nil {
				return err
			}
			ready := with(object.(*unstructured.Unstructured), "status.ready", true)
			_, err = server.Resource(id.GVR).Namespace(id.Namespace()).UpdateStatus(ctx, ready, metav1.UpdateOptions{})
			return err
		}))
		controllertest.Run(t, controller.Run)
		controllertest.WaitIdle(t, controller)
		interfered := false
		server.PrependReactor("update", "widgets", func(clienttesting.Action) (bool, runtime.Object, error) {
			if !interfered {
				interfered = true
				server.Apply(widget("first", 2))
			}
			return false, nil, nil
		})
		server.Apply(widget("first", 1))
		controllertest.WaitIdle(t, controller)
		got := calls.take()
		if len(got) == 0 || !apierrors.IsConflict(got[0].err) {
			t.Fatalf("got calls %v, want a conflict", got)
		}
		if object := server.Get(first); field(object, "status.ready") != true || field(object, "spec.size") != int64(2) {
			t.Errorf("got %v", object.Object)
		}
		if writes := server.TakeWrites(); len(writes) == 0 || writes[0] != "update status of widgets first" {
			t.Errorf("got writes %q", writes)
		}
	})
}

func TestRun_CanBeStoppedAndStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer()
		controller := newController(t, server)
		var calls recorder
		serve(t, controller, calls.record(succeed))
		server.Apply(widget("first", 1))
		stop := controllertest.Run(t, controller.Run)
		controllertest.WaitIdle(t, controller)
		stop()
		stop()
		server.Apply(widget("second", 1))
		synctest.Wait()
		if got := keys(t, calls.take()); !slices.Equal(got, []string{"default/first"}) {
			t.Errorf("reconciled %q before and after the run", got)
		}
		controllertest.Run(t, controller.Run)
		controllertest.WaitIdle(t, controller)
		if got := keys(t, calls.take()); !slices.Equal(got, []string{"default/first", "default/second"}) {
			t.Errorf("reconciled %q in the second run", got)
		}
	})
}

// A resync would begin at a random time. Tests that count reconciles would fail now and then.
func TestNewController_DisablesResyncs(t *testing.T) {
	for name, test := range map[string]struct {
		config  dynamiccontroller.Config
		resyncs bool
	}{
		"by default":             {dynamiccontroller.Config{}, false},
		"unless a period is set": {dynamiccontroller.Config{ResyncPeriod: 10 * time.Hour}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newServer()
				controller := controllertest.NewController(t, server, test.config)
				var calls recorder
				serve(t, controller, calls.record(succeed))
				server.Apply(widget("first", 1))
				controllertest.Run(t, controller.Run)
				controllertest.WaitIdle(t, controller)
				time.Sleep(22 * time.Hour)
				controllertest.WaitIdle(t, controller)
				if got := calls.take(); len(got) > 1 != test.resyncs {
					t.Errorf("%d reconciles in 22 hours", len(got))
				}
			})
		})
	}
}

// Watches that end at their timeout are opened again, and no change is lost.
func TestWatch_IsOpenedAgainAfterItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer()
		controller := newController(t, server)
		var calls recorder
		serve(t, controller, calls.record(succeed))
		controllertest.Run(t, controller.Run)
		controllertest.WaitIdle(t, controller)
		requests := len(server.Actions())
		for i := range 30 {
			time.Sleep(time.Minute)
			server.Apply(widget("first", i))
			controllertest.WaitIdle(t, controller)
		}
		if got := keys(t, calls.take()); len(got) != 30 {
			t.Errorf("%d reconciles of 30 changes", len(got))
		}
		if n := len(server.Actions()) - requests; n < 2 {
			t.Errorf("%d requests in half an hour, want at least 2 for watches", n)
		}
	})
}

func TestRun_FailsTheTest(t *testing.T) {
	onPurpose := errors.New("on purpose")
	for name, test := range map[string]struct {
		run    func(context.Context) error
		early  bool // whether the test fails before stop is called
		wanted string
	}{
		"run returns too early": {func(context.Context) error { return nil }, true, "before the end of the test"},
		"run returns an error":  {func(context.Context) error { return onPurpose }, true, "on purpose"},
		"run returns an error when it is stopped": {func(ctx context.Context) error {
			<-ctx.Done()
			return onPurpose
		}, false, "on purpose"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := failures(t, func(f testing.TB) {
					stop := controllertest.Run(f, test.run)
					synctest.Wait()
					if !test.early {
						stop()
					}
				})
				if len(got) != 1 || !strings.Contains(got[0], test.wanted) {
					t.Errorf("got failures %q, want one that contains %q", got, test.wanted)
				}
			})
		})
	}
}

func TestWaitIdle_FailsTheTest(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(t *testing.T, controller *dynamiccontroller.DynamicController)
		want    string
	}{
		"the controller is not running": {func(t *testing.T, controller *dynamiccontroller.DynamicController) {
			serve(t, controller, succeed)
		}, "the controller is not running"},
		"a type is not served by the server": {func(t *testing.T, controller *dynamiccontroller.DynamicController) {
			if err := controller.StartServingGVK(t.Context(), gadgets, succeed); err != nil {
				t.Fatal(err)
			}
			controllertest.Run(t, controller.Run)
		}, "gadgets.example.com is NotFound"},
		"an owned type is not served by the server": {func(t *testing.T, controller *dynamiccontroller.DynamicController) {
			serve(t, controller, succeed, dynamiccontroller.Owns(gadgets))
			controllertest.Run(t, controller.Run)
		}, "gadgets.example.com, which widgets.example.com depends on, is NotFound"},
		"a type of a standalone watch is not served by the server": {
			func(t *testing.T, controller *dynamiccontroller.DynamicController) {
				startWatch(t, controller, gadgets)
				controllertest.Run(t, controller.Run)
			}, "gadgets.example.com, which StartWatch watches, is NotFound"},
		"a handler hangs": {func(t *testing.T, controller *dynamiccontroller.DynamicController) {
			serve(t, controller, func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
				<-ctx.Done()
				return ctx.Err()
			})
			controllertest.Run(t, controller.Run)
		}, "widgets.example.com: waiting objects: 0, running handlers: 1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newServer()
				server.Apply(widget("first", 1))
				controller := newController(t, server)
				test.prepare(t, controller)
				got := failures(t, func(f testing.TB) { controllertest.WaitIdle(f, controller) })
				if len(got) != 1 || !strings.Contains(got[0], test.want) {
					t.Errorf("got failures %q, want one that contains %q", got, test.want)
				}
			})
		})
	}
	t.Run("the test is not in a bubble", func(t *testing.T) {
		got := failures(t, func(f testing.TB) { controllertest.WaitIdle(f, newController(t, newServer())) })
		if len(got) != 1 || !strings.Contains(got[0], "synctest.Test") {
			t.Errorf("got failures %q", got)
		}
	})
}
