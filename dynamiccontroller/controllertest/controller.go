package controllertest

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/testr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// NewController returns a controller for the objects of a server. It logs to t. It does not run yet. Resyncs begin at a
// random time. Therefore they are disabled, unless the config sets ResyncPeriod.
func NewController(
	t testing.TB, server *Server, config dynamiccontroller.Config, opts ...dynamiccontroller.Option,
) *dynamiccontroller.DynamicController {
	config.ResyncPeriod = cmp.Or(config.ResyncPeriod, -1)
	opts = append([]dynamiccontroller.Option{dynamiccontroller.WithMetadataClient(server.MetadataClient())}, opts...)
	return dynamiccontroller.NewDynamicController(testr.NewWithInterface(t, testr.Options{}), config, server, opts...)
}

// Run calls run, which is usually the method Run of a controller, in a goroutine. At the end of the test, or when stop
// is called, it cancels the context of run and waits for run to return. The test fails as soon as run returns an error,
// or returns before its context is cancelled. To test what happens after a restart, call stop and then Run again.
func Run(t testing.TB, run func(ctx context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		err := run(ctx)
		switch {
		case ctx.Err() == nil:
			t.Errorf("controllertest: Run: returned before the end of the test, with the error %v", err)
		case err != nil:
			t.Errorf("controllertest: Run: %v", err)
		}
	}()
	stop = func() {
		cancel()
		<-returned
	}
	t.Cleanup(stop)
	return stop
}

const (
	// idleTimeout is the maximum time that WaitIdle waits, on the clock of the bubble.
	idleTimeout = time.Minute
	// idlePoll is the time after which WaitIdle checks again, on the clock of the bubble.
	idlePoll = 10 * time.Millisecond
)

// WaitIdle waits until all changes have been reconciled. The controller is then idle: all caches have synced, including
// those of owned types and of standalone watches, no object waits in the queue, and no handler is running.
//
// WaitIdle does not wait for a retry or a RequeueAfter that is not due. To reach one, call time.Sleep and then WaitIdle
// again. It does not wait for a predicate or MapFunc that sleeps, nor until a cache that lags contains the writes of a
// handler; see Config.MaxWriteLag.
//
// WaitIdle must be called in a [synctest.Test] bubble in which the controller is running. It takes no real time. If the
// controller is not idle after one minute on the clock of the bubble, the test fails with the reasons.
//
// WaitIdle cannot return while a goroutine of the bubble waits for the network, because such a goroutine does not count
// as blocked. If it waits for five seconds of real time, the process ends with a panic that contains its stack trace,
// as when the timeout of go test is exceeded.
func WaitIdle(t testing.TB, controller *dynamiccontroller.DynamicController) {
	t.Helper()
	for deadline := time.Now().Add(idleTimeout); ; time.Sleep(idlePoll) {
		waitInBubble(t)
		reasons := busy(controller)
		if len(reasons) == 0 {
			return
		}
		if !time.Now().Before(deadline) {
			t.Fatalf("controllertest: WaitIdle: not idle after %s: %s", idleTimeout, strings.Join(reasons, "; "))
		}
	}
}

// waitInBubble calls synctest.Wait, which panics outside a bubble.
func waitInBubble(t testing.TB) {
	t.Helper()
	defer func() {
		if r := recover(); r != nil {
			t.Fatalf("controllertest: WaitIdle: %v; call it in the function that is passed to synctest.Test", r)
		}
	}()
	defer theWatchdog.begin(t.Name())()
	synctest.Wait()
}

// busy returns the reasons for which a controller is not idle.
func busy(controller *dynamiccontroller.DynamicController) (reasons []string) {
	add := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	for _, s := range controller.Status() {
		gvr := s.GVR.GroupResource()
		if s.State == dynamiccontroller.TypeStopped {
			return []string{"the controller is not running"}
		}
		if reason := notSynced(s.WatchStatus); reason != "" {
			add("%s is %s", gvr, reason)
		}
		for _, secondary := range s.Secondaries {
			if reason := notSynced(secondary.WatchStatus); reason != "" {
				add("%s, which %s depends on, is %s", secondary.GVR.GroupResource(), gvr, reason)
			}
		}
		if waiting := s.Live + s.Background; waiting+s.Running > 0 {
			add("%s: waiting objects: %d, running handlers: %d", gvr, waiting, s.Running)
		}
	}
	for _, w := range controller.StandaloneWatches() {
		if reason := notSynced(w.Status()); reason != "" {
			add("%s, which StartWatch watches, is %s", w.Key().GVR.GroupResource(), reason)
		}
	}
	return reasons
}

// notSynced returns the state of a watch that has not synced, or an empty string.
func notSynced(s dynamiccontroller.WatchStatus) string {
	switch {
	case s.State != dynamiccontroller.TypeSynced:
		return strings.TrimSuffix(fmt.Sprintf("%s: %s", s.State, s.Message), ": ")
	case s.Replacement != nil:
		return "waiting for a new watch"
	}
	return ""
}
