package perrun

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

var widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

// newController returns a controller that reconciles two widgets, a and b, with the handler.
func newController(t *testing.T, handler dynamiccontroller.Handler) *dynamiccontroller.DynamicController {
	t.Helper()
	client := fake.NewSimpleDynamicClientWithCustomListKinds(apiruntime.NewScheme(),
		map[schema.GroupVersionResource]string{widgets: "WidgetList"}, newWidget("a"), newWidget("b"))
	config := dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1, ShutdownTimeout: time.Second}
	controller := dynamiccontroller.NewDynamicController(logr.Discard(), config, client)
	full := dynamiccontroller.WithCache(dynamiccontroller.CacheFull)
	if err := controller.StartServingGVK(t.Context(), widgets, handler, full); err != nil {
		t.Fatal(err)
	}
	return controller
}

func newWidget(name string) *unstructured.Unstructured {
	widget := &unstructured.Unstructured{}
	widget.SetGroupVersionKind(widgets.GroupVersion().WithKind("Widget"))
	widget.SetNamespace("default")
	widget.SetName(name)
	widget.SetResourceVersion("1")
	return widget
}

// start calls Run in the background. The returned function ends the run and returns Run's error.
func start(controller *dynamiccontroller.DynamicController) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- controller.Run(ctx) }()
	synctest.Wait()
	return func() error {
		cancel()
		err := <-result
		synctest.Wait()
		return err
	}
}

type counter struct {
	mu    sync.Mutex
	calls int
}

func (c *counter) add() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	return c.calls
}

func TestState_SharedWithinRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var state State[counter]
		var mu sync.Mutex
		highest := 0
		controller := newController(t, func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			calls := state.For(ctx).add()
			mu.Lock()
			defer mu.Unlock()
			highest = max(highest, calls)
			return nil
		})
		for term := range 3 {
			stop := start(controller)
			mu.Lock()
			if highest != 2 || len(state.All()) != 1 {
				t.Errorf("run %d: counted to %d in %d states, want 2 calls and 1 state", term, highest, len(state.All()))
			}
			highest = 0
			mu.Unlock()
			if err := stop(); err != nil {
				t.Error(err)
			}
			if n := len(state.All()); n != 0 {
				t.Errorf("run %d: %d states are left after it ended", term, n)
			}
		}
	})
}

func TestState_DoesNotLeakOver1000Runs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var state State[counter]
		var runs sync.Map
		controller := newController(t, func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			state.For(ctx).add()
			runs.Store(dynamiccontroller.RunContext(ctx), true)
			return nil
		})
		for range 1000 {
			if err := start(controller)(); err != nil {
				t.Fatal(err)
			}
		}
		distinct := 0
		runs.Range(func(any, any) bool { distinct++; return true })
		if distinct != 1000 || len(state.All()) != 0 {
			t.Errorf("%d runs left %d states, want 1000 runs and no state", distinct, len(state.All()))
		}
	})
}

// A handler that ignores its context can still be running during the next run. It keeps the state of the run that
// called it.
func TestState_KeptUntilLastHandlerReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var state State[counter]
		hang := make(chan struct{})
		var counts sync.Map // by object key
		controller := newController(t, func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			before := state.For(ctx)
			if _, ran := counts.LoadOrStore(id.NamespacedKey, true); id.Name() == "a" && !ran {
				<-hang
			}
			if state.For(ctx) != before {
				t.Errorf("the state of %s was replaced during a handler call", id)
			}
			return nil
		})
		if err := start(controller)(); err == nil {
			t.Error("Run did not report the handler that is still running")
		}
		stop := start(controller)
		if n := len(state.All()); n != 2 {
			t.Errorf("there are %d states, want those of two runs", n)
		}
		close(hang)
		synctest.Wait()
		if n := len(state.All()); n != 1 {
			t.Errorf("there are %d states after the handler returned, want 1", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestState_DiffersBetweenControllers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var state State[counter]
		handler := func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			state.For(ctx).add()
			return nil
		}
		stopFirst, stopSecond := start(newController(t, handler)), start(newController(t, handler))
		states := state.All()
		if len(states) != 2 || states[0].calls != 2 || states[1].calls != 2 {
			t.Errorf("got %d states of two controllers, want 2 with 2 calls each", len(states))
		}
		if err := stopFirst(); err != nil {
			t.Error(err)
		}
		if n := len(state.All()); n != 1 {
			t.Errorf("got %d states after one run ended, want only the other run's", n)
		}
		if err := stopSecond(); err != nil {
			t.Error(err)
		}
	})
}

// A goroutine that a handler started can outlive the run. If it creates state after the run, that state is removed.
func TestState_RemovedIfCreatedAfterRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var state State[counter]
		contexts := make(chan context.Context, 2)
		stop := start(newController(t, func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			contexts <- ctx
			return nil
		}))
		if err := stop(); err != nil {
			t.Error(err)
		}
		state.For(<-contexts).add()
		synctest.Wait()
		if n := len(state.All()); n != 0 {
			t.Errorf("there are %d states, want none", n)
		}
	})
}

func TestState_SharedOutsideRuns(t *testing.T) {
	var state State[counter]
	ctx, cancel := context.WithCancel(t.Context())
	state.For(ctx).add()
	cancel()
	if calls := state.For(context.Background()).add(); calls != 2 {
		t.Errorf("counted to %d, want 2", calls)
	}
}

// Handlers can be replaced during a run. The state of replaced handlers must then be garbage-collected.
func TestState_NotKeptAliveByRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var once sync.Once
		var reference weak.Pointer[counter]
		controller := newController(t, func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			once.Do(func() {
				state := &State[counter]{}
				reference = weak.Make(state.For(ctx))
			})
			return nil
		})
		stop := start(controller)
		for range 100 {
			if runtime.GC(); reference.Value() == nil {
				break
			}
		}
		if reference.Value() != nil {
			t.Error("the run keeps the state alive")
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
