package dynamiccontroller_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

func TestErrInvalidOptions_IsWrappedAndNamesEachOption(t *testing.T) {
	ctx := t.Context()
	invalidConfig := newFixture(t, 1, dynamiccontroller.Config{Workers: -1}).controller
	nilOption := dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{}, nil, nil)
	_, noConfig := dynamiccontroller.NewForConfig(logr.Discard(), dynamiccontroller.Config{}, nil)
	_, noClient := dynamiccontroller.NewForConfigAndClient(
		logr.Discard(), dynamiccontroller.Config{}, &rest.Config{}, nil)
	f := newFixture(t, 1, dynamiccontroller.Config{})
	gvr, valid := f.types[0], f.controller
	for want, err := range map[string]error{
		"invalid Config.Workers -1":     invalidConfig.Run(ctx),
		"Config.Workers -1: must not":   invalidConfig.RunWatches(ctx),
		"Workers -1":                    invalidConfig.StartServingGVK(ctx, gvr, succeed),
		"an option is nil":              nilOption.Run(ctx),
		"cfg must not be nil":           noConfig,
		"client must not be nil":        noClient,
		"WithConcurrency(0)":            valid.StartServingGVK(ctx, gvr, succeed, dynamiccontroller.WithConcurrency(0)),
		"the handler is nil":            valid.StartServingGVK(ctx, gvr, nil),
		"start serving type0s.v1.examp": valid.StartServingGVK(ctx, gvr, succeed, nil),
	} {
		if !errors.Is(err, dynamiccontroller.ErrInvalidOptions) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want ErrInvalidOptions with %q", err, want)
		}
	}
}

func TestErrAlreadyRunning_IsReturnedByEachRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 2, dynamiccontroller.Config{})
		defer f.runWatches()()
		stopShard := f.startShard(0)
		for name, run := range map[string]func(context.Context) error{
			"Run": f.controller.Run, "RunWatches": f.controller.RunWatches,
			"Run for the shard": f.shard(0, f.controller.Run), "RunWatches for a shard": f.shard(1, f.controller.RunWatches),
		} {
			if err := run(t.Context()); !errors.Is(err, dynamiccontroller.ErrAlreadyRunning) {
				t.Errorf("%s returned %v, want ErrAlreadyRunning", name, err)
			}
		}
		if err := stopShard(); err != nil {
			t.Error(err)
		}
	})
}

func TestErrStillRunning_IsReturnedWhileAHandlerHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{ShutdownTimeout: time.Second})
		h := newHung()
		stop := f.start()
		f.serve(f.types[0], h.handle)
		f.enqueue(f.types[0], 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := f.controller.StopServiceGVK(ctx, f.types[0])
		if !errors.Is(err, dynamiccontroller.ErrStillRunning) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("StopServiceGVK returned %v", err)
		}
		err = stop()
		var running interface{ Returned() <-chan struct{} }
		if !errors.Is(err, dynamiccontroller.ErrStillRunning) || !errors.As(err, &running) {
			t.Fatalf("Run returned %v", err)
		}
		time.Sleep(time.Hour)
		select {
		case <-running.Returned():
			t.Error("the error reports that nothing is running, while a handler hangs")
		default:
		}
		close(h.release)
		<-running.Returned()
	})
}

// With a negative ShutdownTimeout, Run waits for its handlers as long as they take.
func TestD11_ShutdownCanBeUnlimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{ShutdownTimeout: -1})
		stop := f.start()
		f.serve(f.types[0], func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			<-ctx.Done()
			time.Sleep(24 * time.Hour)
			return nil
		}, dynamiccontroller.WithReconcileTimeout(-1))
		f.enqueue(f.types[0], 1)
		began := time.Now()
		if err := stop(); err != nil || time.Since(began) != 24*time.Hour {
			t.Errorf("Run returned %v after %s", err, time.Since(began))
		}
	})
}

func TestD8_NoRetriesParksAfterTheFirstFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, retryEverySecond(dynamiccontroller.NoRetries))
		stop := f.run()
		c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return errOnPurpose })
		f.put(f.types[0], "w")
		f.serve(f.types[0], c.handle)
		time.Sleep(time.Hour)
		c.want(t, "after an hour", named("w"))
		if status := f.status(f.types[0]); status.Parked != 1 {
			t.Errorf("the status is %+v, want a parked object", status)
		}
		stop()
	})
}

// A handler that stops its own type with a context that is not its own waits for itself. This is logged.
func TestStopService_LogsWhatItWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines lines
		f := newFixtureWithLogger(t, lines.logger(0), 1, dynamiccontroller.Config{})
		stop := f.run()
		stopped := make(chan error, 1)
		f.serve(f.types[0], func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			stopped <- f.controller.StopServiceGVK(ctx, id.GVR)
			return nil
		})
		f.enqueue(f.types[0], 1)
		if err := <-stopped; !errors.Is(err, dynamiccontroller.ErrStillRunning) {
			t.Errorf("StopServiceGVK returned %v", err)
		}
		if want := "type0s.v1.example.com default/0 (for 10s)"; !lines.contain("Waiting for a type to stop", want) {
			t.Errorf("the log does not name what is running: %q", lines.all())
		}
		stop()
	})
}
