package dynamiccontroller_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// completed records the reconciles reported to Metrics.
type completed struct{ reconciles []dynamiccontroller.Reconcile }

func (c *completed) Reconciled(done dynamiccontroller.Reconcile) {
	c.reconciles = append(c.reconciles, done)
}

func (*completed) Forget(schema.GroupVersionResource) {}

// The time in the queue includes neither the handler call nor the delay of a requeue.
func TestMetrics_ReportTimeInQueueAndDuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &completed{}
		w := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1}, dynamiccontroller.WithMetrics(m))
		gvr := w.types[0]
		w.put(gvr, "a")
		w.put(gvr, "b")
		stop := w.run()
		calls := 0
		w.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			calls++
			time.Sleep(2 * time.Second)
			if calls == 1 {
				return dynamiccontroller.RequeueAfter(time.Minute)
			}
			return nil
		})
		time.Sleep(time.Hour)
		synctest.Wait()
		stop()
		reconcile := func(outcome dynamiccontroller.Outcome, queued time.Duration) dynamiccontroller.Reconcile {
			return dynamiccontroller.Reconcile{GVR: gvr, Outcome: outcome, Queued: queued, Took: 2 * time.Second}
		}
		want := []dynamiccontroller.Reconcile{
			reconcile(dynamiccontroller.OutcomeRequeue, 0),
			reconcile(dynamiccontroller.OutcomeSuccess, 2*time.Second),
			reconcile(dynamiccontroller.OutcomeSuccess, 0),
		}
		if !slices.Equal(m.reconciles, want) {
			t.Errorf("got %v, want %v", m.reconciles, want)
		}
	})
}

// recordingMetrics blocks Forget until it is released.
type recordingMetrics struct {
	forgetting, release chan struct{}
	calls               []string
}

func (m *recordingMetrics) Reconciled(dynamiccontroller.Reconcile) {
	m.calls = append(m.calls, "reconciled")
}

func (m *recordingMetrics) Forget(schema.GroupVersionResource) {
	close(m.forgetting)
	<-m.release
	m.calls = append(m.calls, "forget")
}

// A late Forget must not remove the metrics of a type that is served again.
func TestMetrics_ForgetPrecedesALaterRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &recordingMetrics{forgetting: make(chan struct{}), release: make(chan struct{})}
		w := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1}, dynamiccontroller.WithMetrics(m))
		gvr := w.types[0]
		w.put(gvr, "a")
		stop := w.run()
		w.serve(gvr, succeed)
		stopped := make(chan error)
		go func() { stopped <- w.controller.StopServiceGVK(context.Background(), gvr) }()
		<-m.forgetting
		w.serve(gvr, succeed)
		time.Sleep(time.Second)
		synctest.Wait()
		close(m.release)
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := len(m.calls); n != 3 || m.calls[1] != "forget" || m.calls[2] != "reconciled" {
			t.Errorf("the calls are %v, want reconciled, forget and reconciled again", m.calls)
		}
		stop()
	})
}

func TestS1_StopWaitsForForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &recordingMetrics{forgetting: make(chan struct{}), release: make(chan struct{})}
		w := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1}, dynamiccontroller.WithMetrics(m))
		gvr := w.types[0]
		stop := w.run()
		w.serve(gvr, succeed)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := w.controller.StopServiceGVK(ctx, gvr); !strings.Contains(fmt.Sprint(err), "Metrics.Forget") {
			t.Errorf("StopServiceGVK returned %v, want an error that lists Metrics.Forget", err)
		}
		close(m.release)
		if err := w.controller.StopServiceGVK(context.Background(), gvr); err != nil {
			t.Error(err)
		}
		stop()
	})
}

// If a hung handler from an earlier registration returns while the type is served again, the type's metrics must be
// kept.
func TestMetrics_AreKeptWhileTheTypeIsServedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &recordingMetrics{forgetting: make(chan struct{}), release: make(chan struct{})}
		close(m.release)
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1}, dynamiccontroller.WithMetrics(m))
		gvr := f.types[0]
		f.put(gvr, "a")
		stop := f.run()
		hang := make(chan struct{})
		f.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			<-hang
			return nil
		})
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := f.controller.StopServiceGVK(ctx, gvr); err == nil {
			t.Error("StopServiceGVK returned nil while the handler was hanging")
		}
		f.serve(gvr, succeed)
		close(hang)
		time.Sleep(time.Second)
		synctest.Wait()
		if len(m.calls) != 2 || m.calls[0] != "reconciled" || m.calls[1] != "reconciled" {
			t.Errorf("the calls are %v, want two calls to reconciled and none to forget", m.calls)
		}
		stop()
	})
}
